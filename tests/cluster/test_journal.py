"""Two nodes and a bucket: any node shows the journal of a deleted sandbox, also when the node that wrote it is dead."""

import json
import os

import pytest

from cluster import Cluster, until


@pytest.fixture(scope="module")
def cluster():
    with Cluster("a", "b", objects=True) as cluster:
        yield cluster


def gone(cluster, node, key):
    """Makes and deletes a sandbox on a node, waits until its journal is in the bucket, and returns its id."""
    made = node.make()
    node.ok("POST", f"/v1/sandboxes/{made['id']}/execs", {"argv": ["echo", "recorded"], "wait_ms": 30000}, key=key)
    node.ok("DELETE", f"/v1/sandboxes/{made['id']}")
    until("its journal is copied", lambda: cluster.bucket.journal_of(made["id"]))
    return made["id"]


def events(node, box, **more):
    return node.call("GET", f"/v1/sandboxes/{box}/events", **more)


def test_it_is_read_and_verified_at_another_node(cluster):
    a, b = cluster.nodes
    box = gone(cluster, a, cluster.key)
    here, there = (events(node, box) for node in (a, b))
    assert here[0] == there[0] == 200, (here, there)
    kinds = lambda answer: [(event["number"], event["kind"]) for event in answer[1]["items"]]
    # What was asked of one node is in the journal of that.
    assert kinds(there) == kinds(here)[: len(kinds(there))] and "recorded" in json.dumps(there[1])
    report = b.ok("GET", f"/v1/sandboxes/{box}/events/verify")
    assert not report["findings"] and report["ended"], report
    # A key that did not make the sandbox and is no administrator's gets 404, as for one that never existed.
    other = a.ok("POST", "/v1/keys", {"name": f"other-{box}", "scope": "manage"})
    until("the key is known", lambda: b.raw("GET", "/v1/sandboxes", key=other["secret"])[0] == 200)
    never = box[:-4] + "0000"
    for key, asked in ((other["secret"], box), (cluster.key, never)):
        status, answer = events(b, asked, key=key)
        assert (status, answer["code"]) == (404, "sandbox_not_found"), answer


@pytest.mark.long
def test_what_was_changed_in_the_bucket_is_not_shown(cluster):
    a, b = cluster.nodes
    box = gone(cluster, a, cluster.key)
    whole = gone(cluster, a, cluster.key)
    [name] = cluster.bucket.journal_of(box)
    [other] = cluster.bucket.journal_of(whole)
    _, content = cluster.bucket.request("GET", name)
    _, foreign = cluster.bucket.request("GET", other)
    for wrong in (content[:-20], foreign, os.urandom(1000)):
        cluster.bucket.request("PUT", name, wrong)
        status, answer = events(b, box)
        assert status >= 400 and "recorded" not in json.dumps(answer), answer
        assert b.raw("GET", "/readyz")[0] == 200
    cluster.bucket.request("PUT", name, content)
    assert events(b, box)[0] == 200
    assert events(a, box)[0] == 200, "its own node has it as ever"


@pytest.mark.long
def test_a_node_that_is_dead_is_not_needed(cluster):
    a, b = cluster.nodes
    boxes = [gone(cluster, a, cluster.key) for _ in range(2)]
    a.kill()
    until("the other goes on alone", lambda: b.raw("GET", "/readyz")[0] == 200)
    for box in boxes:
        assert events(b, box)[0] == 200
    a.start()
