"""Sandboxes that outlive their node: they are copied while they run, and another node goes on from the last copy."""

import time

import pytest

from cluster import Cluster, until
from test_move import output, run, seen


@pytest.fixture
def cluster():
    with Cluster("a", "b", objects=True) as cluster:
        yield cluster


def copied(cluster, id):
    """The time of a sandbox's last copy, in milliseconds; 0 if there is none."""
    found = cluster.postgres.ask(f"SELECT taken_ms FROM kept WHERE sandbox_id = '{id}' AND taken_ms IS NOT NULL")
    return int(found[0]) if found else 0


def copied_after(cluster, id, ms):
    until("it is copied", lambda: copied(cluster, id) > ms)


def ended_ms(node, box):
    return node.ok("GET", f"/v1/sandboxes/{box}/execs")["items"][0]["ended_at_ms"]


def test_it_goes_on_from_its_last_copy(cluster):
    a, b = cluster.nodes
    made = a.make(name="box", durability={"after_exec": True})
    assert made["durability"] == {"after_exec": True}
    box, id = "box", made["id"]
    run(a, box, "head -c 6M /dev/urandom > /root/big; echo first > /root/note; echo said")
    first = a.ok("GET", f"/v1/sandboxes/{box}/execs")["items"][0]["id"]
    copied_after(cluster, id, ended_ms(a, box))
    before = set(cluster.bucket.of(id))
    # After a small change only that is copied: earlier objects are used again.
    run(a, box, "echo second >> /root/note")
    copied_after(cluster, id, ended_ms(a, box))
    assert before & set(cluster.bucket.of(id))
    # This command never ends, so no copy has its change.
    lost = a.ok("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["sh", "-c", "echo third >> /root/note; sleep 10000"], "wait_ms": 1000})
    taken = copied(cluster, id)
    a.kill()
    found = until("it goes on", lambda: seen(b, box).get("state") == "running" and seen(b, box))
    assert (found["id"], found["restored_from_ms"]) == (id, taken) and found["restored_at_ms"] > taken
    assert run(b, box, "cat /root/note; wc -c < /root/big") == "first\nsecond\n6291456\n"
    states = {one["id"]: one["state"] for one in b.ok("GET", f"/v1/sandboxes/{box}/execs")["items"]}
    assert states[lost["exec"]["id"]] == "lost" and states[first] == "exited"
    assert output(b, box, first) == "said\n"
    # Node b copies the sandbox again, and its old node has nothing of it.
    copied_after(cluster, id, found["restored_at_ms"])
    a.start()
    assert cluster.node_of(box) == "b" and a.stands_still()
    assert run(a, box, "echo on") == "on\n"


def test_a_sandbox_of_modals_ends_with_its_first_command_on_the_next_node(cluster):
    """Made as the dialect makes it: its first command has a name of the server's, and its annotation says that it ends with it."""
    a, b = cluster.nodes
    made = a.make(name="box", durability={"after_exec": True}, annotations={"modal": '{"command":true}'})
    assert made.get("expires_at_ms") is None
    run(a, "box", "true")
    copied_after(cluster, made["id"], ended_ms(a, "box"))
    first = {"argv": ["sleep", "10000"], "idempotency_key": "modal/first-command"}
    a.ok("POST", "/v1/sandboxes/box/execs", first)
    a.kill()
    # No client can give an exec such a name.
    cluster.postgres.ask(f"UPDATE execs SET idempotency_key = 'server ' || idempotency_key WHERE sandbox_id = '{made['id']}' AND idempotency_key = 'modal/first-command' RETURNING id")
    found = until("it is given an end", lambda: seen(b, "box").get("expires_at_ms") and seen(b, "box"))
    assert found["annotations"]["modal"] == '{"command":true,"over":true}'
    a.start()


@pytest.mark.long
def test_it_is_copied_by_time(cluster):
    a, b = cluster.nodes
    id = a.make(name="box", durability={"every_ms": 1000})["id"]
    run(a, "box", "echo x > /root/note")
    # A copy that was begun after the command ended.
    copied_after(cluster, id, ended_ms(a, "box"))
    a.kill()
    until("it goes on", lambda: seen(b, "box").get("state") == "running")
    assert run(b, "box", "cat /root/note") == "x\n"
    a.start()


@pytest.mark.long
def test_without_it_what_ran_has_failed(cluster):
    a, b = cluster.nodes
    a.make(name="box")
    run(a, "box", "true")
    time.sleep(2)
    a.kill()
    until("it has failed", lambda: seen(b, "box").get("state") == "failed")
    a.start()


def test_what_cannot_outlive_its_node_is_refused(cluster):
    a, _ = cluster.nodes
    a.ok("POST", "/v1/volumes", {"name": "vol"})
    bad = [
        ({"durability": {}}, "says no time"),
        ({"durability": {"every_ms": 10}}, "one second"),
        ({"durability": {"every_ms": 1000}, "volumes": [{"volume": "vol", "path": "/vol"}]}, "volumes"),
    ]
    for body, why in bad:
        status, answer = a.call("POST", "/v1/sandboxes", {"name": "box", **body})
        assert status == 400 and why in answer["message"], answer
    assert b"--durability" in a.cli("create", "--help").stdout
    a.cli("create", "--name", "box", "--durability", "30s", "--durability", "exec")
    assert seen(a, "box")["durability"] == {"every_ms": 30000, "after_exec": True}
