"""Three nodes get another program one after the other while clients work.

No call of a client fails except those that the client's SDK repeats.

The nodes begin with the program ATOLL_OLD_BIN. Without it they keep their program, and are only restarted. Two ways:

- In place: the old server ends and the new one starts on its directory. Sandboxes stay and their commands go on.
- To another machine: the node is drained first. Its sandboxes go on elsewhere; a command that runs for longer than the
  drain waits ends, so the clients' commands are short here.

The SDK of E2B does not take up a command again whose connection ends while the SDK reads its output: the SDK's
user must repeat the command, and so does the client here.

Clients reach the cluster as users' clients do, through a balancer that sends connections to nodes that say they are
ready.
"""

import http.client
import itertools
import os
import signal
import socket
import sys
import threading
import time
import pathlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "sdk/python/src"))

from atoll import Atoll
from e2b import Sandbox
from e2b.exceptions import SandboxUnreachableException

from cluster import Cluster, until
from way import Way, join

pytestmark = pytest.mark.long

WORKERS = 2


class Balancer(Way):
    """Balances TCP connections as an ingress does: over the nodes whose /readyz answered 200 a moment ago. A node that
    it cannot connect to is passed over."""

    def __init__(self, nodes):
        self.nodes, self.ready, self.done = nodes, list(nodes), threading.Event()
        self.next = itertools.count()
        super().__init__()
        self.looking = threading.Thread(target=self.look, daemon=True)
        self.looking.start()

    def close(self):
        self.done.set()
        self.looking.join()
        super().close()

    def look(self):
        while not self.done.wait(0.1):
            self.ready = [node for node in self.nodes if self.answers(node)]

    def answers(self, node):
        try:
            return node.raw("GET", "/readyz", timeout=2)[0] == 200
        except OSError:
            return False

    def serve(self, client):
        ready = self.ready or self.nodes
        first = next(self.next)
        for at in range(len(ready)):
            host, _, port = ready[(first + at) % len(ready)].listen.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)), timeout=5)
            except OSError:
                continue
            server.settimeout(None)
            join(client, server)
            return
        client.close()


class Load:
    """Clients that work until the test stops them, and the errors that they met."""

    def __init__(self, url, key, e2b_key):
        self.url, self.e2b = url, {"api_key": e2b_key, "api_url": f"{url}/e2b", "sandbox_url": url}
        self.client = Atoll(url, key)
        self.ended, self.failed, self.calls = threading.Event(), [], 0
        works = [self.stays] * WORKERS + [self.comes_and_goes, self.comes_and_goes_by_e2b]
        self.threads = [threading.Thread(target=self.run, args=(work, number)) for number, work in enumerate(works)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def run(self, work, number):
        try:
            work(number)
        except Exception as error:
            self.failed.append(f"{work.__name__}: {error!r}")

    def stays(self, number):
        """Uses one sandbox all the time: each command runs once, and what it wrote stays."""
        box = self.client.sandboxes.create(name=f"stays-{number}")
        for turn in itertools.count():
            if self.ended.is_set():
                break
            said = box.run(f"echo {turn} >> /root/log; echo {turn}", check=True).stdout
            assert said == f"{turn}\n", (turn, said)
            self.calls += 1
            time.sleep(0.02)
        log = box.files.read("/root/log")
        assert log == "".join(f"{one}\n" for one in range(turn)), log
        box.delete()

    def comes_and_goes(self, _):
        while not self.ended.is_set():
            with self.client.sandboxes.create() as box:
                box.files.write("/root/note", "kept")
                assert box.run("cat /root/note", check=True).stdout == "kept"
            self.calls += 4

    def comes_and_goes_by_e2b(self, _):
        while not self.ended.is_set():
            box = Sandbox.create(timeout=120, **self.e2b)
            try:
                assert box.commands.run("echo here").stdout == "here\n"
            except SandboxUnreachableException as cut:
                print("cut off:", cut)
                assert box.commands.run("echo here").stdout == "here\n"
            box.kill()
            self.calls += 3


@pytest.fixture
def cluster(monkeypatch):
    new = os.environ["ATOLL_BIN"]
    monkeypatch.setenv("ATOLL_BIN", os.environ.get("ATOLL_OLD_BIN", new))
    with Cluster(objects=True) as cluster:
        monkeypatch.setenv("ATOLL_BIN", new)
        yield cluster


@pytest.fixture
def load(cluster):
    node = cluster.nodes[0]
    key = node.cli("key", "create", "e2b", "--scope", "admin", "--for", "e2b").stdout.decode().strip()
    knows = lambda node: node.raw("GET", "/e2b/v2/sandboxes", headers={"X-API-Key": key})[0] == 200
    until("every node knows the key", lambda: all(knows(node) for node in cluster.nodes))
    balancer = Balancer(cluster.nodes)
    yield Load(f"http://127.0.0.1:{balancer.port}", cluster.key, key)
    balancer.close()


def is_up(cluster, node):
    """Whether every node says that this node is ready."""

    def state(other):
        status, answer = other.call("GET", "/v1/nodes")
        # A node that starts does not know the states of all nodes at once.
        return {one["name"]: one["state"] for one in answer["items"]}.get(node.name) if status == 200 else None

    return all(state(other) == "ready" for other in cluster.nodes)


def test_in_place(cluster, load):
    with load:
        # On each node a command runs all the time, and a client reads its output all the time.
        heard, long = [], []
        for node in cluster.nodes:
            made = node.make(name=f"long-{node.name}")
            box, lines = load.client.sandboxes.get(made["id"]), []
            process = box.start("n=0; while [ ! -e /root/stop ]; do n=$((n+1)); echo $n; sleep 0.02; done; echo end")
            listener = threading.Thread(
                target=load.run, args=(lambda process: lines.append("".join(chunk.text for chunk in process.output())), process)
            )
            listener.start()
            long.append((box, listener))
            heard.append(lines)
        for node in cluster.nodes:
            before = load.calls
            node.stop()
            node.start()
            until("it is there again", lambda: is_up(cluster, node))
            until("clients work", lambda: load.calls > before + 20 or load.failed)
            assert not load.failed, load.failed
        for box, listener in long:
            box.files.write("/root/stop", "")
            listener.join()
    assert not load.failed, load.failed
    for (lines,) in heard:
        *numbers, end = lines.split()
        assert end == "end" and numbers == [str(one + 1) for one in range(len(numbers))], "nothing is missing, nothing comes twice"


@pytest.mark.long
def test_by_draining(cluster, load):
    with load:
        for node in cluster.nodes:
            before = load.calls
            other = next(other for other in cluster.nodes if other is not node)
            other.cli("node", "drain", node.name, "--wait")
            here = f"SELECT count(*) FROM sandboxes s JOIN nodes n ON n.id = s.node WHERE n.name = '{node.name}'"
            assert cluster.postgres.ask(here) == ["0"], "all of them have gone"
            node.stop()
            node.start()
            other.cli("node", "undrain", node.name)
            until("it is there again", lambda: is_up(cluster, node))
            until("clients work", lambda: load.calls > before + 20 or load.failed)
            assert not load.failed, load.failed
    assert not load.failed, load.failed


def test_what_is_on_its_way_to_a_node_that_ends_is_answered(cluster):
    node = cluster.nodes[0]
    waiting, fresh = (http.client.HTTPConnection(node.listen, timeout=30) for _ in range(2))
    key = {"Authorization": f"Bearer {cluster.key}"}

    def asks(connection):
        connection.request("GET", "/v1/sandboxes", headers=key)
        with connection.getresponse() as answer:
            return answer.status, answer.headers.get("Connection"), answer.read()[:1]

    assert asks(waiting) == (200, None, b"{")
    fresh.connect()
    node.signal(signal.SIGTERM)
    until("it takes no more", lambda: not connects(node))
    # Both connections were open before, and the server had announced the close of neither.
    assert asks(waiting) == asks(fresh) == (200, "close", b"{")
    node.process.wait(timeout=30)
    node.start()


def connects(node):
    host, _, port = node.listen.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True
