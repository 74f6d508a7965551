"""Sandboxes that go from node to node through the object store: when their node dies, and when it is drained."""

import json
import os
import signal
import threading
import time

import pytest

from cluster import Cluster, until

FILESYSTEM = {"mode": "filesystem"}


@pytest.fixture
def cluster():
    with Cluster("a", "b", objects=True) as cluster:
        yield cluster


def run(node, box, text):
    """Runs a command that must succeed; returns its output."""
    made = node.ok("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["sh", "-c", text], "wait_ms": 60000})
    assert made["exec"]["exit"]["code"] == 0, made
    return output(node, box, made["exec"]["id"])


def output(node, box, execution):
    """The output of an exec, as the server keeps it."""
    return node.cli("logs", box, execution).stdout.decode()


def seen(node, box):
    status, answer = node.call("GET", f"/v1/sandboxes/{box}")
    return answer if status == 200 else {}


def hibernate(node, box):
    """Hibernates a sandbox and waits until its copy is in the object store."""
    node.ok("POST", f"/v1/sandboxes/{box}/pause", FILESYSTEM)
    return until("it is kept", lambda: seen(node, box).get("kept_at_ms") and seen(node, box))


def work(node, name):
    """Makes a sandbox with files and a command that has ended; returns its id, a digest and the exec's id."""
    made = node.make(name=name, labels={"of": "test"})
    digest = run(node, name, "head -c 9M /dev/urandom > /root/big; echo kept > /root/note; sha256sum < /root/big")
    last = node.ok("GET", f"/v1/sandboxes/{name}/execs")["items"][0]["id"]
    return made["id"], digest, last


def as_it_was(node, name, id, digest, last):
    """Checks that a sandbox has the id, name, files and history that it had."""
    found = node.ok("GET", f"/v1/sandboxes/{name}")
    assert (found["id"], found["labels"]) == (id, {"of": "test"})
    assert output(node, name, last) == digest
    assert run(node, name, "cat /root/note; sha256sum < /root/big") == "kept\n" + digest
    assert node.ok("GET", f"/v1/sandboxes/{name}/execs/{last}")["state"] == "exited"


def test_a_hibernated_sandbox_wakes_elsewhere_when_its_node_dies(cluster):
    a, b = cluster.nodes
    id, digest, last = work(a, "box")
    before = seen(a, "box")
    assert "kept_at_ms" not in before
    hibernate(a, "box")
    # A sandbox with a volume stays on its node, because the volume is there.
    a.ok("POST", "/v1/volumes", {"name": "vol"})
    a.ok("POST", "/v1/sandboxes", {"name": "bound", "volumes": [{"volume": "vol", "path": "/vol"}]})
    a.ok("POST", "/v1/sandboxes/bound/pause", FILESYSTEM)
    a.kill()
    found = until("it is another node's", lambda: seen(b, "box"))
    assert (found["id"], found["state"], found["paused"]) == (id, "paused", "filesystem")
    assert output(b, "box", last) == digest, "without waking it"
    assert seen(b, "box")["state"] == "paused"
    as_it_was(b, "box", id, digest, last)
    assert cluster.node_of("box") == "b" and seen(b, "box")["boot_id"] != before["boot_id"]
    status, answer = b.call("GET", "/v1/sandboxes/bound")
    assert (status, answer["code"]) == (503, "node_unavailable"), "its volume is there"
    run(b, "box", "echo more >> /root/note")
    # The old node comes back and no longer has the sandbox; later changes, made on b, are there.
    a.start()
    assert run(a, "box", "cat /root/note") == "kept\nmore\n"
    assert cluster.node_of("box") == "b" and cluster.node_of("bound") == "a"
    hibernate(b, "box")
    assert a.ok("DELETE", "/v1/sandboxes/box") is None
    until("its objects go with it", lambda: not cluster.bucket.of(id))


@pytest.mark.long
def test_what_is_not_in_the_object_store_waits_for_its_node(cluster):
    a, b = cluster.nodes
    id, digest, last = work(a, "box")
    cluster.bucket.signal(signal.SIGSTOP)
    a.ok("POST", "/v1/sandboxes/box/pause", FILESYSTEM)
    assert "kept_at_ms" not in seen(a, "box"), "it says so"
    # The node wakes it at once nevertheless, and does not count the copy that it had begun.
    assert run(a, "box", "echo again > /root/note; cat /root/note") == "again\n"
    run(a, "box", "echo kept > /root/note")
    a.ok("POST", "/v1/sandboxes/box/pause", FILESYSTEM)
    a.kill()
    until("its node is dead", lambda: "dead" in [node["state"] for node in b.ok("GET", "/v1/nodes")["items"]])
    cluster.bucket.signal(signal.SIGCONT)
    time.sleep(3)
    status, answer = b.call("GET", "/v1/sandboxes/box")
    assert (status, answer["code"]) == (503, "node_unavailable")
    a.start()
    until("it is kept", lambda: seen(b, "box").get("kept_at_ms"))
    as_it_was(b, "box", id, digest, last)
    assert cluster.node_of("box") == "a"


@pytest.mark.long
def test_what_was_damaged_there_is_not_woken(cluster):
    a, b = cluster.nodes
    id, digest, last = work(a, "box")
    hibernate(a, "box")
    a.kill()
    until("it is another node's", lambda: seen(b, "box"))
    names = cluster.bucket.of(id)
    content = {name: cluster.bucket.request("GET", name)[1] for name in names}
    largest = max(names, key=lambda name: len(content[name]))
    for damage in (b"", b"not what it was", content[largest][:-1], content[largest] + b"x"):
        cluster.bucket.request("PUT", largest, damage)
        status, answer = b.call("POST", "/v1/sandboxes/box/resume", {})
        assert (status, answer["code"]) == (422, "digest_mismatch") or answer["code"] == "digest_mismatch", answer
        assert seen(b, "box")["state"] == "paused"
    cluster.bucket.request("DELETE", largest)
    status, answer = b.call("POST", "/v1/sandboxes/box/resume", {})
    assert answer["code"] == "snapshot_not_found", answer
    cluster.bucket.request("PUT", largest, content[largest])
    as_it_was(b, "box", id, digest, last)
    a.start()


@pytest.mark.long
def test_it_is_not_woken_without_the_output_of_its_commands(cluster):
    a, b = cluster.nodes
    id, digest, last = work(a, "box")
    hibernate(a, "box")
    content = {name: cluster.bucket.request("GET", name)[1] for name in cluster.bucket.of(id) if not name.endswith("/index")}
    # The smallest object is two lines of output; every piece of the disk is larger.
    smallest = min(content, key=lambda name: len(content[name]))
    cluster.bucket.request("DELETE", smallest)
    a.kill()
    until("it is another node's", lambda: seen(b, "box"))
    # If b woke it, its next copy would lack the output, too.
    status, answer = b.call("POST", "/v1/sandboxes/box/resume", {})
    assert status >= 400 and answer["code"] == "snapshot_not_found", answer
    cluster.bucket.request("PUT", smallest, content[smallest])
    b.ok("POST", "/v1/sandboxes/box/resume", {})
    as_it_was(b, "box", id, digest, last)
    a.start()


@pytest.mark.long
def test_who_stood_still_takes_nothing_away(cluster):
    a, b = cluster.nodes
    id, digest, last = work(a, "box")
    hibernate(a, "box")
    a.signal(signal.SIGSTOP)
    until("it is another node's", lambda: seen(b, "box"))
    run(b, "box", "echo more >> /root/note")
    # This copy refers to objects that node a sent.
    hibernate(b, "box")
    a.signal(signal.SIGCONT)
    assert a.process.wait(timeout=120) != 0
    a.start()
    b.kill()
    until("it is the first node's again", lambda: cluster.node_of("box") == "a" and seen(a, "box"))
    assert run(a, "box", "cat /root/note; sha256sum < /root/big") == "kept\nmore\n" + digest
    assert output(a, "box", last) == digest
    b.start()


@pytest.mark.long
def test_what_did_not_change_is_not_sent_again(cluster):
    a, _ = cluster.nodes
    id, _, _ = work(a, "box")
    hibernate(a, "box")
    first = set(cluster.bucket.of(id))
    run(a, "box", "echo x >> /root/note")
    hibernate(a, "box")
    second = set(until("what is old has gone", lambda: len(uploads(cluster, id)) <= 2 and cluster.bucket.of(id)))
    sent = sum(len(cluster.bucket.request("GET", name)[1]) for name in second - first)
    assert sent < 9 << 20 and first & second, "the large file is the one that was there"
    a.ok("DELETE", "/v1/sandboxes/box")
    until("its objects go with it", lambda: not cluster.bucket.of(id))


@pytest.mark.long
def test_what_nobody_refers_to_is_removed(cluster):
    a, b = cluster.nodes
    id, _, _ = work(a, "box")
    hibernate(a, "box")
    run(a, "box", "true")
    # The running sandbox has a copy, which the next copy refers to.
    before = uploads(cluster, id)
    assert len(before) == 1
    a.stop()
    # An upload that is cut off leaves pieces that are in no copy.
    a.failpoints = "engine.travel.sent=kill"
    a.start()
    run(a, "box", "head -c 5M /dev/urandom > /root/other")
    a.call("POST", "/v1/sandboxes/box/pause", FILESYSTEM)
    a.process.wait(timeout=120)
    (cut_off,) = uploads(cluster, id) - before
    a.failpoints = ""
    a.start()
    until("it is kept", lambda: seen(a, "box").get("kept_at_ms"))
    until("what was cut off goes", lambda: cut_off not in uploads(cluster, id))
    assert run(a, "box", "wc -c < /root/other") == "5242880\n"
    a.ok("DELETE", "/v1/sandboxes/box")
    b.stop()
    b.start()
    until("and the rest with the sandbox", lambda: not kept(cluster))


def kept(cluster):
    return [name for name in cluster.bucket.names() if "/kept/" in name]


def uploads(cluster, id):
    return {name.split("/")[-2] for name in cluster.bucket.of(id)}


def ask_all_the_time(nodes, box, stop, answers):
    """Sends a command to one node after the other; repeats it after a 503, as clients do."""
    number = 0
    while not stop.is_set():
        node = nodes[number % len(nodes)]
        number += 1
        body = {"argv": ["cat", "/root/note"], "wait_ms": 60000, "idempotency_key": f"{box}-{number}"}
        for _ in range(5):
            status, answer = node.call("POST", f"/v1/sandboxes/{box}/execs", body, timeout=120)
            if status != 503:
                break
            time.sleep(0.2)
        answers.append((status, answer))


def test_a_node_that_is_drained_gives_away_what_it_has(cluster):
    a, b = cluster.nodes
    boxes = {name: work(a, name) for name in ("one", "two", "asleep")}
    hibernate(a, "asleep")
    a.ok("POST", "/v1/volumes", {"name": "vol"})
    a.ok("POST", "/v1/sandboxes", {"name": "bound", "volumes": [{"volume": "vol", "path": "/vol"}]})
    stop, answers = threading.Event(), []
    asking = threading.Thread(target=ask_all_the_time, args=(cluster.nodes, "one", stop, answers))
    asking.start()
    drained = json.loads(b.cli("node", "drain", "a", "--wait", "--json").stdout)
    assert [(one["name"], "volumes" in one["reason"]) for one in drained["items"]] == [("bound", True)], drained
    assert (drained["state"], drained["sandboxes"], drained["staying"]) == ("draining", 1, 1)
    until("it is awake again", lambda: seen(a, "one").get("state") == "running")
    time.sleep(1)
    stop.set()
    asking.join()
    # No command is refused for good, although its sandbox is hibernated and moves.
    refused = [(status, answer) for status, answer in answers if status >= 300]
    assert not refused, refused
    assert len(answers) > 3
    until("what ran is awake again", lambda: seen(a, "two").get("state") == "running")
    assert seen(a, "asleep")["state"] == "paused"
    for name, was in boxes.items():
        assert cluster.node_of(name) == "b"
        as_it_was(a, name, *was)
    assert cluster.node_of("bound") == "a" and seen(b, "bound")["state"] == "running"
    # Nothing of the sandboxes is left on a.
    until("nothing is left of them", lambda: not a.ok("GET", "/v1/leaks")["items"])
    a.cli("node", "undrain", "a")
    a.make(name="new")
    assert cluster.node_of("new") == "a"


@pytest.mark.long
def test_a_sandbox_that_moves_runs_while_its_disk_is_sent(cluster):
    a, b = cluster.nodes
    id, digest, last = work(a, "box")
    cluster.bucket.signal(signal.SIGSTOP)
    b.ok("PATCH", "/v1/nodes/a", {"draining": True})
    # The bucket takes nothing: the sandbox would stand still now if all of it were sent after it was put to disk.
    for number in range(6):
        assert run(a, "box", f"echo {number} >> /root/more; cat /root/note") == "kept\n"
        assert seen(a, "box")["state"] == "running"
        time.sleep(1)
    assert cluster.node_of("box") == "a"
    cluster.bucket.signal(signal.SIGCONT)
    until("it has gone", lambda: cluster.node_of("box") == "b")
    until("and is awake", lambda: seen(b, "box").get("state") == "running")
    as_it_was(a, "box", id, digest, last)
    # What was written after its disk was sent is there, too.
    assert run(a, "box", "cat /root/more") == "".join(f"{number}\n" for number in range(6))
    a.cli("node", "undrain", "a")
    # Nothing lies in the bucket but what its next copy has.
    hibernate(b, "box")
    indexes = lambda: [name for name in cluster.bucket.of(id) if name.endswith("/index")]
    until("the copy before is gone", lambda: len(indexes()) == 1)
    [index] = indexes()
    used = {(piece["upload"], piece["digest"]) for piece in pieces(json.loads(cluster.bucket.request("GET", index)[1]))}
    there = lambda: {tuple(name.split("/")[-2:]) for name in cluster.bucket.of(id) if name != index}
    until("nothing else lies there", lambda: there() == used)


@pytest.mark.long
def test_what_was_sent_of_a_sandbox_that_stays_after_all_is_removed(cluster):
    a, b = cluster.nodes
    id, digest, last = work(a, "box")
    cluster.bucket.signal(signal.SIGSTOP)
    b.ok("PATCH", "/v1/nodes/a", {"draining": True})
    time.sleep(3)
    b.ok("PATCH", "/v1/nodes/a", {"draining": False})
    # Longer than the node takes to see that.
    time.sleep(3)
    cluster.bucket.signal(signal.SIGCONT)
    # Longer than the bucket takes for what it was sent by then.
    time.sleep(3)
    # A server that starts looks for what belongs to nothing. The sandbox runs on, on another node.
    b.stop()
    b.start()
    until("nothing of it is left", lambda: not cluster.bucket.of(id))
    assert cluster.node_of("box") == "a"
    as_it_was(a, "box", id, digest, last)


def pieces(index):
    """All pieces of a copy."""
    return index["disk"]["pieces"] + index["logs"]["pieces"]


# The steps of a move at which a test kills the node that gives the sandbox (a) or the one that takes it (b). In the
# end the sandbox is on b, or may still be on a: never on both, never on none.
SENDER = ["engine.move.ahead", "engine.travel.begun", "engine.travel.sent", "engine.travel.kept", "engine.move.paused", "engine.move.kept", "engine.move.recorded", "engine.move.given", "engine.move.gone"]
RECEIVER = ["engine.travel.arrived", "engine.travel.fetching", "engine.travel.fetched", "engine.wake.started", "engine.wake.recorded"]


def moved_with_a_crash(cluster, victim, point):
    a, b = cluster.nodes
    other = b if victim is a else a
    victim.stop()
    victim.failpoints = f"{point}=kill"
    victim.start()
    id, digest, last = work(a, "box")
    other.ok("PATCH", "/v1/nodes/a", {"draining": True})
    victim.process.wait(timeout=120)
    assert victim.process.returncode == -signal.SIGKILL
    victim.failpoints = ""
    victim.start()
    until("it has gone", lambda: cluster.node_of("box") == "b")
    until("and is awake", lambda: seen(b, "box").get("state") == "running")
    as_it_was(a, "box", id, digest, last)
    assert sum(id in text for text in processes()) == 1, "it runs once"
    a.ok("PATCH", "/v1/nodes/a", {"draining": False})
    a.ok("DELETE", "/v1/sandboxes/box")


def processes():
    """The ATOLL_SANDBOX_ID variables in the environments of all running processes: each guest agent has one."""
    found = []
    for pid in os.listdir("/proc"):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                text = file.read().decode(errors="replace")
        except OSError:
            continue
        found += [part for part in text.split("\0") if part.startswith("ATOLL_SANDBOX_ID=")][:1]
    return found


@pytest.mark.long
@pytest.mark.parametrize("point", ["engine.move.ahead", "engine.travel.sent", "engine.move.given"])
def test_a_move_survives_a_crash_of_who_gives(cluster, point):
    moved_with_a_crash(cluster, cluster.nodes[0], point)


@pytest.mark.parametrize("point", ["engine.travel.fetched"])
def test_a_move_survives_a_crash_of_who_takes(cluster, point):
    moved_with_a_crash(cluster, cluster.nodes[1], point)


@pytest.mark.long
def test_a_move_survives_a_crash_at_every_step(cluster):
    a, b = cluster.nodes
    for point in SENDER:
        moved_with_a_crash(cluster, a, point)
    for point in RECEIVER:
        moved_with_a_crash(cluster, b, point)
    # A server that starts removes what the crashes left in the object store.
    b.stop()
    b.start()
    until("nothing is left", lambda: not kept(cluster))
