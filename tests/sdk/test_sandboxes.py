"""Sandboxes: making, finding, changing, pausing and copying them; objects that outlive them."""

import io
import pickle
import tarfile
import urllib.parse
import urllib.request

import pytest
from atoll import Atoll, Network, UseSecret, errors
from conftest import until


def test_a_life(client):
    with client.sandboxes.create(
        name="life", labels={"task": "7"}, env={"A": "1"}, memory="256MiB", cpu=0.5, workdir="/w", idle="10m", ttl="1h"
    ) as box:
        info = box.info
        assert (info.name, info.labels, info.env["A"], box.name) == ("life", {"task": "7"}, "1", "life")
        assert (info.resources.memory_bytes, info.resources.cpu_millis) == (256 << 20, 500)
        assert (info.idle_timeout_ms, info.workdir, info.state) == (600_000, "/w", "running")
        # The time to live counts from the start of the sandbox, a moment after its creation was requested.
        assert info.created_at_ms + 3_600_000 <= info.expires_at_ms <= info.created_at_ms + 3_660_000
        assert box.run("pwd; echo $A").stdout == "/w\n1\n"
        assert client.sandboxes.get("life").id == box.id
        box.update({"labels": {"task": "8"}, "ttl_ms": None})
        assert (box.info.labels, box.refresh().expires_at_ms) == ({"task": "8"}, None)
        assert box.metrics().memory_limit_bytes == 256 << 20
        assert box.usage().execs == 1
        assert "life" not in repr(client) and client.url in repr(client)
    with pytest.raises(errors.NotFound) as gone:
        box.refresh()
    assert gone.value.code == "sandbox_not_found" and gone.value.request_id and not gone.value.retryable
    assert gone.value.request_id in str(gone.value)
    again = pickle.loads(pickle.dumps(gone.value))
    assert (type(again), again.code, str(again)) == (errors.NotFound, "sandbox_not_found", str(gone.value))
    box.delete()


def test_kept_sandboxes_stay_and_others_go_also_after_an_error(client):
    with client.sandboxes.create(keep=True) as kept:
        pass
    assert client.sandboxes.get(kept.id).info.state == "running"
    client.sandboxes.delete(kept.id)
    with pytest.raises(ZeroDivisionError), client.sandboxes.create() as box:
        1 / 0
    with pytest.raises(errors.NotFound):
        client.sandboxes.get(box.id)


def test_listings_page_by_themselves(client):
    boxes = [client.sandboxes.create(labels={"set": "pages"}) for _ in range(3)]
    listing = client.sandboxes.list(labels={"set": "pages"}, page_size=2)
    assert [one.id for one in listing] == [box.id for box in reversed(boxes)]
    page = listing.page()
    assert len(page.items) == 2 and page.next_cursor
    assert [one.id for one in listing.page(page.next_cursor).items] == [boxes[0].id]
    assert len(listing.all()) == 3
    for box in boxes:
        box.delete()
    assert client.sandboxes.list(labels={"set": "pages"}).all() == []


def test_one_key_one_sandbox(client):
    first = client.sandboxes.create(idempotency_key="make-1")
    assert client.sandboxes.create(idempotency_key="make-1").id == first.id
    first.delete()


def test_errors_say_what_is_wrong_and_what_to_do(client):
    for make, kind, code in [
        (lambda: client.sandboxes.create(image="absent"), errors.NotFound, "image_not_found"),
        (lambda: client.sandboxes.create(name="No Name"), errors.InvalidRequest, "invalid_argument"),
        (lambda: client.sandboxes.get(".."), errors.InvalidRequest, "invalid_argument"),
        (lambda: client.sandboxes.get("a/b"), errors.NotFound, "sandbox_not_found"),
        (lambda: client.request("GET", "/v1/absent"), errors.NotFound, "route_not_found"),
        (lambda: client.request("POST", "/v1/sandboxes", {"nmae": 1}), errors.InvalidRequest, "invalid_argument"),
    ]:
        with pytest.raises(kind) as failed:
            make()
        assert failed.value.code == code and not failed.value.may_have_run
    for text in ["", "5 elephants", "1.5.5s"]:
        with pytest.raises(ValueError):
            client.sandboxes.create(ttl=text)
    with pytest.raises(errors.NotAllowed), Atoll(api_key="atoll_wrong") as stranger:
        stranger.info()
    with pytest.raises(errors.Unreachable) as nobody, Atoll("http://127.0.0.1:9", max_retries=1) as nowhere:
        nowhere.sandboxes.create()
    assert nobody.value.retryable and not nobody.value.may_have_run and nobody.value.hint


def test_snapshots_forks_and_ways_back(client):
    with client.sandboxes.create() as box:
        box.files.write("/root/a", "1")
        snapshot = box.snapshot("sdk-step", comment="first")
        assert snapshot.tags == ["sdk-step:latest"] and client.snapshots.get("sdk-step").id == snapshot.id
        point = box.checkpoint("before")
        box.files.write("/root/a", "2")
        changed = {change.path: change.kind for change in box.diff(point.checkpoint).changes}
        assert changed["/root/a"] == "changed"
        first, second = box.fork(2, labels={"copy": "yes"})
        assert first.files.read("/root/a") == second.files.read("/root/a") == "2"
        old = box.fork(at=snapshot)[0]
        assert old.files.read("/root/a") == "1"
        for copy in (first, second, old):
            copy.delete()
        assert box.rollback(point.checkpoint).id == point.id and box.files.read("/root/a") == "1"
        assert [one.id for one in box.checkpoints()] == [point.id]
        client.snapshots.tag(snapshot.id, "sdk-step:two")
        with client.sandboxes.create(snapshot="sdk-step:two") as new:
            assert new.files.read("/root/a") == "1"
        assert snapshot.id in [one.id for one in client.snapshots.list(sandbox=box.id)]
    client.snapshots.delete(snapshot.id)


def test_pause_and_wake(own):
    own.run("echo kept > /root/f")
    assert own.pause().state == "paused" and own.info.paused == "frozen"
    assert own.run("cat /root/f").stdout == "kept\n"
    assert own.pause("filesystem").paused == "filesystem"
    assert own.resume().state == "running" and own.files.read("/root/f") == "kept\n"


def test_ports(client, own):
    server = own.start("mkdir -p /srv; echo hello > /srv/index.html; exec python3 -m http.server -d /srv 8000")
    until(lambda: any(port.port == 8000 for port in own.ports.list()))
    opened = own.ports.open(8000, ttl="10m", name="test")
    assert opened.token and [one.id for one in own.ports.opened()] == [opened.access.id]
    # Browsers resolve names below localhost to this machine, but not every resolver does: use the server's address.
    link = urllib.parse.urlsplit(opened.link)
    request = urllib.request.Request(f"{client.url}{link.path}?{link.query}", headers={"Host": link.netloc})
    with urllib.request.urlopen(request) as answer:
        assert answer.read() == b"hello\n"
    assert own.ports.url(8000, ttl="1m").startswith("http")
    own.ports.close(opened.access.id)
    assert opened.access.id not in [one.id for one in own.ports.opened()]
    server.kill()


def test_networks_and_secrets(client):
    client.secrets.put("SDK_KEY", "v4lue", hosts=["api.example.com"], note="for a test")
    secret = client.secrets.get("SDK_KEY")
    assert secret.scope.hosts == ["api.example.com"] and "v4lue" not in repr(secret)
    network = Network(allow=["*.example.org:443", "10.1.2.3:5432"], deny=["bad.example.org"])
    with client.sandboxes.create(network=network, secrets=["SDK_KEY"]) as box:
        policy = box.info.egress
        assert [(rule.action, rule.domain, rule.cidr) for rule in policy.rules] == [
            ("deny", "bad.example.org", None),
            ("allow", "*.example.org", None),
            ("allow", None, "10.1.2.3"),
            ("allow", "api.example.com", None),
        ]
        assert policy.internet == "rules" and policy.inject[0].hosts == ["api.example.com"]
        assert "v4lue" not in box.run("env").stdout and box.run("printenv SDK_KEY").ok
        box.run("getent hosts nowhere.example.net")
        assert box.network().internet == "rules"
        box.update(network=Network(internet=True))
        assert box.info.egress.internet == "on"
    with client.sandboxes.create(network=Network(), secrets=[UseSecret("SDK_KEY", ["api.example.com"], prefix="sk-")]) as box:
        assert box.run("printenv SDK_KEY").stdout.startswith("sk-")
    assert client.secrets.uses(secret="SDK_KEY") == []
    client.secrets.delete("SDK_KEY")
    assert "SDK_KEY" not in [one.name for one in client.secrets.list()]


def test_volumes(client):
    volume = client.volumes.create("sdk-data", "64MiB")
    client.volumes.write("sdk-data", "/in/a", "before")
    with client.sandboxes.create(volumes={"/data": "sdk-data"}) as box:
        assert box.files.read("/data/in/a") == "before"
        box.files.write("/data/b", "within")
    assert client.volumes.read_bytes("sdk-data", "/b") == b"within"
    with client.sandboxes.create(volumes={"/mine": "sdk-data/users/me"}) as box:
        assert box.run("ls -A /mine; touch /mine/file").stdout == ""
        assert box.info.volumes[0].subpath == "users/me"
    assert [entry.path for entry in client.volumes.list_files("sdk-data", "users/me")] == ["file"]
    with client.sandboxes.create(volumes={"/data": "sdk-data:ro"}) as box:
        assert not box.run("touch /data/c").ok
    assert "b" in [entry.path for entry in client.volumes.list_files("sdk-data")]
    client.volumes.remove("sdk-data", "/b")
    copy = client.volumes.create("sdk-copy", copy_of="sdk-data")
    assert {volume.id, copy.id} <= {one.id for one in client.volumes.list()}
    for name in ("sdk-data", "sdk-copy"):
        client.volumes.delete(name)


def test_templates_and_images(client, tmp_path):
    (tmp_path / "app.txt").write_text("from the context")
    events = []
    built = client.templates.build(
        "sdk-app",
        dockerfile="FROM host\nCOPY app.txt /app.txt\nRUN cat /app.txt > /copied\nENV A=b\n",
        context=str(tmp_path),
        on_log=events.append,
    )
    assert built.name == "sdk-app" and {event.type for event in events} >= {"step", "end"}
    with client.sandboxes.create(template="sdk-app") as box:
        assert box.run("cat /copied; echo $A").stdout == "from the contextb\n"
    with pytest.raises(errors.ServerError) as failed:
        client.templates.build("sdk-bad", steps=[{"from": "host"}, {"run": "echo why >&2; exit 9"}])
    assert failed.value.code == "build_step_failed" and "why" in str(failed.value)
    assert "sdk-app" in [one.name for one in client.templates.list()]
    assert client.templates.create({"name": "sdk-plain", "image": "host"}).version == 1
    assert client.templates.create({"name": "sdk-plain", "image": "host"}).version == 2
    assert client.templates.tag("sdk-plain", "stable", 1).version == client.templates.get("sdk-plain:stable").version == 1
    assert client.templates.tag("sdk-plain", "stable").version == 2
    assert [one.tag for one in client.templates.tags("sdk-plain")] == ["stable"]
    client.templates.untag("sdk-plain", "stable")
    assert client.templates.tags("sdk-plain") == []
    for name in ("sdk-app", "sdk-plain"):
        client.templates.delete(name)
    with pytest.raises(errors.AtollError):
        client.images.pull("127.0.0.1:9/absent:1")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"), io.BytesIO())
    archive.seek(0)
    assert client.images.import_tar(archive, "sdk-image").names
    assert "sdk-image" in [name for image in client.images.list() for name in image.names]
    client.images.remove("sdk-image")


def test_the_server(client):
    info = client.info()
    assert "container" in info.isolation and info.version
    assert client.usage()[0].execs > 0
    assert client.request("GET", "/healthz")["status"]
    hurried = client.with_options(timeout=30, max_retries=0)
    assert hurried.info().installation == info.installation
