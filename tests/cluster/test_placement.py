"""Which node makes a sandbox, and that what a node remembers of other nodes is never wrong for long."""

import io
import json
import os
import tarfile
import threading
import urllib.request

import pytest
from e2b import Sandbox

from cluster import Cluster, until


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster()
    cluster.nodes[1].args = ("--node-label", "zone=west")
    cluster.nodes[2].args = ("--sandboxes-max", "2")
    with cluster:
        yield cluster


def remove(node, *boxes):
    for box in boxes:
        node.raw("DELETE", f"/v1/sandboxes/{box}")


def test_a_name_that_is_on_another_node_now_is_found_there(cluster):
    a, b, c = cluster.nodes
    for number in range(3):
        first = a.make(name="wanders")["id"]
        # Both other nodes remember where it is.
        assert all(node.ok("GET", "/v1/sandboxes/wanders")["id"] == first for node in (b, c))
        remove(a, first)
        second = b.make(name="wanders")["id"]
        assert cluster.node_of(second) == "b"
        assert all(node.ok("GET", "/v1/sandboxes/wanders")["id"] == second for node in (c, a, b))
        # A request with a body, and one that upgrades to another protocol.
        done = c.ok("POST", "/v1/sandboxes/wanders/execs", {"argv": ["echo", "here"], "wait_ms": 30000})
        assert done["exec"]["exit"]["code"] == 0
        assert c.cli("exec", "wanders", "--", "echo", "on", "b").stdout == b"on b\n"
        remove(c, "wanders")
        assert [node.call("GET", "/v1/sandboxes/wanders")[1]["code"] for node in (a, b, c)] == ["sandbox_not_found"] * 3
        # Asks b and c, which last saw the name on b.
        third = a.make(name="wanders")["id"]
        content = os.urandom(1 << 20)
        headers = {"Content-Type": "application/octet-stream"}
        assert c.raw("PUT", "/v1/sandboxes/wanders/files?path=/tmp/x", content, headers=headers)[0] == 200
        assert b.raw("GET", "/v1/sandboxes/wanders/files?path=/tmp/x")[2] == content
        remove(a, third)


def test_a_full_node_gives_what_it_is_asked_for_to_others(cluster):
    a, _, c = cluster.nodes
    made = [c.make(name=f"full-{number}")["id"] for number in range(2)]
    made += [c.ok("POST", "/v1/sandboxes", {"name": f"full-{number}"})["id"] for number in (2, 3)]
    nodes = [cluster.node_of(box) for box in made]
    assert nodes[:2] == ["c", "c"] and not {"c"} & set(nodes[2:]), nodes
    # The full node still answers for sandboxes of other nodes.
    assert c.call("GET", f"/v1/sandboxes/{made[3]}")[0] == 200
    remove(a, *made)


def test_wishes_are_demands(cluster):
    a, b, _ = cluster.nodes
    made = a.ok("POST", "/v1/sandboxes", {"node_labels": {"zone": "west"}})["id"]
    assert cluster.node_of(made) == "b"
    remove(b, made)
    status, answer = a.call("POST", "/v1/sandboxes", {"node_labels": {"zone": "east"}})
    assert (status, answer["code"]) == (503, "node_unavailable"), answer
    status, answer = a.call("POST", "/v1/sandboxes", {"node_labels": {"zone": "not a word"}})
    assert (status, answer["code"]) == (400, "invalid_argument") and "node_labels" in str(answer), answer


def test_an_image_is_where_it_is(cluster):
    a, b, _ = cluster.nodes
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        name = tarfile.TarInfo("etc/whose")
        name.size = 5
        tar.addfile(name, io.BytesIO(b"ours\n"))
    b.cli("image", "import", "-", "only-here", input=archive.getvalue())

    def made():
        status, answer = a.call("POST", "/v1/sandboxes", {"image": "only-here"})
        assert status == 201 or answer["code"] == "image_not_found", answer
        return status == 201 and answer["id"]

    box = until("the others know of it", made)
    assert cluster.node_of(box) == "b"
    assert a.raw("GET", f"/v1/sandboxes/{box}/files?path=/etc/whose")[2] == b"ours\n"
    remove(a, box)
    status, answer = a.call("POST", "/v1/sandboxes", {"image": "nowhere"})
    assert (status, answer["code"]) == (404, "image_not_found"), answer


def test_other_protocols_profit_and_what_belongs_together_stays_together(cluster):
    a, b, c = cluster.nodes
    key = a.cli("key", "create", "e2b", "--scope", "admin", "--for", "e2b").stdout.decode().strip()
    until("the key is known", lambda: b.raw("GET", "/e2b/v2/sandboxes", headers={"X-API-Key": key})[0] == 200)
    b.cli("node", "drain", "b")
    until("it drains", lambda: [n["state"] for n in b.ok("GET", "/v1/nodes")["items"]][1] == "draining")
    try:
        made = Sandbox.create(timeout=300, api_key=key, api_url=f"{b.url}/e2b", sandbox_url=b.url)
        assert cluster.node_of(made.sandbox_id) in ("a", "c")
        assert made.commands.run("echo here").stdout == "here\n"
        assert made.kill()
        # A draining node does not pass a batch on; each entry says why it was refused.
        batch = b.ok("POST", "/v1/sandboxes/batch", {"sandboxes": [{}, {}]})["results"]
        assert [one["error"]["code"] for one in batch] == ["node_unavailable"] * 2
    finally:
        a.cli("node", "undrain", "b")
    until("it takes some again", lambda: [n["state"] for n in b.ok("GET", "/v1/nodes")["items"]][1] == "ready")
    # Only the node with a snapshot makes sandboxes from it; while that node drains, they are refused.
    source = a.make()["id"]
    snapshot = c.ok("POST", f"/v1/sandboxes/{source}/snapshots", {})["id"]
    a.cli("node", "drain", "a")
    until("it drains", lambda: [n["state"] for n in a.ok("GET", "/v1/nodes")["items"]][0] == "draining")
    for node in (a, c):
        status, answer = node.call("POST", "/v1/sandboxes", {"snapshot": snapshot})
        assert (status, answer["code"]) == (503, "node_unavailable"), answer
    a.cli("node", "undrain", "a")
    until("it takes some again", lambda: [n["state"] for n in a.ok("GET", "/v1/nodes")["items"]][0] == "ready")
    remove(a, source)
    a.raw("DELETE", f"/v1/snapshots/{snapshot}")


def test_creations_that_may_be_repeated_are_given_to_others_too(cluster):
    a, b, c = cluster.nodes
    runloop = {"x-request-id": f"r-{os.urandom(4).hex()}"}
    e2b = {"Idempotency-Key": f"e-{os.urandom(4).hex()}", "X-API-Key": a.cli("key", "create", "e", "--scope", "admin", "--for", "e2b").stdout.decode().strip()}
    until("the key is known", lambda: b.raw("GET", "/e2b/v2/sandboxes", headers=e2b)[0] == 200)
    until("the key is known", lambda: c.raw("GET", "/e2b/v2/sandboxes", headers=e2b)[0] == 200)
    ways = [
        ("/runloop/v1/devboxes", {"name": "again"}, runloop, lambda made: made["id"].replace("dbx_", "sb_")),
        ("/e2b/v2/sandboxes", {"templateID": "base"}, e2b, lambda made: made["sandboxID"]),
    ]
    b.cli("node", "drain", "b")
    until("it drains", lambda: [n["state"] for n in b.ok("GET", "/v1/nodes")["items"]][1] == "draining")
    for path, body, headers, identity in ways:
        answers = [node.call("POST", path, body, headers=headers) for node in (b, a, c, b)]
        assert all(status < 300 for status, _ in answers), answers
        made = {identity(answer) for _, answer in answers}
        assert len(made) == 1, answers
        found = b.ok("GET", "/v1/sandboxes")["items"]
        assert len(found) == 1 and cluster.node_of(found[0]["id"]) in ("a", "c"), found
        # Another request under the same key is refused.
        status, answer = b.call("POST", path, {**body, "metadata": {"x": "y"}}, headers=headers)
        assert status in (400, 409), (status, answer)
        remove(c, found[0]["id"])
    # A command for a devbox of another node is sent three times, and runs once.
    devbox = a.ok("POST", "/runloop/v1/devboxes", {"name": "works"})["id"]
    again = {"x-request-id": f"x-{os.urandom(4).hex()}"}
    ran = [node.call("POST", f"/runloop/v1/devboxes/{devbox}/execute_async", {"command": "echo x >> /tmp/x"}, headers=again) for node in (b, c, a)]
    assert all(status < 300 for status, _ in ran) and len({answer["execution_id"] for _, answer in ran}) == 1, ran
    a.cli("node", "undrain", "b")
    until("it takes some again", lambda: [n["state"] for n in b.ok("GET", "/v1/nodes")["items"]][1] == "ready")
    remove(a, *[box["id"] for box in a.ok("GET", "/v1/sandboxes")["items"]])


def test_agents_are_listed_from_everywhere(cluster):
    a, b, _ = cluster.nodes
    for node, name in ((a, "first"), (b, "second")):
        box = node.make(name=f"home-{name}")["id"]
        node.ok("POST", "/v1/agents", {"name": name, "sandbox": box, "argv": ["cat"]})
    for node in cluster.nodes:
        assert [agent["name"] for agent in node.ok("GET", "/v1/agents")["items"]] == ["first", "second"]
    remove(a, "home-first", "home-second")


def test_events_of_all_nodes_come_in_one_stream(cluster):
    a, b, c = cluster.nodes
    seen, ended = [], threading.Event()

    def read():
        request = urllib.request.Request(f"{c.url}/v1/events?kind=created", headers={"Authorization": f"Bearer {cluster.key}"})
        with urllib.request.urlopen(request, timeout=100) as stream:
            for line in stream:
                if line.startswith(b"data:"):
                    seen.append(json.loads(line[5:]).get("sandbox"))
                if ended.is_set():
                    return

    thread = threading.Thread(target=read)
    thread.start()
    made = []

    def both():
        # The stream shows only later events, so make sandboxes until it has begun.
        made.extend(node.make()["id"] for node in (a, b))
        return {cluster.node_of(box) for box in made if box in seen} == {"a", "b"}

    until("events of both", both, 60)
    ended.set()
    made.append(a.ok("POST", "/v1/sandboxes", {})["id"])
    thread.join()
    remove(a, *made)


def test_the_doctor_looks_at_all_nodes(cluster):
    _, _, c = cluster.nodes
    checks = c.ok("GET", "/v1/doctor/cluster")["checks"]
    names = [check["name"] for check in checks]
    for node in "abc":
        for what in ("lease", "clock", "vault", "schema"):
            assert f"{node}: {what}" in names, names
        assert names.count(f"{node}: reach") == 2, names
    assert "versions" in names and {check["status"] for check in checks} == {"ok"}, checks
    assert c.cli("doctor", "--cluster").returncode == 0
    reader = c.ok("POST", "/v1/keys", {"name": "reader", "scope": "read"})
    assert c.raw("GET", "/v1/doctor/cluster", key=reader["secret"])[0] == 403
