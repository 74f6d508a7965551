"""Virtual machines that go from node to node with their memory."""

import os
import pathlib
import subprocess

import pytest

from cluster import Cluster, until
from images import Image, layer, shared, shell

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

CACHE = pathlib.Path("/var/cache/atoll-tests")
# Emulated machines are slow, and both processors may be busy.
PATIENCE = 900
# It counts in a variable of a shell: nothing but its memory knows how far.
COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done"


@pytest.fixture
def cluster():
    packages = sorted(CACHE.glob("linux-image-*.deb"))
    assert packages, f"no linux-image-*.deb in {CACHE} (scripts/install-deps fetches it)"
    machines = CACHE / "tested-machines"
    setup = [os.environ["ATOLL_BIN"], "setup", "microvm", "--package", packages[-1], "--microvm-dir", machines]
    subprocess.run(setup, check=True, stdout=subprocess.DEVNULL)
    cluster = Cluster("a", "b", objects=True)
    # Emulated machines take the processors from the servers for a while.
    cluster.lease = "15s"
    for node in cluster.nodes:
        node.args = ("--microvm-dir", machines)
    with cluster:
        yield cluster


def seen(node, box):
    status, answer = node.call("GET", f"/v1/sandboxes/{box}")
    return answer if status == 200 else {}


def counted(node, box, execution):
    """How far it has counted: its output is every number once, in order, whichever node wrote it down."""
    lines = node.cli("logs", box, execution).stdout.decode().splitlines()
    assert lines == [str(number) for number in range(1, len(lines) + 1)], lines
    return len(lines)


def goes_on(node, box, execution, boot):
    """Checks that it is awake in the same boot and counts on."""
    found = seen(node, box)
    assert (found["state"], found["boot_id"], found.get("reason")) == ("running", boot, None)
    assert node.ok("GET", f"/v1/sandboxes/{box}/execs/{execution}")["state"] == "running"
    before = counted(node, box, execution)
    until("it counts on", lambda: counted(node, box, execution) > before, PATIENCE)


def machine(node):
    """Makes a machine, `box`, and lets it count; gives its record and the execution that counts."""
    sleep = {"usr/bin/sleep": pathlib.Path("/usr/bin/sleep").read_bytes()}
    image = Image("reg.test/machine:1", shell(), layer(sleep))
    image.load(node)
    shared(node, image)
    spec = {"image": image.name, "isolation": "microvm", "resources": {"memory_bytes": 128 << 20, "disk_bytes": 256 << 20}}
    made = node.ok("POST", "/v1/sandboxes", {"name": "box", "node_labels": {"node": node.name}, **spec}, timeout=PATIENCE)
    counting = node.ok("POST", "/v1/sandboxes/box/execs", {"argv": ["sh", "-c", COUNT]}, timeout=PATIENCE)["exec"]["id"]
    until("it counts", lambda: counted(node, "box", counting) > 5, PATIENCE)
    return made, counting


def test_a_machine_goes_on_elsewhere_with_its_memory(cluster):
    a, b = cluster.nodes
    made, counting = machine(a)
    boot = made["boot_id"]
    # The node is drained while it runs: it moves, and what runs in it does not end.
    b.ok("PATCH", "/v1/nodes/a", {"draining": True})
    until("it has gone", lambda: cluster.node_of("box") == "b", PATIENCE)
    until("it is awake", lambda: seen(b, "box").get("state") == "running", PATIENCE)
    goes_on(a, "box", counting, boot)
    a.ok("PATCH", "/v1/nodes/a", {"draining": False})
    # Its node dies while it is on disk with its memory.
    b.ok("POST", "/v1/sandboxes/box/pause", {"mode": "memory"}, timeout=PATIENCE)
    until("it is kept", lambda: seen(b, "box").get("kept_at_ms"), PATIENCE)
    reached = counted(b, "box", counting)
    b.kill()
    found = until("it is another node's", lambda: seen(a, "box"), PATIENCE)
    assert (found["state"], found["paused"]) == ("paused", "memory")
    assert counted(a, "box", counting) == reached, "its output is here, without waking it"
    a.ok("POST", "/v1/sandboxes/box/resume", {}, timeout=PATIENCE)
    goes_on(a, "box", counting, boot)
    b.start()
    # Memory in the bucket that is not what it was is not used: it is refused, and the sandbox stays as it is.
    a.ok("POST", "/v1/sandboxes/box/pause", {"mode": "memory"}, timeout=PATIENCE)
    until("it is kept", lambda: seen(a, "box").get("kept_at_ms"), PATIENCE)
    names = [name for name in cluster.bucket.of(made["id"]) if not name.endswith("/index")]
    content = {name: cluster.bucket.request("GET", name)[1] for name in names}
    a.kill()
    until("it is another node's", lambda: seen(b, "box"), PATIENCE)
    for name in names:
        cluster.bucket.request("PUT", name, b"another")
    status, answer = b.call("POST", "/v1/sandboxes/box/resume", {}, timeout=PATIENCE)
    assert answer["code"] == "digest_mismatch", (status, answer)
    assert (seen(b, "box")["state"], seen(b, "box")["paused"]) == ("paused", "memory")
    for name in names:
        cluster.bucket.request("PUT", name, content[name])
    b.ok("POST", "/v1/sandboxes/box/resume", {}, timeout=PATIENCE)
    goes_on(b, "box", counting, boot)
    a.start()


def test_a_machine_whose_node_dies_as_it_wakes_does_not_go_on_from_its_copy(cluster):
    a, b = cluster.nodes
    made, counting = machine(a)
    a.ok("POST", "/v1/sandboxes/box/pause", {"mode": "memory"}, timeout=PATIENCE)
    until("it is kept", lambda: seen(a, "box").get("kept_at_ms"), PATIENCE)
    a.stop()
    # The machine has gone on, and that is not recorded.
    a.failpoints = "engine.wake.started=kill"
    a.start()
    b.call("POST", "/v1/sandboxes/box/resume", {}, timeout=PATIENCE)
    a.process.wait(timeout=PATIENCE)
    found = until("it is another node's", lambda: seen(b, "box"), PATIENCE)
    assert (found["state"], found["paused"]) == ("paused", "filesystem")
    assert "without its memory" in found["reason"]
    ended = until("what ran has ended", lambda: b.ok("GET", f"/v1/sandboxes/box/execs/{counting}").get("exit"), PATIENCE)
    assert ended["reason"] == "sandbox_paused"
    b.ok("POST", "/v1/sandboxes/box/resume", {}, timeout=PATIENCE)
    woken = seen(b, "box")
    assert woken["state"] == "running" and woken["boot_id"] != made["boot_id"]
    assert woken["reason"].startswith("woken without its memory")
    a.failpoints = ""
    a.start()
