#!/usr/bin/env python3
"""Measures agents that live in sandboxes. Started by bench/agents."""

import argparse
import concurrent.futures
import http.client
import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

# The agent answers the message N with N texts, each with the time at which it sent it. Its clock is the host's.
AGENT = """
import json, sys, time
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] != "message":
        continue
    for number in range(int(told["text"])):
        print(json.dumps({"type": "text", "text": f"{time.time_ns()} "}), flush=True)
        time.sleep(0.01)
    print(json.dumps({"type": "done"}), flush=True)
"""
SERVER = """
import http.server
class Agent(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Agent).serve_forever()
"""


class Api:
    """The native API over a connection for each thread."""

    def __init__(self):
        self.url, self.own = urllib.parse.urlsplit(os.environ["ATOLL_URL"]), threading.local()

    def __call__(self, method, path, body=None, raw=False):
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=300)
        headers = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json"}
        self.own.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.own.connection.getresponse()
        content = answer.read()
        assert answer.status < 300, (method, path, answer.status, content)
        return content if raw else json.loads(content) if content else None


api = Api()


def atoll(*arguments):
    done = subprocess.run([os.environ["ATOLL_BIN"], *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout.strip()


def each(count, work):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(work, range(count)))


def row(name, seconds):
    ordered = sorted(seconds)
    at = lambda share: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000
    print(f"| {name} | {at(0.5):.1f} ms | {at(0.99):.1f} ms | {ordered[-1] * 1000:.1f} ms | {len(ordered)} |", flush=True)


def head():
    print("| what | median | p99 | slowest | of |\n|---|---|---|---|---|")


def send(agent, text, thread="main"):
    return api("POST", f"/v1/agents/{agent}/sessions/{thread}/messages", {"text": text})["number"]


def events(agent, after, kind, thread="main"):
    """The events of a session up to the first of a kind, each with the time at which it arrived here."""
    here = []
    while not here or here[-1][1]["kind"] != kind:
        page = api("GET", f"/v1/agents/{agent}/sessions/{thread}/events?after={after}&wait_ms=30000")
        now, after = time.time_ns(), page["next_after"]
        for event in page["items"]:
            assert event["kind"] != "error", event
            here.append((now, event))
            if event["kind"] == kind:
                break
    return here


def home(name):
    """Makes a sandbox at the server's default level; returns its id."""
    return api("POST", "/v1/sandboxes", {"name": name})["id"]


def up(name, sandbox, **more):
    command = {"argv": ["python3", "-u", "-c", AGENT]}
    api("POST", "/v1/agents", {"name": name, "sandbox": sandbox, **command, **more})
    api("POST", f"/v1/agents/{name}/sessions", {"thread": "main"})


def first(agent, text="1"):
    """Seconds from sending a message until the agent's first text arrives here."""
    began = time.perf_counter()
    events(agent, send(agent, text), "text")
    return time.perf_counter() - began


def settled(agent):
    while api("GET", f"/v1/agents/{agent}/sessions/main")["state"] != "idle":
        time.sleep(0.01)


def updates(count):
    with tempfile.TemporaryDirectory() as place:
        script = Path(place, "agent.py")
        for version in (1, 2):
            script.write_text(AGENT + f"# {version}\n")
            atoll("agent", "build", "bench", place)

    def make(number):
        name = f"update-{number}"
        command = ["python3", "-u", "/opt/agents/bench/agent.py"]
        up(name, home(name), layer="bench", version="1", argv=command)
        first(name)
        settled(name)

    each(count, make)
    one = []
    for number in range(count):
        began = time.perf_counter()
        api("POST", f"/v1/agents/update-{number}/update", {"version": "2"})
        one.append(time.perf_counter() - began)
    print(f"\n`agent update`, {count} running sandboxes, each with a process of the agent\n")
    head()
    row("one after another", one)
    began = time.perf_counter()
    atoll("agent", "update", "--all", "bench", "--to", "1")
    print(f"\nAll {count} with one command, `atoll agent update --all`: {time.perf_counter() - began:.2f} s")
    each(count, lambda number: api("DELETE", f"/v1/sandboxes/update-{number}"))


def wakes(level, count):
    sandbox = home(f"wake-{level}")
    up(f"wake-{level}", sandbox)
    first(f"wake-{level}")
    print(f"\nLevel `{level}`: a message to the first that the agent says; a request to a server on a port\n")
    head()
    agent = f"wake-{level}"
    row("agent, awake", [after(agent, None) for _ in range(count)])
    for mode in ("frozen", "memory", "filesystem"):
        try:
            row(f"agent, {mode}", [after(agent, mode) for _ in range(count)])
        except AssertionError as error:
            print(f"| agent, {mode} | {error.args[0][3].decode()[:90] if error.args else 'no'} | | | |")
    service = {"name": "web", "argv": ["python3", "-u", "-c", SERVER], "ready": {"port": 3000}}
    api("POST", f"/v1/sandboxes/{sandbox}/services", service)
    api("GET", f"/v1/sandboxes/{sandbox}/services/web?wait_ms=30000")
    for mode in (None, "frozen", "memory", "filesystem"):
        try:
            row(f"request, {mode or 'awake'}", [request(sandbox, mode) for _ in range(count)])
        except AssertionError as error:
            print(f"| request, {mode} | {error.args[0][3].decode()[:90] if error.args else 'no'} | | | |")
    api("DELETE", f"/v1/sandboxes/{sandbox}")


def after(agent, mode):
    settled(agent)
    if mode:
        api("POST", f"/v1/sandboxes/{agent}/pause", {"mode": mode})
    return first(agent)


def request(sandbox, mode):
    if mode:
        api("POST", f"/v1/sandboxes/{sandbox}/pause", {"mode": mode})
    began = time.perf_counter()
    assert api("GET", f"/v1/sandboxes/{sandbox}/ports/3000/", raw=True) == b"ok"
    return time.perf_counter() - began


def latency(count):
    up("events", home("events"))
    first("events")
    settled("events")
    here = events("events", send("events", str(count)), "done")
    texts = [(now, stamp) for now, event in here if event["kind"] == "text" for stamp in event["data"]["text"].split()]
    print("\nFrom when the agent says something until a reader that waits has the event\n")
    head()
    row("session event", [(now - int(stamp)) / 1e9 for now, stamp in texts])
    api("DELETE", "/v1/sandboxes/events")


def memory():
    return next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))


def idle(count):
    before = memory()

    def make(number):
        name = f"idle-{number}"
        up(name, home(name))
        first(name)
        settled(name)
        api("POST", f"/v1/sandboxes/{name}/pause", {"mode": "frozen"})

    began = time.perf_counter()
    each(count, make)
    took = time.perf_counter() - began
    time.sleep(2)
    each_kib = (before - memory()) / count
    print(f"\n{count} idle agents, each with its Python process and its sandbox frozen between turns: made in {took:.0f} s, {each_kib / 1024:.1f} MiB each")
    head()
    row("and one of them answers", [first(f"idle-{number}") for number in range(min(count, 20))])
    each(count, lambda number: api("DELETE", f"/v1/sandboxes/idle-{number}"))


def main():
    parser = argparse.ArgumentParser()
    for name, count in (("sandboxes", 100), ("wakes", 20), ("events", 1000), ("idle", 500)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--level", default="container")
    wanted = parser.parse_args()
    print(f"Load at the start: {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    if wanted.events:
        latency(wanted.events)
    if wanted.wakes:
        wakes(wanted.level, wanted.wakes)
    if wanted.sandboxes:
        updates(wanted.sandboxes)
    if wanted.idle:
        idle(wanted.idle)


if __name__ == "__main__":
    main()
