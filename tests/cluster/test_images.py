"""One node pulls or loads an image; the other nodes fetch it from the object store."""

import os
import threading

import pytest
from e2b import Sandbox, Template

from cluster import Cluster, until
from images import Image, Registry, layer, place, shared, shell

pytestmark = pytest.mark.long

SHELL = shell()


def image(name, *files):
    """An image with a shell, and on top a layer for each of `files`."""
    return Image(name, SHELL, *(layer({path: content}) for path, content in files))


@pytest.fixture
def cluster():
    with Cluster("a", "b", objects=True) as cluster:
        yield cluster


def objects(cluster):
    """Every layer in the bucket, as diff id and upload."""
    names = [name.split("/layers/") for name in cluster.bucket.names() if "/images/" in name]
    return sorted(tuple(name[1].split("/")) for name in names)


def layers_of(*images):
    return sorted({diff_id[7:] for image in images for diff_id in image.diff_ids})


def run(node, box, *argv):
    made = node.ok("POST", f"/v1/sandboxes/{box}/execs", {"argv": list(argv), "wait_ms": 60000})
    assert made["exec"]["exit"]["code"] == 0, made
    return node.cli("logs", box, made["exec"]["id"]).stdout.decode()


def make(node, **spec):
    """Makes a sandbox on this node, even if other nodes are less busy; returns its id."""
    return node.make(**spec)["id"]


def test_what_one_node_loaded_another_has_when_that_one_is_dead(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    two = image("reg.test/two:1", ("note", b"second\n"))
    one.load(a)
    shared(a, one)
    two.load(a)
    shared(a, two)
    # The layer that both images have was sent once, and the node no longer keeps packed layers.
    assert [diff_id for diff_id, _ in objects(cluster)] == layers_of(one, two)
    until("packed layers go", lambda: not os.listdir(a.data / "images" / "packed"))
    assert (place(b, one), place(b, two)) == ("elsewhere", "elsewhere")
    listed = b.cli("image", "ls").stdout.decode()
    assert "elsewhere" in listed and "reg.test/one:1" in listed, listed
    a.kill()
    box = make(b, image="reg.test/one:1", name="named")
    assert run(b, box, "cat", "/note") == "first\n"
    assert run(b, box, "sh", "-c", "echo $OF") == "image\n"
    # By digest; b has one of its layers already.
    box = make(b, image=two.digest[:30])
    assert run(b, box, "cat", "/note") == "second\n"
    assert (place(b, one), place(b, two)) == ("shared", "shared")
    assert b.call("POST", "/v1/sandboxes", {"image": "reg.test/three:1"})[1]["code"] == "image_not_found"
    a.start()
    assert place(a, one) == "shared"


@pytest.mark.long
def test_many_that_need_it_at_once_fetch_it_once(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("big", os.urandom(8 << 20)))
    one.load(a)
    shared(a, one)
    made, threads = [], []
    for number in range(6):
        threads.append(threading.Thread(target=lambda number=number: made.append(make(b, image="reg.test/one:1", name=f"box-{number}"))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6
    assert b.log.read_text().count("fetching an image that other nodes have") == 1


@pytest.mark.long
def test_a_name_means_the_same_on_every_node(cluster):
    a, b = cluster.nodes
    one, two = image("reg.test/app:1", ("note", b"first\n")), image("reg.test/app:1", ("note", b"second\n"))
    one.load(a)
    shared(a, one)
    first = make(b, image="reg.test/app:1")
    # The name goes to another image, on b, which did not load the first.
    two.load(b)
    shared(b, two)
    second = make(b, image="reg.test/app:1")
    until("it is known", lambda: "reg.test/app:1" not in str([i for i in a.ok("GET", "/v1/images")["items"] if i["digest"] == one.digest]))
    third = make(a, image="reg.test/app:1")
    assert [run(b, box, "cat", "/note") for box in (first, second)] == ["first\n", "second\n"]
    assert run(a, third, "cat", "/note") == "second\n"


@pytest.mark.long
def test_who_gave_a_name_last_is_right_whoever_tells_it_last(cluster):
    for number, (first, second) in enumerate((cluster.nodes, cluster.nodes[::-1])):
        name = f"reg.test/app:{number}"
        # The earlier image takes longer to send.
        early, late = image(name, ("big", os.urandom(6 << 20))), image(name, ("note", f"of {number}\n".encode()))
        cluster.bucket.signal(19)
        early.load(first)
        late.load(second)
        cluster.bucket.signal(18)
        shared(second, late)
        until("its packed layers go", lambda: not os.listdir(first.data / "images" / "packed"))
        for node in cluster.nodes:
            until("all say the same", lambda: named(node, name) == late.digest)


def named(node, name):
    """The digest of the image that a node has under a name."""
    return next((one["digest"] for one in node.ok("GET", "/v1/images")["items"] if name in one["names"]), None)


@pytest.mark.long
def test_what_was_removed_does_not_come_back_with_a_node_that_was_away(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    a.stop()
    a.failpoints = "engine.images.told=kill"
    a.start()
    one.load(a)
    a.process.wait(timeout=120)
    assert place(b, one) == "elsewhere"
    b.ok("DELETE", "/v1/images/reg.test/one:1")
    a.failpoints = ""
    a.start()
    until("it goes there, too", lambda: place(a, one) is None)
    assert place(b, one) is None
    # Loaded once more, the image is there again.
    one.load(a)
    shared(a, one)
    assert run(b, make(b, image="reg.test/one:1"), "cat", "/note") == "first\n"


def test_an_image_that_goes_goes_everywhere(cluster):
    a, b = cluster.nodes
    one, two = image("reg.test/one:1", ("note", b"first\n")), image("reg.test/two:1", ("note", b"second\n"))
    for made in (one, two):
        made.load(a)
        shared(a, made)
    box = make(b, image="reg.test/one:1")
    # Node a, which does not have the sandbox, refuses to delete the image that the sandbox on b uses.
    status, answer = a.call("DELETE", "/v1/images/reg.test/one:1")
    assert (status, answer["code"]) == (409, "image_in_use"), answer
    b.ok("POST", "/v1/templates", {"name": "of-two", "image": "reg.test/two:1"})
    b.ok("DELETE", f"/v1/sandboxes/{box}")
    assert b.call("DELETE", f"/v1/images/{two.digest}")[1]["code"] == "image_in_use", "a template names it"
    assert b.ok("DELETE", "/v1/images/reg.test/one:1")["removed"]
    assert place(b, one) is None
    until("the other node has it no more", lambda: place(a, one) is None)
    assert a.call("POST", "/v1/sandboxes", {"image": one.digest})[1]["code"] == "image_not_found"
    until("its own layer goes", lambda: [diff_id for diff_id, _ in objects(cluster)] == layers_of(two))
    a.ok("DELETE", "/v1/templates/of-two")
    # The image comes back when it is loaded again.
    one.load(b)
    shared(b, one)
    assert run(a, make(a, image="reg.test/one:1"), "cat", "/note") == "first\n"


@pytest.mark.long
def test_what_was_damaged_there_is_not_used(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    one.load(a)
    shared(a, one)
    name = next(name for name in cluster.bucket.names() if f"/layers/{one.diff_ids[1][7:]}/" in name)
    whole = cluster.bucket.request("GET", name)[1]
    other = next(name for name in cluster.bucket.names() if f"/layers/{one.diff_ids[0][7:]}/" in name)
    for damage in (b"", b"not what it was", whole[:-1], whole + b"x", cluster.bucket.request("GET", other)[1]):
        cluster.bucket.request("PUT", name, damage)
        status, answer = b.call("POST", "/v1/sandboxes", {"image": "reg.test/one:1", "node_labels": {"node": "b"}})
        assert status >= 400 and answer["code"] in ("digest_mismatch", "image_invalid"), answer
        assert one.digest in answer["message"], answer
        assert place(b, one) == "elsewhere"
    cluster.bucket.request("DELETE", name)
    status, answer = b.call("POST", "/v1/sandboxes", {"image": "reg.test/one:1", "node_labels": {"node": "b"}})
    assert answer["code"] == "objects_unavailable", answer
    cluster.bucket.request("PUT", name, whole)
    assert run(b, make(b, image="reg.test/one:1"), "cat", "/note") == "first\n"


@pytest.mark.long
def test_what_was_lost_there_is_sent_again(cluster):
    """The node that loads the image once more sends it, also after another node failed to fetch it."""
    a, b = cluster.nodes
    for number, harm in enumerate((None, b"not what it was")):
        one = image(f"reg.test/{number}:1", ("note", f"of {number}\n".encode()))
        one.load(a)
        shared(a, one)
        [name] = [name for name in cluster.bucket.names() if f"/layers/{one.diff_ids[1][7:]}/" in name]
        whole = cluster.bucket.request("GET", name)[1]
        cluster.bucket.request("DELETE" if harm is None else "PUT", name, harm)
        assert b.call("POST", "/v1/sandboxes", {"image": one.digest, "node_labels": {"node": "b"}})[0] >= 400
        one.load(a)
        until("it is there again", lambda: whole in [cluster.bucket.request("GET", name)[1] for name in cluster.bucket.names()])
        assert run(b, make(b, image=one.digest), "cat", "/note") == f"of {number}\n"
        until("one object for each layer", lambda: len({diff_id for diff_id, _ in objects(cluster)}) == len(objects(cluster)))


@pytest.fixture
def registry():
    with Registry() as registry:
        yield registry


@pytest.mark.long
def test_a_pulled_image_comes_from_the_bucket_and_else_from_its_registry(registry):
    cluster = Cluster("a", "b", objects=True)
    a, b = cluster.nodes
    for node in cluster.nodes:
        node.args = ("--registry-allow", registry.host)
    one = image("unused/one:1", ("note", b"first\n"))
    two = image("unused/two:1", ("note", b"second\n"))
    with cluster:
        reference = registry.push(one, "one:1")
        a.cli("image", "pull", reference)
        shared(a, one)
        # The registry resolves the tag; the layers come from the bucket, as the registry has none any more.
        for digest in one.layers:
            registry.lose(digest)
        b.cli("image", "pull", reference)
        assert place(b, one) == "shared"
        assert run(b, make(b, image=reference), "cat", "/note") == "first\n"
        # A layer that is damaged in the bucket comes from the registry.
        reference = registry.push(two, "two:1")
        a.cli("image", "pull", reference)
        shared(a, two)
        for name in cluster.bucket.names():
            if f"/layers/{two.diff_ids[1][7:]}/" in name:
                cluster.bucket.request("PUT", name, b"damaged")
        assert run(b, make(b, image=reference), "cat", "/note") == "second\n"
        # Node b puts the layer that it pulled back into the bucket.
        there = lambda: [name for name in cluster.bucket.names() if f"/layers/{two.diff_ids[1][7:]}/" in name]
        until("it is whole again", lambda: any(cluster.bucket.request("GET", name)[1] != b"damaged" for name in there()))
        until("every node can have it", lambda: not os.listdir(b.data / "images" / "packed"))
        # Node b asks the registry for a tag that moved; node a then has the image from the bucket.
        three = image("unused/two:1", ("note", b"third\n"))
        registry.push(three, "two:1")
        b.cli("image", "pull", reference)
        shared(b, three)
        registry.stop()
        assert run(a, make(a, image=three.digest), "cat", "/note") == "third\n"


@pytest.mark.long
@pytest.mark.parametrize("point", ["engine.images.layer", "engine.images.sent", "engine.images.told"])
def test_a_node_that_is_killed_while_it_sends(cluster, point):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    a.stop()
    a.failpoints = f"{point}=kill"
    a.start()
    one.load(a)
    a.process.wait(timeout=120)
    # However far the upload came, the other node can have the whole image or does not know it.
    assert place(b, one) == ("elsewhere" if point.endswith("told") else None)
    a.failpoints = ""
    a.start()
    shared(a, one)
    until("what was cut off goes", lambda: [diff_id for diff_id, _ in objects(cluster)] == layers_of(one))
    until("packed layers go", lambda: not os.listdir(a.data / "images" / "packed"))
    assert run(b, make(b, image="reg.test/one:1"), "cat", "/note") == "first\n"


@pytest.mark.long
def test_nodes_that_load_the_same_send_it_once(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("big", os.urandom(4 << 20)))
    threads = [threading.Thread(target=one.load, args=(node,)) for node in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for node in (a, b):
        shared(node, one)
    until("one object for each layer", lambda: [diff_id for diff_id, _ in objects(cluster)] == layers_of(one))


@pytest.mark.long
def test_without_the_bucket_for_a_while(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    cluster.bucket.signal(19)
    one.load(a)
    assert run(a, make(a, image="reg.test/one:1"), "cat", "/note") == "first\n", "nobody waits for it"
    assert place(a, one) == "here" and place(b, one) is None
    cluster.bucket.signal(18)
    shared(a, one)
    assert run(b, make(b, image="reg.test/one:1"), "cat", "/note") == "first\n"


@pytest.mark.long
def test_a_moved_sandbox_has_its_image_there(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    one.load(a)
    shared(a, one)
    box = make(a, image="reg.test/one:1", name="box")
    a.ok("POST", "/v1/sandboxes/box/pause", {"mode": "filesystem"})
    until("it is kept", lambda: a.ok("GET", "/v1/sandboxes/box").get("kept_at_ms"))
    a.kill()
    until("it is another node's", lambda: b.call("GET", "/v1/sandboxes/box")[0] == 200)
    assert run(b, box, "cat", "/note") == "first\n"
    a.start()


def build(node, name, tmp_path, text):
    """Builds a template on a node, from a Dockerfile."""
    (tmp_path / "Dockerfile").write_text(text)
    node.cli("template", "build", str(tmp_path), "-t", name)


def template_disks(cluster):
    return [name for name in cluster.bucket.names() if "/images/" in name and "/snapshots/" in name]


def until_shared(cluster, count=1):
    """Waits until every node can have the disks of so many templates: the database lists them, not only the bucket."""
    listed = lambda: cluster.postgres.ask("SELECT count(*) FROM shared_snapshots") == [str(count)]
    until("every node can have their disks", lambda: listed() and len(template_disks(cluster)) == count)


def test_a_template_that_a_dead_node_built_is_used_on_another(cluster, tmp_path):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    one.load(a)
    shared(a, one)
    build(a, "app", tmp_path, "FROM reg.test/one:1\nENV SAID=so\nRUN echo built > /root.txt\n")
    until_shared(cluster)
    # While both nodes live, each makes sandboxes from the template itself.
    boxes = [make(node, template="app") for node in (a, b)]
    assert [cluster.node_of(box) for box in boxes] == ["a", "b"]
    a.kill()
    made, threads = [], []
    for _ in range(4):
        threads.append(threading.Thread(target=lambda: made.append(make(b, template="app"))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run(b, box, "sh", "-c", "cat /root.txt /note; echo $SAID") for box in made] == ["built\nfirst\nso\n"] * 4
    assert b.log.read_text().count("fetching the disk of a template of another node") == 1
    # Node b builds another template on top of it.
    build(b, "more", tmp_path, "FROM template://app\nRUN echo more >> /root.txt\n")
    assert run(b, make(b, template="more"), "cat", "/root.txt") == "built\nmore\n"
    # After a restart b still knows the disk that it fetched; it removes the disk when the template is deleted.
    b.kill()
    b.start()
    box = make(b, template="app")
    assert b.log.read_text().count("fetching the disk of a template of another node") == 1
    a.start()
    for name in ("more", "app"):
        a.ok("DELETE", f"/v1/templates/{name}")
    until("its disk goes", lambda: not template_disks(cluster))
    of = "SELECT count(*) FROM snapshots WHERE held_by LIKE '%template of another node%'"
    until("its copy goes", lambda: cluster.postgres.ask(of) == ["0"])
    assert run(b, box, "cat", "/root.txt") == "built\n", "a sandbox has a disk of its own"


@pytest.mark.long
def test_a_damaged_disk_of_a_template_is_not_used(cluster, tmp_path):
    a, b = cluster.nodes
    build(a, "app", tmp_path, "FROM host\nRUN head -c 1M /dev/urandom > /root/app\n")
    (name,) = until("its disk is in the bucket", lambda: template_disks(cluster))
    whole = cluster.bucket.request("GET", name)[1]
    # The database no longer lists a damaged disk, and the node that built it sends it anew.
    is_told = lambda: cluster.postgres.ask("SELECT count(*) FROM shared_snapshots") == ["1"]
    for damage in (b"", b"not what it was", whole[: len(whole) // 2], whole[:-1]):
        until("every node can have it", is_told)
        cluster.bucket.request("PUT", name, damage)
        status, answer = b.call("POST", "/v1/sandboxes", {"template": "app", "node_labels": {"node": "b"}})
        assert status >= 400 and answer["code"] in ("snapshot_invalid", "digest_mismatch"), answer
    cluster.bucket.request("PUT", name, whole)
    until("every node can have it", is_told)
    box = make(b, template="app")
    assert run(b, box, "wc", "-c", "/root/app") == "1048576 /root/app\n"


@pytest.mark.long
def test_a_template_of_e2b_is_used_on_another_node(cluster, tmp_path):
    a, b = cluster.nodes
    key = a.cli("key", "create", "e2b", "--scope", "admin", "--for", "e2b").stdout.decode().strip()
    until("the key is known", lambda: b.raw("GET", "/e2b/v2/sandboxes", headers={"X-API-Key": key})[0] == 200)
    options = lambda node: {"api_key": key, "api_url": f"{node.url}/e2b", "sandbox_url": node.url}
    # This template adds nothing to its image, so it needs no disk.
    build(a, "plain", tmp_path, "FROM host\n")
    Template.build(Template().from_template("plain").run_cmd("echo built > /tmp/built"), "made", **options(a))
    until_shared(cluster)
    a.kill()
    until("it is known", lambda: cluster.node_of(make(b, template="made")) == "b")
    box = Sandbox.create("made", **options(b))
    assert box.commands.run("cat /tmp/built").stdout == "built\n"
    box.kill()


def test_disks_of_templates_that_are_fetched_at_once_do_not_wait_for_each_other(cluster, tmp_path):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"))
    one.load(a)
    shared(a, one)
    names = ["t0", "t1", "t2"]
    for name in names:
        build(a, name, tmp_path, f"FROM reg.test/one:1\nRUN echo {name} > /root.txt\n")
    until_shared(cluster, len(names))
    a.kill()
    until("its node is dead", lambda: "dead" in [node["state"] for node in b.ok("GET", "/v1/nodes")["items"]])
    made, threads = {}, []
    for name in names:
        threads.append(threading.Thread(target=lambda name=name: made.update({name: make(b, template=name)})))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {name: run(b, box, "cat", "/root.txt") for name, box in made.items()} == {name: f"{name}\n" for name in names}
    a.start()


@pytest.mark.long
def test_a_disk_of_a_template_that_went_is_sent_anew(cluster, tmp_path):
    a, b = cluster.nodes
    build(a, "app", tmp_path, "FROM host\nRUN echo built > /root/app\n")
    (name,) = until("its disk is in the bucket", lambda: template_disks(cluster))
    cluster.bucket.request("DELETE", name)
    status, answer = b.call("POST", "/v1/sandboxes", {"template": "app", "node_labels": {"node": "b"}})
    assert status >= 400, answer
    until_shared(cluster)
    assert run(b, make(b, template="app"), "cat", "/root/app") == "built\n"


@pytest.mark.long
def test_what_others_can_give_makes_room_while_nothing_stands_on_it(cluster):
    a, b = cluster.nodes
    one = image("reg.test/one:1", ("note", b"first\n"), ("big", os.urandom(2 << 20)))
    two = image("reg.test/two:1", ("note", b"second\n"), ("big", os.urandom(2 << 20)))
    for each in (one, two):
        each.load(a)
        shared(a, each)
    b.stop()
    b.args = ("--images-size", "1MiB")
    b.start()
    stands = make(b, image="reg.test/one:1")
    goes = make(b, image="reg.test/two:1")
    assert (place(b, one), place(b, two)) == ("shared", "shared")
    b.ok("DELETE", f"/v1/sandboxes/{goes}")
    until("it makes room", lambda: place(b, two) == "elsewhere", seconds=180)
    assert place(b, one) == "shared" and run(b, stands, "cat", "/note") == "first\n"
    assert (place(a, one), place(a, two)) == ("shared", "shared"), "there is room"
    # Node b fetches the image again and makes room again, although a template that was made on b names it.
    b.ok("POST", "/v1/templates", {"name": "of-two", "image": "reg.test/two:1"})
    again = make(b, template="of-two")
    assert run(b, again, "cat", "/note") == "second\n"
    b.ok("DELETE", f"/v1/sandboxes/{again}")
    until("it makes room", lambda: place(b, two) == "elsewhere", seconds=180)
    assert run(b, make(b, template="of-two"), "cat", "/note") == "second\n"
