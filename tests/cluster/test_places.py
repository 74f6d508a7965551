"""Copies of sandboxes are made, and fetched, in places of which owners leave some to others."""

import threading

import pytest

from cluster import DEADLINE, Cluster, until
from proxy import WithholdingProxy
from test_move import FILESYSTEM, run, seen

# Copies that a node makes at once, and those that it fetches at once (`travel::AT_ONCE`). One owner alone has half of them.
PLACES = 4


@pytest.fixture
def cluster():
    cluster = Cluster("a", "b", objects=True)
    for node in cluster.nodes:
        node.proxy = WithholdingProxy(cluster.bucket, "127.0.0.1")
        node.objects_endpoint = node.proxy.endpoint
    with cluster:
        yield cluster
        for node in cluster.nodes:
            node.proxy.withhold([])


def make(node, name, key):
    """Makes a sandbox of a key's on this node; returns its id."""

    def made():
        spec = {"name": name, "node_labels": {"node": node.name}}
        status, answer = node.call("POST", "/v1/sandboxes", spec, key=key)
        assert status < 300 or answer["code"] == "node_unavailable", (status, answer)
        return answer["id"] if status < 300 else None

    return until(f"{node.name} makes a sandbox", made)


def resume(node, box):
    """Wakes a sandbox in the background."""

    def wake():
        try:
            node.call("POST", f"/v1/sandboxes/{box}/resume", timeout=DEADLINE)
        except OSError:
            # The test looks at the sandbox itself.
            pass

    threading.Thread(target=wake, daemon=True).start()


def test_one_owners_copies_hold_up_none_of_anothers(cluster):
    """With places for whoever comes first, the last of the greedy key's copies would wait, and so would the other key's.

    So it is without the line of `Travel::send`, or of `Engine::fetch_asleep`, that waits for a room of the sandbox's owner:
    then more of the greedy key's copies are asked for at once than it may have.
    """
    a, b = cluster.nodes
    greedy = a.ok("POST", "/v1/keys", {"name": "greedy", "scope": "manage"})["secret"]
    boxes = [make(a, f"greedy-{number}", greedy) for number in range(PLACES + 1)]
    other = make(a, "other", cluster.key)
    run(a, other, "echo kept > /root/note")

    # Copies are made.
    a.proxy.withhold(boxes)
    for box in boxes:
        a.ok("POST", f"/v1/sandboxes/{box}/pause", FILESYSTEM)
    until("the greedy key has its places", lambda: len(a.proxy.held) == PLACES // 2)
    a.ok("POST", f"/v1/sandboxes/{other}/pause", FILESYSTEM)
    until("the other key's is copied", lambda: seen(a, other).get("kept_at_ms"))
    assert len(a.proxy.held) == PLACES // 2 and not any(seen(a, box).get("kept_at_ms") for box in boxes)
    a.proxy.withhold([])
    until("all are copied", lambda: all(seen(a, box).get("kept_at_ms") for box in boxes))

    # They are fetched.
    a.kill()
    until("all are the other node's", lambda: all(cluster.node_of(box) == "b" and seen(b, box) for box in [*boxes, other]))
    b.proxy.withhold(boxes)
    for box in boxes:
        resume(b, box)
    until("the greedy key has its places", lambda: len(b.proxy.held) == PLACES // 2)
    assert run(b, other, "cat /root/note") == "kept\n"
    assert len(b.proxy.held) == PLACES // 2 and not any(seen(b, box)["state"] == "running" for box in boxes)
    b.proxy.withhold([])
    until("all are woken", lambda: all(seen(b, box)["state"] == "running" for box in boxes))
    a.start()
