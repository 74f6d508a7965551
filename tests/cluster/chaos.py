"""Faults at random, clients at work meanwhile, and a history of what they were told that must hold.

    python chaos.py [--faults 500] [--seed N] [--json FILE]

Three nodes, each in a network namespace of its own with a proxy of its own before PostgreSQL. Faults: `kill -9`, SIGSTOP for longer
than the lease and for shorter, the cable pulled (no node reaches that one), PostgreSQL out of a node's reach for longer than the
lease and for shorter, PostgreSQL slow, PostgreSQL restarted. What must hold:

- No sandbox is taken over while it runs: whenever the database says that a node was taken over, everything on it stands still.
- A command whose request was repeated, or failed on its way, ran at most once; one that was acknowledged ran exactly once, in order.
- What was acknowledged of a command's output is there, byte for byte, as long as its sandbox lives; where that failed with its node, it
  is said that it is missing.
- No two sandboxes have one name.
- In the end all nodes are there, answer alike, and nothing is left over.

All choices come from the seed; how they fall in time does not.
"""

import argparse
import collections
import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time

from cluster import Cluster, until
from proxy import Proxy

WORKERS = 4
LEASE_S = 3


def ip(*args):
    subprocess.run(["ip", *args], check=True)


class Net:
    """A bridge, and a namespace for each node."""

    def __init__(self, names):
        self.tag = f"ac{os.getpid() % 10000}"
        self.net = f"10.231.{os.getpid() % 250}"
        self.names = names

    def __enter__(self):
        ip("link", "add", self.tag, "type", "bridge")
        ip("addr", "add", f"{self.net}.254/24", "dev", self.tag)
        ip("link", "set", self.tag, "up")
        for number, name in enumerate(self.names):
            space, end = self.space(name), self.cable(name)
            ip("netns", "add", space)
            ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", end, "master", self.tag, "up")
            ip("-n", space, "addr", "add", f"{self.net}.{number + 1}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "eth0", "up")
        return self

    def space(self, name):
        return f"{self.tag}-{name}"

    def cable(self, name):
        return f"{self.tag}{name}"

    def address(self, name):
        return f"{self.net}.{self.names.index(name) + 1}"

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.space(name)])
        subprocess.run(["ip", "link", "del", self.tag])


class History:
    """What clients were told."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts, self.wrong = collections.Counter(), []
        # Of each sandbox that is used: which commands were begun, and which were acknowledged, in order.
        self.begun, self.done, self.execs = collections.defaultdict(set), collections.defaultdict(list), {}

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def violation(self, what):
        with self.lock:
            self.wrong.append(what)
        print("WRONG:", what, flush=True)


class Chaos:
    def __init__(self, cluster, net, seed, faults):
        self.cluster, self.net, self.faults = cluster, net, faults
        self.random, self.seed = random.Random(seed), seed
        self.history, self.over = History(), threading.Event()
        self.kinds = collections.Counter()

    # Clients

    def ask(self, node, method, path, body=None, headers=None):
        """What a node answers; `None` when it is not known whether it did anything."""
        try:
            status, answer = node.call(method, path, body, headers=headers, timeout=8)
        except (OSError, http.client.HTTPException, ValueError):
            self.history.count("unknown")
            return None
        if status >= 500 or status == 401:
            self.history.count(f"refused {(answer or {}).get('code')}")
            return None
        return status, answer

    def settled(self, draw, method, path, body=None, headers=None):
        """The same, asked again at any node until it is known."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            told = self.ask(draw.choice(self.cluster.nodes), method, path, body, headers)
            if told is not None:
                return told
            if self.over.wait(0.2):
                return None
        return None

    def work(self, number):
        draw = random.Random(f"{self.seed} {number}")
        name = f"box-{number}"
        round_ = 0
        while not self.over.is_set():
            round_ += 1
            key = {"Idempotency-Key": f"{self.seed}-{number}-{round_}"}
            made = self.settled(draw, "POST", "/v1/sandboxes", {"name": name}, key)
            if made is None:
                continue
            status, box = made
            if status == 409 and box["code"] == "name_taken":
                # An earlier one, whose deletion or failure is not over.
                self.settled(draw, "DELETE", f"/v1/sandboxes/{name}")
                continue
            if status not in (200, 201):
                self.history.count(f"create {status} {box.get('code')}")
                continue
            self.history.count("created")
            self.use(draw, box["id"])
            self.settled(draw, "DELETE", f"/v1/sandboxes/{box['id']}")

    def use(self, draw, box):
        history = self.history
        for number in range(draw.randint(3, 25)):
            if self.over.is_set():
                return
            word = f"{box}-{number}"
            body = {"argv": ["sh", "-c", f"echo {word} >> /root/log; echo {word}"], "idempotency_key": word, "wait_ms": 4000}
            history.begun[box].add(word)
            told = self.settled(draw, "POST", f"/v1/sandboxes/{box}/execs", body)
            if told is None:
                return
            status, answer = told
            if status >= 400:
                history.count(f"gone {answer.get('code')}")
                return
            made = answer["exec"]
            if made["state"] == "exited":
                if made["exit"]["code"] != 0:
                    history.violation(f"{word} ended with {made['exit']}")
                history.count("executed")
                history.done[box].append(word)
                history.execs[word] = made["id"]
            if number % 4 == 3 and not self.check(draw, box):
                return

    def check(self, draw, box):
        """What the sandbox holds is what was acknowledged."""
        told = self.settled(draw, "POST", f"/v1/sandboxes/{box}/execs", {"argv": ["cat", "/root/log"], "wait_ms": 4000, "idempotency_key": f"{box}-read-{draw.random()}"})
        if told is None or told[0] >= 400 or told[1]["exec"]["state"] != "exited":
            return False
        output = self.settled(draw, "GET", f"/v1/sandboxes/{box}/execs/{told[1]['exec']['id']}/output")
        if output is None or output[0] != 200:
            return False
        if output[1].get("gap_until"):
            # It was on the disk of the node: then that died, and the sandbox failed with it.
            seen = self.settled(draw, "GET", f"/v1/sandboxes/{box}")
            if seen is not None and (seen[0] != 200 or seen[1]["state"] != "failed"):
                self.history.violation(f"{box}: output is missing of what is {seen[1].get('state')}: {output[1]}")
            self.history.count("logs gone with their node")
            return False
        lines, history = "".join(chunk["data"] for chunk in output[1]["chunks"]).split(), self.history
        for word, times in collections.Counter(lines).items():
            if times > 1:
                history.violation(f"{word} ran {times} times")
            if word not in history.begun[box]:
                history.violation(f"{word} was never asked for")
        done = history.done[box]
        if [line for line in lines if line in set(done)] != done:
            history.violation(f"{box}: acknowledged {done}, there are {lines}")
        history.count("logs compared")
        return True

    # What must hold all the time

    def watch(self):
        # Each question has an answer that was true while it was asked: a node that is back is another.
        sql = "SELECT name, epoch FROM nodes WHERE is_alive = 0"
        while not self.over.wait(0.1):
            dead = self.sql(sql)
            for line in dead or []:
                node = next(node for node in self.cluster.nodes if node.name == line.split("|")[0])
                try:
                    stands = node.stands_still()
                except OSError:
                    # A cgroup went while it was looked at.
                    continue
                if not stands and line in (self.sql(sql) or []):
                    self.history.violation(f"{line} was taken over and runs")
            if dead:
                self.history.count("looks at nodes that were taken over")
            twice = self.sql("SELECT name FROM sandboxes WHERE name IS NOT NULL GROUP BY name HAVING count(*) > 1")
            if twice:
                self.history.violation(f"names that are there twice: {twice}")

    def sql(self, text):
        try:
            return self.cluster.postgres.ask(text)
        except AssertionError:
            return None

    # Faults

    def restart(self, node):
        """What its service manager would do, whatever it is doing."""
        if node.process.poll() is None:
            node.signal(signal.SIGCONT)
        for _ in range(20):
            if node.process.poll() is not None:
                try:
                    node.start()
                except AssertionError:
                    time.sleep(0.5)
                    continue
            break
        self.find(node)

    def find(self, node):
        node.url = f"http://{self.net.address(node.name)}:4600"

    def fault(self):
        draw, node = self.random, self.random.choice(self.cluster.nodes)
        kind = draw.choice(["kill", "stop long", "stop short", "cable", "database away long", "database away short", "database slow", "database restarted"])
        self.kinds[kind] += 1
        long, short = LEASE_S * draw.uniform(1.3, 2), LEASE_S * draw.uniform(0.1, 0.6)
        proxy = self.cluster.proxies[node.name]
        if kind == "kill":
            node.kill()
            time.sleep(draw.choice([short, long]))
        elif kind.startswith("stop"):
            node.signal(signal.SIGSTOP)
            time.sleep(long if "long" in kind else short)
            node.signal(signal.SIGCONT)
        elif kind == "cable":
            ip("link", "set", self.net.cable(node.name), "down")
            time.sleep(draw.choice([short, long]))
            ip("link", "set", self.net.cable(node.name), "up")
        elif kind.startswith("database away"):
            proxy.cut()
            time.sleep(long if "long" in kind else short)
            proxy.mend()
        elif kind == "database slow":
            proxy.delay = draw.uniform(0.01, 0.15)
            time.sleep(short * 2)
            proxy.delay = 0
        else:
            self.cluster.postgres.stop()
            time.sleep(draw.uniform(0, LEASE_S * 0.6))
            self.cluster.postgres.start()
        time.sleep(draw.uniform(0.1, 0.8))
        for one in self.cluster.nodes:
            if one.process.poll() is not None:
                self.restart(one)

    def run(self):
        threads = [threading.Thread(target=self.work, args=(number,)) for number in range(WORKERS)]
        threads.append(threading.Thread(target=self.watch))
        for thread in threads:
            thread.start()
        try:
            for number in range(self.faults):
                self.fault()
                if number % 25 == 24:
                    print(f"{number + 1} faults: {dict(self.history.counts)}", flush=True)
        finally:
            time.sleep(1)
            self.over.set()
            for thread in threads:
                thread.join()
        until("all answer again", self.all_serve)
        lists = [sorted(one["id"] for one in node.ok("GET", "/v1/sandboxes")["items"]) for node in self.cluster.nodes]
        assert lists[0] == lists[1] == lists[2], lists
        self.outputs()
        return {"seed": self.seed, "faults": dict(self.kinds), "history": dict(self.history.counts), "wrong": self.history.wrong}

    def outputs(self):
        """What was acknowledged of the output of what is still there."""
        node = self.cluster.nodes[0]
        alive = {one["id"] for one in node.ok("GET", "/v1/sandboxes")["items"] if one["state"] == "running"}
        for word, made in self.history.execs.items():
            box = word.rsplit("-", 1)[0]
            if box in alive:
                status, _, text = node.raw("GET", f"/v1/sandboxes/{box}/execs/{made}/output")
                if status != 200 or word.encode() not in text:
                    self.history.violation(f"the output of {word} is lost: {status} {text[:100]}")
                self.history.count("outputs compared in the end")

    def all_serve(self):
        for node in self.cluster.nodes:
            if node.process.poll() is not None:
                self.restart(node)
        return all(self.serves(node) for node in self.cluster.nodes)

    def serves(self, node):
        try:
            return node.raw("GET", "/readyz", timeout=5)[0] == 200
        except OSError:
            return False


def run(faults, seed):
    print(f"seed {seed}", flush=True)
    names = ["a", "b", "c"]
    cluster = Cluster(*names)
    cluster.lease = f"{LEASE_S}s"
    with Net(names) as net:
        cluster.proxies = {name: Proxy(cluster.postgres, name) for name in names}
        for node in cluster.nodes:
            address = net.address(node.name)
            node.prefix = ["nsenter", f"--net=/run/netns/{net.space(node.name)}"]
            node.database, node.listen = cluster.proxies[node.name].url, f"{address}:4600"
            node.args = ("--advertise", f"{address}:4601")
        with cluster:
            told = Chaos(cluster, net, seed, faults).run()
    print(json.dumps(told, indent=2), flush=True)
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--json")
    args = parser.parse_args()
    result = run(args.faults, args.seed)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=2)
    raise SystemExit(1 if result["wrong"] else 0)
