"""Checks deploy/: see tests/deploy/run."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.request

import compose_spec
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "deploy/helm/atoll"
# The oldest version that the chart supports, and the newest that the schemas have.
KUBERNETES = ("1.27", kubernetes_validate.latest_version())
# Kinds that other projects define: no package registry has their schemas.
FOREIGN = {"ServiceMonitor", "ScaledObject"}

MINIMAL = {"image": {"repository": "registry.internal/atoll"}, "database": {"existingSecret": "db", "key": "url"}, "vault": {"existingSecret": "vault", "key": "key"}}
FULL = {
    **MINIMAL,
    "replicas": 5,
    "domain": "box.example.org",
    "imagePullSecrets": [{"name": "pull"}],
    "objects": {"url": "s3://bucket/atoll", "endpoint": "https://s3.internal", "region": "eu-central-1", "existingSecret": "aws"},
    "operator": {"existingSecret": "operator", "key": "api-key"},
    "node": {"lease": "20s", "labels": {"zone": "a"}, "sandboxesMax": 500},
    "extraArgs": ["--default-egress=on", "--log=warn,atoll_engine=debug"],
    "storage": {"className": "fast", "size": "1Ti"},
    "nodeSelector": {"for": "sandboxes"},
    "tolerations": [{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}],
    "ingress": {"className": "nginx", "annotations": {"a/b": "c"}, "tls": {"secretName": "wildcard"}},
    "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "autoscaler": {"enabled": True, "prometheus": "http://prometheus:9090"},
}
OFF = {**MINIMAL, "onePerMachine": False, "ingress": {"enabled": False}, "networkPolicy": {"enabled": False}}
WRONG = [
    ({}, "image"),
    ({**MINIMAL, "replicas": 0}, "replicas"),
    ({**MINIMAL, "domain": "Not A Name"}, "domain"),
    ({**MINIMAL, "vault": {"existingSecret": ""}}, "vault"),
    ({**MINIMAL, "objects": {"url": "http://bucket"}}, "url"),
    ({**MINIMAL, "node": {"labels": {"a b": "c"}}}, "'a b'"),
    ({**MINIMAL, "sandbox": 1}, "sandbox"),
    ({**MINIMAL, "autoscaler": {"enabled": True}}, "prometheus"),
]


def helm(*args, values):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        return subprocess.run(["helm", *args, str(CHART), "--values", file.name], capture_output=True, text=True)


def render(values, *more):
    done = helm("template", "try", "--namespace", "sandboxes", *more, values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def variables(text):
    """Fills in the variables that a compose file requires."""
    given = {"ATOLL_IMAGE": "atoll:0.1.0", "ATOLL_VAULT_KEY": "0" * 64, "POSTGRES_PASSWORD": "secret"}
    return re.sub(r"\$\{([A-Z_]+):\?[^}]*\}", lambda found: given[found.group(1)], text)


def check_chart():
    for name, values in (("minimal", MINIMAL), ("full", FULL), ("off", OFF)):
        done = helm("lint", "--strict", values=values)
        assert done.returncode == 0, done.stdout + done.stderr
        for version in KUBERNETES:
            documents = render(values, "--kube-version", version)
            for document in documents:
                if document["kind"] not in FOREIGN:
                    kubernetes_validate.validate(document, version, strict=True)
            print(f"ok: {name} on {version}: {len(documents)} documents")
    for values, said in WRONG:
        done = helm("template", "try", values=values)
        assert done.returncode != 0 and said in done.stderr, (values, done.stdout[:200], done.stderr)
    print(f"ok: {len(WRONG)} sets of wrong values are refused")


def check_promises():
    documents = render(FULL)
    (nodes,) = of_kind(documents, "StatefulSet")
    pod = nodes["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"]["privileged"] and pod["automountServiceAccountToken"] is False
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz" and container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert "node drain" in container["lifecycle"]["preStop"]["exec"]["command"][2]
    # Secrets are not passed as arguments: every process of the machine can read those.
    assert not [argument for argument in container["args"] if "postgres" in argument or "key" in argument]
    names = {variable["name"] for variable in container["env"]}
    assert {"ATOLL_DATABASE", "ATOLL_VAULT_KEY", "ATOLL_API_KEY"} <= names
    (ingress,) = of_kind(documents, "Ingress")
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["box.example.org", "*.box.example.org"]
    (budget,) = of_kind(documents, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    labels = nodes["spec"]["template"]["metadata"]["labels"]
    for selector in (nodes["spec"]["selector"]["matchLabels"], budget["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    for service in of_kind(documents, "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        ports = {port["name"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    (monitor,), (scaled,) = of_kind(documents, "ServiceMonitor"), of_kind(documents, "ScaledObject")
    assert monitor["spec"]["endpoints"][0]["port"] == "http"
    assert scaled["spec"]["scaleTargetRef"]["name"] == nodes["metadata"]["name"]
    assert "replicas" not in nodes["spec"], "the autoscaler's"
    minimal = render(MINIMAL)
    (plain,) = of_kind(minimal, "StatefulSet")
    assert plain["spec"]["replicas"] == 3 and "lifecycle" not in plain["spec"]["template"]["spec"]["containers"][0]
    for script in (CHART / "files").iterdir():
        subprocess.run(["sh", "-n", script], check=True)
    print("ok: what the chart promises")
    return container["args"], [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]


def check_options(args, queries):
    """Checks that the program has the options and metrics that the chart, the units and the compose file name."""
    shown = subprocess.run([os.environ["ATOLL_BIN"], "serve", "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z0-9-]+", shown))
    unit = (ROOT / "deploy/systemd/node.conf").read_text()
    compose = yaml.safe_load(variables((ROOT / "deploy/compose.yaml").read_text()))
    used = {argument.split("=")[0] for argument in args if argument.startswith("--")}
    used |= set(re.findall(r" (--[a-z0-9-]+)", re.search(r"^ExecStart=/.*$", unit, re.M).group()))
    used |= {word for service in compose["services"].values() for word in service.get("command", []) if word.startswith("--")}
    assert used <= known, used - known
    with tempfile.TemporaryDirectory() as place:
        command = [os.environ["ATOLL_BIN"], "serve", "--ephemeral", "--listen", "127.0.0.1:0", "--ready-json", "--metrics-public"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(f"{place}/log", "w"), text=True) as server:
            try:
                url = json.loads(server.stdout.readline())["url"]
                text = urllib.request.urlopen(url + "/metrics").read().decode()
            finally:
                server.terminate()
    named = set(re.findall(r"atoll_[a-z_]+", " ".join(queries) + (CHART / "files/drain.sh").read_text()))
    missing = {name for name in named if not re.search(rf"^{name}[ {{]", text, re.M)}
    assert named and not missing, missing
    print(f"ok: {len(used)} options and {len(named)} metrics are the program's")


def check_units():
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        unit = (ROOT / "packaging/atoll.service").read_text().replace("@PREFIX@", "/usr")
        # The programs of the units are not installed here, so /bin/true replaces them.
        for text, name in ((unit, "atoll.service"), ((ROOT / "deploy/systemd/atoll-drain.service").read_text(), "atoll-drain.service")):
            text = text.replace("/usr/lib/atoll/atoll", "/bin/true").replace("/usr/lib/atoll/client-config", "/bin/true").replace("/usr/bin/atoll", "/bin/true")
            (place / name).write_text(text)
        (place / "atoll.service.d").mkdir()
        drop = (ROOT / "deploy/systemd/node.conf").read_text().replace("/usr/lib/atoll/atoll", "/bin/true")
        (place / "atoll.service.d/node.conf").write_text(drop)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", place / "atoll.service", place / "atoll-drain.service"],
            capture_output=True,
            text=True,
            env={**os.environ, "SYSTEMD_UNIT_PATH": f"{place}:"},
        )
        said = [line for line in (done.stdout + done.stderr).splitlines() if "atoll" in line]
        assert done.returncode == 0 and not said, (done.returncode, done.stdout, done.stderr)
    print("ok: systemd reads the units")


def check_compose():
    compose = yaml.safe_load(variables((ROOT / "deploy/compose.yaml").read_text()))
    read = compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose))
    read.validate()
    assert sorted(read.service_names()) == ["a", "b", "c", "database"]
    nodes = {name: service for name, service in compose["services"].items() if name != "database"}
    assert len(nodes) == 3 and all(service["privileged"] for service in nodes.values())
    for name, service in nodes.items():
        assert service["command"][service["command"].index("--advertise") + 1] == f"{name}:4601"
        assert any(volume.startswith(f"{name}:") and name in compose["volumes"] for volume in service["volumes"])
    print("ok: the compose file")


check_chart()
check_options(*check_promises())
check_units()
check_compose()
