"""Two nodes and a bucket: any node shows the journal of a deleted sandbox, also when the node that wrote it is dead, and a sandbox
that goes to another node has one journal."""

import json
import os

import pytest

from cluster import Cluster, until
from test_move import hibernate, run, seen


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


def own_words(items):
    """What the recorder said of itself."""
    return [(event["recorder"], event.get("clean")) for event in items if event["kind"] == "recorder"]


def whole(node, box):
    """All events of a sandbox, which must be numbered without a gap from 1, and the report about them."""
    items = events(node, box)[1]["items"]
    assert [event["number"] for event in items] == list(range(1, len(items) + 1))
    report = node.ok("GET", f"/v1/sandboxes/{box}/events/verify")
    assert not report["findings"], report
    return items, report


def test_it_goes_with_its_sandbox(cluster):
    a, b = cluster.nodes
    id = a.make(name="mover")["id"]
    run(a, "mover", "echo said on the first")
    a.cli("node", "drain", "a")
    until("it has moved", lambda: cluster.node_of("mover") == "b")
    until("and is awake", lambda: seen(b, "mover").get("state") == "running")
    run(b, "mover", "echo said on the second")
    for node in (a, b):
        items, report = whole(node, "mover")
        text = json.dumps(items)
        assert text.index("said on the first") < text.index("said on the second")
        assert own_words(items) == [("began", None), ("paused", None), ("went_on", True)] and not report["gaps"], report
    assert not (a.data / "trace" / id).exists(), "it is on one node"
    a.cli("node", "undrain", "a")
    b.ok("DELETE", "/v1/sandboxes/mover")
    until("its end is in the bucket", lambda: events(a, id)[0] == 200 and whole(a, id)[1]["ended"])
    assert "said on the first" in json.dumps(whole(a, id)[0])


def test_what_a_dead_node_had_not_sent_is_announced(cluster):
    a, b = cluster.nodes
    id = a.make(name="orphan")["id"]
    run(a, "orphan", "echo said before")
    hibernate(a, "orphan")
    # This is recorded where the sandbox sleeps, and goes with its node.
    a.ok("PATCH", "/v1/sandboxes/orphan", {"labels": {"said": "too-late"}})
    a.kill()
    until("it is another node's", lambda: cluster.node_of("orphan") == "b" and seen(b, "orphan"))
    items, report = whole(b, "orphan")
    assert "said before" in json.dumps(items) and "limits" not in {event["kind"] for event in items}
    [lost] = [event for event in items if event["kind"] == "lost"]
    before = items[lost["number"] - 2]
    assert (before["recorder"], before["clean"]) == ("went_on", False)
    assert f"after event {before['number'] - 1} " in lost["reason"] and len(report["gaps"]) == 1, report
    a.start()
    # What only that node has stays there, and is not shown as the sandbox's journal.
    assert not (a.data / "trace" / id).exists()
    [place] = a.data.glob(f"trace-aside/*/{id}")
    told = a.cli("trace", "verify", id, "--dir", place.parent, "--key", report["key"], "--json")
    assert json.loads(told.stdout)["last"] > before["number"]
    assert whole(a, "orphan")[1]["gaps"] == report["gaps"]
    b.ok("DELETE", "/v1/sandboxes/orphan")


def test_what_others_put_into_the_bucket_hides_nothing_that_is_recorded_afterwards(cluster):
    a, b = cluster.nodes
    id = a.make(name="framed")["id"]
    hibernate(a, "framed")
    [first] = cluster.bucket.journal_of(id)
    # Under the name that the first segment will have when it is closed, and under one behind all.
    framed = [f"{first}.zst", first.replace(first[-24:], "09999999999999999999.log")]
    for name in framed:
        cluster.bucket.request("PUT", name, os.urandom(1000))
    a.kill()
    until("it is another node's", lambda: cluster.node_of("framed") == "b" and seen(b, "framed"))
    run(b, "framed", "echo said on the second")
    a.start()
    b.cli("node", "drain", "b")
    until("it has moved", lambda: cluster.node_of("framed") == "a")
    until("and is awake", lambda: seen(a, "framed").get("state") == "running")
    assert "said on the second" in json.dumps(whole(a, "framed")[0])
    assert not set(framed) & set(cluster.bucket.journal_of(id)), "what is not of the journal has other names"
    aside = [name for name in cluster.bucket.names() if "/trace-aside/" in name and f"/{id}/" in name]
    ends = lambda names: sorted(name.rsplit("/", 1)[1] for name in names)
    assert ends(aside) == ends([first, *framed]), "nothing is lost"
    b.cli("node", "undrain", "b")
    a.ok("DELETE", "/v1/sandboxes/framed")
