"""Three nodes: each of them answers requests for what any of them has."""

import hashlib
import json
import os
import threading

import pytest
from e2b import Sandbox

from cluster import Cluster, until


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def box(cluster):
    """A sandbox on the first node."""
    made = cluster.nodes[0].make(name=f"box-{os.urandom(3).hex()}")
    yield made["name"]
    cluster.nodes[0].call("DELETE", f"/v1/sandboxes/{made['name']}")


def execute(node, box, *argv):
    return node.ok("POST", f"/v1/sandboxes/{box}/execs", {"argv": argv, "wait_ms": 30000})["exec"]


def test_servers_that_share_a_database_are_a_cluster(cluster):
    listed = cluster.nodes[1].ok("GET", "/v1/nodes")["items"]
    assert [(node["name"], node["state"], node["is_this"]) for node in listed] == [
        ("a", "ready", False),
        ("b", "ready", True),
        ("c", "ready", False),
    ]
    assert b"NAME" in cluster.nodes[2].cli("node", "ls").stdout


def test_a_sandbox_is_seen_and_used_from_everywhere(cluster, box):
    a, b, c = cluster.nodes
    assert cluster.node_of(box) == "a"
    whole = a.ok("GET", f"/v1/sandboxes/{box}")
    for node in (b, c):
        seen = node.ok("GET", f"/v1/sandboxes/{box}")
        assert seen["id"] == whole["id"] and seen["state"] == "running"
        assert whole["id"] in [one["id"] for one in node.ok("GET", "/v1/sandboxes")["items"]]
        assert execute(node, box, "true")["exit"]["code"] == 0
    assert len(a.ok("GET", f"/v1/sandboxes/{box}/execs")["items"]) == 2
    status, answer = b.call("POST", "/v1/sandboxes", {"name": box})
    assert (status, answer["code"]) == (409, "name_taken")
    c.ok("PATCH", f"/v1/sandboxes/{box}", {"labels": {"x": "y"}})
    assert a.ok("GET", f"/v1/sandboxes/{box}")["labels"] == {"x": "y"}


def test_what_is_nowhere_is_not_found(cluster):
    for path in ("/v1/sandboxes/none", "/v1/agents/none", "/v1/snapshots/none", "/v1/volumes/none"):
        status, answer = cluster.nodes[1].call("GET", path)
        assert status == 404 and answer["code"].endswith("_not_found"), (path, answer)


def test_output_and_standard_input_travel_over_web_sockets(cluster, box):
    _, b, c = cluster.nodes
    done = b.cli("exec", box, "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    text = os.urandom(300_000).hex().encode()
    done = c.cli("exec", "-i", box, "--", "sha256sum", input=text)
    assert done.stdout.split()[0].decode() == hashlib.sha256(text).hexdigest()


def test_events_are_streamed(cluster, box):
    _, b, c = cluster.nodes
    made = b.ok("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["sh", "-c", "for n in 1 2 3; do echo $n; sleep 0.2; done"]})["exec"]
    status, headers, body = c.raw("GET", f"/v1/sandboxes/{box}/execs/{made['id']}/events")
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    assert b"exit" in body


def test_files_of_any_size(cluster, box):
    _, b, c = cluster.nodes
    content = os.urandom(24 << 20)
    status, _, _ = b.raw("PUT", f"/v1/sandboxes/{box}/files?path=/tmp/x", content, headers={"Content-Type": "application/octet-stream"})
    assert status == 200
    status, _, back = c.raw("GET", f"/v1/sandboxes/{box}/files?path=/tmp/x")
    assert status == 200 and back == content


def test_ports_by_host_name_and_by_header(cluster, box):
    a, b, c = cluster.nodes
    a.ok("POST", f"/v1/sandboxes/{box}/execs", {"shell": "cd /etc && exec python3 -m http.server 8000"})
    port = b.listen.rsplit(":", 1)[1]

    def page():
        status, _, text = b.raw("GET", "/hostname", headers={"Host": f"8000-{box}.localhost:{port}", "X-API-Key": cluster.key})
        return status == 200 and text

    assert until("the page is there", page)
    status, _, _ = c.raw("GET", "/hostname", headers={"X-Atoll-Sandbox": box, "X-Atoll-Port": "8000"})
    assert status == 200
    stranger = c.raw("GET", "/hostname", key="x", headers={"X-Atoll-Sandbox": box, "X-Atoll-Port": "8000"})
    assert stranger[0] == 401


def test_an_idempotency_key_holds_on_every_node(cluster):
    a, b, _ = cluster.nodes
    headers = {"Idempotency-Key": os.urandom(4).hex()}
    made = [node.ok("POST", "/v1/sandboxes", {"labels": {"by": "key"}}, headers=headers)["id"] for node in (a, b, a)]
    assert len(set(made)) == 1
    a.ok("GET", f"/v1/sandboxes/{made[0]}")
    a.raw("DELETE", f"/v1/sandboxes/{made[0]}")


def test_snapshots_and_forks_follow_the_sandbox(cluster, box):
    a, b, c = cluster.nodes
    execute(b, box, "sh", "-c", "echo kept > /root/kept")
    snapshot = c.ok("POST", f"/v1/sandboxes/{box}/snapshots", {"comment": "of the cluster"})
    assert b.ok("GET", f"/v1/snapshots/{snapshot['id']}")["id"] == snapshot["id"]
    # The snapshot's data is on the first node, so the sandbox is made there.
    made = c.ok("POST", "/v1/sandboxes", {"snapshot": snapshot["id"]})
    assert cluster.node_of(made["id"]) == "a"
    assert b.cli("exec", made["id"], "--", "cat", "/root/kept").stdout == b"kept\n"
    c.raw("DELETE", f"/v1/sandboxes/{made['id']}")
    assert b.raw("DELETE", f"/v1/snapshots/{snapshot['id']}")[0] < 300


def test_e2b_clients_reach_it_at_any_node(cluster):
    a, b, c = cluster.nodes
    key = a.cli("key", "create", "e2b", "--scope", "admin", "--for", "e2b").stdout.decode().strip()
    at = lambda node: {"api_key": key, "api_url": f"{node.url}/e2b", "sandbox_url": node.url}
    until("the key is known", lambda: c.raw("GET", "/e2b/v2/sandboxes", headers={"X-API-Key": key})[0] == 200)
    until("the key is known", lambda: b.raw("GET", "/e2b/v2/sandboxes", headers={"X-API-Key": key})[0] == 200)
    made = Sandbox.create(timeout=300, **at(a))
    there = Sandbox.connect(made.sandbox_id, **at(b))
    lines = []
    done = there.commands.run("for n in 1 2 3; do echo $n; done", on_stdout=lines.append)
    assert done.exit_code == 0 and "".join(lines) == "1\n2\n3\n"
    there.files.write("/tmp/hello.txt", "hello")
    again = Sandbox.connect(made.sandbox_id, **at(c))
    assert again.files.read("/tmp/hello.txt") == "hello"
    assert again.kill()
    assert not made.is_running()


def test_a_deleted_key_is_refused_everywhere_and_what_it_opened_ends(cluster, box):
    a, b, c = cluster.nodes
    made = a.ok("POST", "/v1/keys", {"name": "short-lived", "scope": "exec"})
    for node in (b, c):
        until("the key is known", lambda: node.raw("GET", "/v1/sandboxes", key=made["secret"])[0] == 200)
    stream = b.ok("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["sleep", "600"]}, key=made["secret"])["exec"]
    ended = threading.Event()

    def follow():
        try:
            b.raw("GET", f"/v1/sandboxes/{box}/execs/{stream['id']}/events", key=made["secret"], timeout=110)
        except OSError:
            pass
        except Exception:
            pass
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert not ended.wait(0.5), "it follows"
    c.raw("DELETE", f"/v1/keys/{made['key']['id']}")
    for node in cluster.nodes:
        until("it is refused", lambda: node.raw("GET", f"/v1/sandboxes/{box}", key=made["secret"])[0] == 401)
    assert ended.wait(60), "what it had opened ended"
    thread.join()


def test_a_secret_is_known_everywhere(cluster):
    a, b, _ = cluster.nodes
    a.ok("PUT", "/v1/secrets/shared", {"value": "a value", "scope": {"hosts": ["example.com"]}})
    until("it is known", lambda: b.raw("GET", "/v1/secrets/shared")[0] == 200)
    b.raw("DELETE", "/v1/secrets/shared")
    until("it is gone", lambda: a.raw("GET", "/v1/secrets/shared")[0] == 404)


def test_a_client_cannot_pass_for_a_node(cluster, box):
    _, b, _ = cluster.nodes
    headers = {"atoll-node-client": "10.9.8.7:1", "atoll-node-client-encrypted": "1", "atoll-node-not-here": "1"}
    status, answered, _ = b.raw("GET", f"/v1/sandboxes/{box}", headers=headers)
    assert status == 200 and "atoll-node-not-here" not in answered
    # The node still passes the request on: the client's headers do not make it look as if another node had done so.
    assert b.raw("GET", f"/v1/sandboxes/{box}", key="wrong", headers=headers)[0] == 401


def test_a_body_that_is_too_large_is_refused_as_ever(cluster, box):
    a, b, _ = cluster.nodes
    body = json.dumps({"argv": ["true"], "env": {"X": "x" * (9 << 20)}}).encode()
    here, there = (node.call("POST", f"/v1/sandboxes/{box}/execs", body) for node in (a, b))
    assert here[0] == there[0] == 413
    assert execute(b, box, "true")["exit"]["code"] == 0


def test_a_draining_node_gives_new_sandboxes_to_others(cluster):
    a, b, c = cluster.nodes
    a.cli("node", "drain", "b")
    until("it drains", lambda: [n["state"] for n in b.ok("GET", "/v1/nodes")["items"]][1] == "draining")

    def elsewhere():
        made = b.ok("POST", "/v1/sandboxes", {})
        node = cluster.node_of(made["id"])
        c.raw("DELETE", f"/v1/sandboxes/{made['id']}")
        return node in ("a", "c")

    until("another makes it", elsewhere)
    a.cli("node", "undrain", "b")


def test_a_node_that_lives_is_not_removed(cluster):
    status, answer = cluster.nodes[0].call("DELETE", "/v1/nodes/b")
    assert (status, answer["code"]) == (409, "invalid_state")
    assert cluster.nodes[0].call("DELETE", "/v1/nodes/none")[1]["code"] == "node_not_found"
