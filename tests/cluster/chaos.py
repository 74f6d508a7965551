"""Faults at random, clients at work meanwhile, and a history of what they were told that must hold.

    python chaos.py [--faults 500] [--seed N] [--json FILE]

Three nodes, each in a network namespace of its own and on a disk of its own, with proxies before PostgreSQL and the bucket. Faults: `kill -9`, SIGSTOP
for longer than the lease and for shorter, the cable pulled (no node reaches that one), PostgreSQL out of a node's reach for longer than
the lease and for shorter, PostgreSQL slow, PostgreSQL restarted; the bucket out of a node's reach, slow, refusing everything (503), or
standing still; a node's disk full. What must hold:

- No sandbox is taken over while it runs: whenever the database says that a node was taken over, everything on it stands still.
- A command whose request was repeated, or failed on its way, ran at most once; one that was acknowledged ran exactly once, in order.
- What was acknowledged of a command's output is there, byte for byte, as long as its sandbox lives; where that failed with its node, it
  is said that it is missing.
- A hibernated sandbox whose copy is in the bucket wakes again, whatever dies, with all that was acknowledged.
- One that outlives its node has all that was acknowledged before the moment that it goes on from.
- No two sandboxes have one name.
- In the end all nodes are there, answer alike, and nothing is left over.

All choices come from the seed; how they fall in time does not.
"""

import argparse
import collections
import http.client
import json
import random
import signal
import threading
import time

from cluster import Cluster, until
from ground import Disks, Net, ip
from proxy import REFUSAL, BucketProxy, PostgresProxy

# How many clients run commands in sandboxes, hibernate sandboxes, and have durable sandboxes, which outlive their node.
WORKERS, SLEEPERS, SURVIVORS = 3, 2, 1
LEASE_S = 3
# Earlier than every time stamp: the sandbox was never restored from a copy.
NEVER = 0
KINDS = ["kill", "stop long", "stop short", "cable", "database away long", "database away short", "database slow", "database restarted"]
BUCKET_KINDS = ["bucket away", "bucket slow", "bucket refuses", "bucket stands still"]


class History:
    """What the servers told the clients."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts, self.wrong = collections.Counter(), []
        # For each sandbox: the commands that clients began, and those that a server acknowledged, in order.
        self.begun, self.done, self.execs = collections.defaultdict(set), collections.defaultdict(list), {}

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def violation(self, what):
        with self.lock:
            self.wrong.append(what)
        print("WRONG:", what, flush=True)


class Chaos:
    def __init__(self, cluster, net, disks, seed, faults):
        self.cluster, self.net, self.disks, self.faults = cluster, net, disks, faults
        self.random, self.seed = random.Random(seed), seed
        self.history, self.over = History(), threading.Event()
        self.kinds = collections.Counter()

    # Clients

    def ask(self, node, method, path, body=None, headers=None):
        """The answer of a node; `None` when the client cannot know whether the node did anything."""
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
        """Like `ask`, but repeats the request at nodes chosen at random until one gives an answer."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            told = self.ask(draw.choice(self.cluster.nodes), method, path, body, headers)
            if told is not None:
                return told
            if self.over.wait(0.2):
                return None
        return None

    def made(self, draw, name, round_, **spec):
        """Makes a sandbox with this name and gives its id; `None` when that did not succeed yet."""
        key = {"Idempotency-Key": f"{self.seed}-{name}-{round_}"}
        told = self.settled(draw, "POST", "/v1/sandboxes", {"name": name, **spec}, key)
        if told is None:
            return None
        status, box = told
        if status == 409 and box["code"] == "name_taken":
            # An earlier sandbox has the name: it has failed, or its deletion is not over.
            self.settled(draw, "DELETE", f"/v1/sandboxes/{name}")
            return None
        if status not in (200, 201):
            self.history.count(f"create {status} {box.get('code')}")
            return None
        self.history.count("created")
        return box["id"]

    def rounds(self, use, name, **spec):
        """Makes sandboxes one after the other, and uses them."""
        draw, round_ = random.Random(f"{self.seed} {name}"), 0
        while not self.over.is_set():
            round_ += 1
            box = self.made(draw, name, round_, **spec)
            if box is not None:
                use(draw, box)
                self.settled(draw, "DELETE", f"/v1/sandboxes/{box}")

    def work(self, draw, box):
        self.use(draw, box, draw.randint(3, 25))

    def use(self, draw, box, count):
        """Runs `count` commands; returns whether the sandbox is still there."""
        history = self.history
        first = len(history.begun[box])
        for number in range(first, first + count):
            if self.over.is_set():
                return False
            word = f"{box}-{number}"
            body = {"argv": ["sh", "-c", f"echo {word} >> /root/log; echo {word}"], "idempotency_key": word, "wait_ms": 4000}
            history.begun[box].add(word)
            told = self.settled(draw, "POST", f"/v1/sandboxes/{box}/execs", body)
            if told is None:
                return False
            status, answer = told
            if status >= 400:
                history.count(f"gone {answer.get('code')}")
                return False
            made = answer["exec"]
            if made["state"] == "exited":
                if made["exit"]["code"] != 0:
                    history.violation(f"{word} ended with {made['exit']}")
                history.count("executed")
                history.done[box].append(word)
                history.execs[word] = made
            if number % 4 == 3 and not self.check(draw, box):
                return False
        return True

    def sleep(self, draw, box):
        """Uses the sandbox, hibernates it, wakes it and checks it, up to four times."""
        for _ in range(4):
            if not self.use(draw, box, 3) or not self.kept(draw, box):
                return
            self.over.wait(draw.uniform(0, 4))
            told = self.settled(draw, "POST", f"/v1/sandboxes/{box}/resume", {})
            if told is None or told[0] >= 300 or not self.check(draw, box):
                return
            self.history.count("woken")

    def kept(self, draw, box):
        """Hibernates a sandbox; returns whether its copy is in the bucket. It is not, if its node died before."""
        end, boot = time.monotonic() + 120, None
        while not self.over.is_set():
            told = self.settled(draw, "GET", f"/v1/sandboxes/{box}")
            if told is None:
                return False
            seen = told[1]
            if told[0] != 200 or seen["state"] == "failed":
                if boot is not None and seen.get("boot_id") == boot:
                    self.history.violation(f"{box} was kept: {seen}")
                self.history.count("failed before it was kept")
                return False
            if boot is not None:
                return True
            if seen["state"] == "running":
                self.settled(draw, "POST", f"/v1/sandboxes/{box}/pause", {"mode": "filesystem"})
            elif seen.get("kept_at_ms"):
                self.history.count("hibernated and kept")
                # From here on the sandbox cannot fail, until a client wakes it.
                boot = seen["boot_id"]
                self.over.wait(draw.uniform(0, 4))
            elif time.monotonic() > end:
                self.history.violation(f"{box} is not kept: {seen}")
                return False
            self.over.wait(0.2)
        return False

    def survive(self, draw, box):
        """Uses a durable sandbox, which goes on from its last copy when its node dies."""
        for _ in range(8):
            self.use(draw, box, 3)
            told = self.settled(draw, "GET", f"/v1/sandboxes/{box}")
            if told is None or told[0] != 200 or told[1]["state"] == "failed":
                self.history.count("failed before it was copied")
                return

    def check(self, draw, box):
        """Checks that the sandbox has all that was acknowledged; returns whether its log could be read."""
        before = self.restored(draw, box)
        lines = self.lines(draw, box)
        if lines is None or before is None or before != self.restored(draw, box):
            return False
        history = self.history
        for word, times in collections.Counter(lines).items():
            if times > 1:
                history.violation(f"{word} ran {times} times")
            if word not in history.begun[box]:
                history.violation(f"{word} was never asked for")
        lost = [word for word in history.done[box] if word not in set(lines)]
        for word in lost:
            if history.execs[word]["ended_at_ms"] < before:
                history.violation(f"{word} is not there: {history.execs[word]}, restored from {before}, there are {lines}")
            history.count("lost since the last copy")
        done = history.done[box] = [word for word in history.done[box] if word not in lost]
        if lost and before == NEVER:
            history.violation(f"{box}: acknowledged {lost}, there are {lines}")
        if [line for line in lines if line in set(done)] != done:
            history.violation(f"{box}: acknowledged {done}, there are {lines}")
        history.count("logs compared" if before == NEVER else "logs compared after a restore")
        return True

    def restored(self, draw, box):
        """The time of the copy that a sandbox was restored from; `None` when no node can tell it."""
        told = self.settled(draw, "GET", f"/v1/sandboxes/{box}")
        return None if told is None or told[0] != 200 else told[1].get("restored_from_ms", NEVER)

    def lines(self, draw, box):
        """The words in the log on the disk of a sandbox."""
        body = {"argv": ["sh", "-c", "touch /root/log; cat /root/log"], "wait_ms": 4000, "idempotency_key": f"{box}-read-{draw.random()}"}
        told = self.settled(draw, "POST", f"/v1/sandboxes/{box}/execs", body)
        if told is None or told[0] >= 400 or told[1]["exec"]["state"] != "exited":
            return None
        output = self.settled(draw, "GET", f"/v1/sandboxes/{box}/execs/{told[1]['exec']['id']}/output")
        if output is None or output[0] != 200:
            return None
        if output[1].get("gap_until"):
            # The output was on the disk of a node that died: the sandbox failed with it, or goes on from its last copy.
            told = self.settled(draw, "GET", f"/v1/sandboxes/{box}")
            seen = {"state": "failed"} if told is None or told[0] != 200 else told[1]
            if seen["state"] != "failed" and "restored_from_ms" not in seen:
                self.history.violation(f"{box}: output is missing of what is {seen['state']}: {output[1]}")
            self.history.count("logs gone with their node")
            return None
        return "".join(chunk["data"] for chunk in output[1]["chunks"]).split()

    # What must hold all the time

    def watch(self):
        # The epoch tells a node from the same node started again: a line that both queries give held in between, too.
        sql = "SELECT name, epoch FROM nodes WHERE is_alive = 0"
        while not self.over.wait(0.1):
            dead = self.sql(sql)
            for line in dead or []:
                node = next(node for node in self.cluster.nodes if node.name == line.split("|")[0])
                # A frozen process that is killed dies in the kernel: it does not run, so look twice.
                if not self.stands_still(node) and not self.stands_still(node, 0.05) and line in (self.sql(sql) or []):
                    self.history.violation(f"{line} was taken over and runs")
            if dead:
                self.history.count("looks at nodes that were taken over")
            twice = self.sql("SELECT name FROM sandboxes WHERE name IS NOT NULL GROUP BY name HAVING count(*) > 1")
            if twice:
                self.history.violation(f"names that are there twice: {twice}")

    def stands_still(self, node, after=0):
        time.sleep(after)
        try:
            return node.stands_still()
        except OSError:
            # A cgroup was removed while it was read.
            return True

    def sql(self, text):
        try:
            return self.cluster.postgres.ask(text)
        except AssertionError:
            return None

    # Faults

    def restart(self, node):
        """Starts the server again if it has ended, as a service manager would; continues it first if it was stopped."""
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
        kind = draw.choice([*KINDS, *BUCKET_KINDS, "disk full"])
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
        elif kind == "database restarted":
            self.cluster.postgres.stop()
            time.sleep(draw.uniform(0, LEASE_S * 0.6))
            self.cluster.postgres.start()
        elif kind == "disk full":
            self.disks.fill(node.name, draw.choice([short, long]))
        else:
            self.bucket_fault(kind, node, draw.choice([short, long]))
        time.sleep(draw.uniform(0.1, 0.8))
        for one in self.cluster.nodes:
            if one.process.poll() is not None:
                self.restart(one)

    def bucket_fault(self, kind, node, seconds):
        proxy, bucket = self.cluster.bucket_proxies[node.name], self.cluster.bucket
        if kind == "bucket away":
            proxy.cut()
            time.sleep(seconds)
            proxy.mend()
        elif kind == "bucket slow":
            proxy.delay = self.random.uniform(0.01, 0.15)
            time.sleep(seconds)
            proxy.delay = 0
        elif kind == "bucket refuses":
            proxy.refusal = REFUSAL
            time.sleep(seconds)
            proxy.refusal = None
        else:
            bucket.signal(signal.SIGSTOP)
            time.sleep(seconds)
            bucket.signal(signal.SIGCONT)

    def run(self):
        clients = [(self.work, f"box-{number}", {}) for number in range(WORKERS)]
        clients += [(self.sleep, f"sleeper-{number}", {}) for number in range(SLEEPERS)]
        durable = {"durability": {"after_exec": True, "every_ms": 2000}}
        clients += [(self.survive, f"survivor-{number}", durable) for number in range(SURVIVORS)]
        threads = [threading.Thread(target=self.rounds, args=(use, name), kwargs=spec) for use, name, spec in clients]
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
        """Checks the output of acknowledged commands in the sandboxes that still run and were never restored."""
        node = self.cluster.nodes[0]
        seen = node.ok("GET", "/v1/sandboxes")["items"]
        alive = {one["id"] for one in seen if one["state"] == "running" and "restored_from_ms" not in one}
        for word, made in self.history.execs.items():
            box = word.rsplit("-", 1)[0]
            if box in alive and word in self.history.done[box]:
                status, _, text = node.raw("GET", f"/v1/sandboxes/{box}/execs/{made['id']}/output")
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
    cluster = Cluster(*names, objects=True)
    cluster.lease = f"{LEASE_S}s"
    with Net(names) as net, Disks(names) as disks:
        cluster.proxies = {name: PostgresProxy(cluster.postgres, name) for name in names}
        cluster.bucket_proxies = {name: BucketProxy(cluster.bucket, f"{net.net}.254") for name in names}
        for node in cluster.nodes:
            address = net.address(node.name)
            node.data = disks.data(node.name)
            node.prefix = ["nsenter", f"--net=/run/netns/{net.space(node.name)}"]
            node.database, node.listen = cluster.proxies[node.name].url, f"{address}:4600"
            node.objects_endpoint = cluster.bucket_proxies[node.name].endpoint
            node.args = ("--advertise", f"{address}:4601")
        with cluster:
            told = Chaos(cluster, net, disks, seed, faults).run()
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
