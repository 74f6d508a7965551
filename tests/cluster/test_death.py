"""Nodes that die, stand still, or cannot reach the database. No sandbox runs twice, and no node writes for another."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest

from cluster import Cluster, Node, until


@pytest.fixture
def cluster():
    with Cluster("a", "b") as cluster:
        yield cluster


def make(node, name):
    """Makes a sandbox with a command that does not end; returns the id of the exec."""
    node.make(name=name)
    return node.ok("POST", f"/v1/sandboxes/{name}/execs", {"argv": ["sleep", "100000"], "wait_ms": 1})["exec"]["id"]


def runs(pid):
    """Whether a process runs. A zombie does not: it has ended, even if its parent has not waited for it."""
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def failed(node, name):
    status, seen = node.call("GET", f"/v1/sandboxes/{name}")
    return seen if status == 200 and seen["state"] == "failed" else None


def test_what_ran_on_a_node_that_dies_has_failed_and_its_name_can_be_had_again(cluster):
    a, b = cluster.nodes
    execution = make(a, "web")
    a.make(name="asleep")
    a.ok("POST", "/v1/sandboxes/asleep/pause", {"mode": "filesystem"})
    a.kill()
    seen = until("it is reported", lambda: failed(b, "web"))
    assert "'a'" in seen["reason"] and a.stands_still()
    states = {one["id"]: one["state"] for one in b.ok("GET", "/v1/sandboxes/web/execs")["items"]}
    assert states == {execution: "lost"}
    status, answer = b.call("GET", "/v1/sandboxes/asleep")
    assert (status, answer["code"]) == (503, "node_unavailable"), answer
    assert [node["state"] for node in b.ok("GET", "/v1/nodes")["items"]] == ["dead", "ready"]
    b.ok("DELETE", "/v1/sandboxes/web")
    b.make(name="web")
    assert cluster.node_of("web") == "b"
    # Node a comes back, claims none of the sandboxes that b took over, and wakes the one that was hibernated.
    a.start()
    until("it is back", lambda: b.call("GET", "/v1/sandboxes/asleep")[0] == 200)
    b.ok("POST", "/v1/sandboxes/asleep/resume", {})
    assert b.cli("exec", "asleep", "--", "echo", "awake").stdout == b"awake\n"
    assert a.cli("exec", "web", "--", "echo", "here").stdout == b"here\n"
    assert cluster.node_of("web") == "b"


def test_a_node_that_stood_still_writes_nothing_more(cluster):
    a, b = cluster.nodes
    make(a, "web")
    a.signal(signal.SIGSTOP)
    until("it is reported", lambda: failed(b, "web") is not None and True)
    assert a.stands_still(), "before others may say that it is gone"
    b.ok("DELETE", "/v1/sandboxes/web")
    b.make(name="web")
    before = cluster.postgres.ask("SELECT id, node, state, generation FROM sandboxes")
    a.signal(signal.SIGCONT)
    # Node a logs that it was taken over, and ends; started again it has no sandboxes.
    assert a.process.wait(timeout=120) != 0
    assert "taken over" in a.log.read_text()
    assert cluster.postgres.ask("SELECT id, node, state, generation FROM sandboxes") == before
    assert a.stands_still()
    a.start()
    assert a.cli("exec", "web", "--", "echo", "here").stdout == b"here\n"
    assert cluster.node_of("web") == "b"


def test_a_child_that_was_born_where_everything_stands_still_is_in_no_servers_way(cluster):
    a, b = cluster.nodes
    a.make(name="web")
    # As the watchdog does at the end of a lease. A sandbox made now is cloned into a frozen cgroup, and holds the
    # server's lock and port.
    a.freeze()

    def make_late():
        with contextlib.suppress(OSError):
            a.make(name="late")

    making = threading.Thread(target=make_late)
    making.start()
    child = until("a child that is born", a.child_of_the_server)
    a.kill()
    until("it is reported", lambda: failed(b, "web"))
    assert runs(child), "with the connection of who asked for it"
    a.start()
    assert not runs(child)
    making.join(timeout=20)
    assert not making.is_alive(), "who asked for it is told that it came to nothing"
    for node in (a, b):
        name = node.make(name=f"anew-{node.name}")["name"]
        assert a.cli("exec", name, "--", "echo", "here").stdout == b"here\n"


@pytest.mark.long
def test_everybody_goes_on_when_the_database_was_restarted(cluster):
    a, b = cluster.nodes
    execution = make(a, "web")
    cluster.postgres.stop()
    cluster.postgres.start()
    seen = until("it is there", lambda: b.call("GET", f"/v1/sandboxes/web/execs/{execution}")[1].get("state") == "running")
    assert seen
    b.make(name="other")
    assert a.cli("exec", "other", "--", "echo", "here").stdout == b"here\n"


def test_without_the_database_everything_stands_still_and_goes_on(cluster):
    a, b = cluster.nodes
    execution = make(a, "web")
    cluster.postgres.stop()
    until("they stand still", lambda: a.stands_still() and b.stands_still())
    status, answer = b.call("GET", "/v1/sandboxes/web")
    assert (status, answer["code"]) == (503, "store_unavailable")
    assert a.raw("GET", "/readyz")[0] == 503 and a.raw("GET", "/healthz")[0] == 200
    # Longer than the lease: neither node saw the other renew it, and neither may take the other for dead.
    time.sleep(8)
    cluster.postgres.start()
    until("it goes on", lambda: a.call("GET", "/v1/sandboxes/web")[1].get("state") == "running")
    assert b.cli("exec", "web", "--", "echo", "on").stdout == b"on\n"
    assert b.ok("GET", f"/v1/sandboxes/web/execs/{execution}")["state"] == "running"
    time.sleep(8)
    assert [node["state"] for node in b.ok("GET", "/v1/nodes")["items"]] == ["ready", "ready"]
    assert cluster.node_of("web") == "a"


@pytest.mark.long
def test_a_node_is_there_once_and_has_the_same_key_of_the_vault(cluster):
    a, _ = cluster.nodes
    copy = Node(cluster, "copy")
    copy.data.mkdir(mode=0o700)
    shutil.copy(a.data / "node", copy.data / "node")
    with pytest.raises(AssertionError, match="is there already"):
        copy.start()
    other = Node(cluster, "a")
    other.data = cluster.place / "other"
    with pytest.raises(AssertionError, match="another node is named 'a'"):
        other.start()
    stranger = Node(cluster, "stranger")
    mine, cluster.vault_key = cluster.vault_key, os.urandom(32).hex()
    with pytest.raises(AssertionError, match="vault's key"):
        stranger.start()
    cluster.vault_key = mine
    for node in (copy, other, stranger):
        subprocess.run([os.environ["ATOLL_BIN"], "purge", "--data-dir", node.data, "--yes"], capture_output=True)
