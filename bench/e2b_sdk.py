#!/usr/bin/env python3
"""Measures Atoll through E2B's SDK for Python, and beside it through other ways. Started by bench/e2b, with the server in E2B_API_URL."""

import argparse
import asyncio
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.parse

from e2b import AsyncSandbox, Sandbox

INTERPRETER = "code-interpreter-v1"
# `base` is the default image if no template has that name, so the rows differ only in the SDK or API that they use.
LANGSMITH = """
import json, os, sys, time, urllib.request
from langsmith.sandbox import SandboxClient
def timed(count, work):
    times = []
    for _ in range(count + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times[1:]
creates, waiting, runs, megabytes = map(int, sys.argv[1:])
pools = urllib.request.Request(os.environ["ATOLL_URL"] + "/v1/pools", headers={"Authorization": "Bearer " + os.environ["ATOLL_API_KEY"]})
times = []
with SandboxClient() as client:
    for _ in range(creates + 1 if creates else 0):
        while sum(pool["ready"] for pool in json.load(urllib.request.urlopen(pools))["items"]) < waiting:
            time.sleep(0.05)
        start = time.perf_counter()
        box = client.create_sandbox()
        assert box.run("true").exit_code == 0
        times.append(time.perf_counter() - start)
        client.delete_sandbox(box.name)
    told = {"creates": times[1:]}
    if runs:
        box = client.create_sandbox()
        data = os.urandom(1 << 20) * megabytes
        told["runs"] = timed(runs, lambda: box.run("true"))
        told["write"] = min(timed(3, lambda: box.write("/tmp/large", data, timeout=600)))
        told["read"] = min(timed(3, lambda: box.read("/tmp/large", timeout=600)))
        client.delete_sandbox(box.name)
print(json.dumps(told))
"""


class Api:
    """The native API, over one kept-alive connection."""

    def __init__(self):
        url = urllib.parse.urlsplit(os.environ["ATOLL_URL"])
        self.connection = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
        self.headers = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json"}

    def raw(self, method, path, body=None):
        self.connection.request(method, path, body, self.headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status}: {content.decode()}")
        return content

    def call(self, method, path, body=None):
        content = self.raw(method, path, None if body is None else json.dumps(body))
        return json.loads(content) if content else None


class Pool:
    """A warm pool that exists while a block measures."""

    def __init__(self, api, size, **of):
        self.api, self.size, self.of = api, size, of

    def __enter__(self):
        self.api.call("PUT", "/v1/pools", {**self.of, "min": self.size, "max": self.size})
        return self

    def __exit__(self, *_):
        self.api.call("DELETE", "/v1/pools?" + urllib.parse.urlencode(self.of))

    def full(self):
        """Waits until the pool is full."""
        while sum(pool["ready"] for pool in self.api.call("GET", "/v1/pools")["items"]) < self.size:
            time.sleep(0.05)


def timed(count, work, before=lambda: None, after=lambda made: None):
    """Seconds that the work takes each time. A first run more warms up and is not counted."""
    times = []
    for _ in range(count + 1):
        before()
        start = time.perf_counter()
        made = work()
        times.append(time.perf_counter() - start)
        after(made)
    return times[1:]


def row(name, times):
    """Prints a line of the table."""
    times = sorted(times)
    at = lambda share: f"{times[min(len(times) - 1, int(len(times) * share))] * 1000:.1f} ms"
    print(f"| {name} | {at(0.5)} | {at(0.99)} | {times[-1] * 1000:.1f} ms | {len(times)} |", flush=True)


def native(api):
    sandbox = api.call("POST", "/v1/sandboxes", {})["id"]
    done = api.call("POST", f"/v1/sandboxes/{sandbox}/execs", {"argv": ["true"], "wait_ms": 60000})
    assert done["exec"]["exit"]["code"] == 0
    return sandbox


def e2b():
    sandbox = Sandbox.create(timeout=600)
    sandbox.commands.run("true")
    return sandbox


def langsmith(args, creates=0, waiting=0, runs=0):
    """Measures LangSmith's SDK in a process of its own; returns its figures."""
    url, key = os.environ["ATOLL_URL"] + "/langsmith", os.environ["ATOLL_API_KEY"]
    environment = {**os.environ, "LANGSMITH_ENDPOINT": url, "LANGSMITH_API_KEY": key, "LANGSMITH_TRACING": "false"}
    numbers = [str(number) for number in (creates, waiting, runs, args.megabytes)]
    done = subprocess.run([args.langsmith, "-c", LANGSMITH, *numbers], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def creations(api, args, pool=None):
    name, full = (f", pool of {pool.size}", pool.full) if pool else ("", lambda: None)
    remove = lambda sandbox: api.call("DELETE", f"/v1/sandboxes/{sandbox}")
    row(f"native API: create → exec `true`{name}", timed(args.creates, lambda: native(api), full, remove))
    row(f'E2B: create → commands.run("true"){name}', timed(args.creates, e2b, full, lambda box: box.kill()))
    if args.langsmith:
        row(f'LangSmith: create → run("true"){name}', langsmith(args, args.creates, pool.size if pool else 0)["creates"])


async def burst(count):
    """Creates so many sandboxes at once, each with its own client; returns their seconds. Prints up to three errors."""

    async def one():
        start = time.perf_counter()
        sandbox = await AsyncSandbox.create(timeout=600, request_timeout=120)
        await sandbox.commands.run("true", request_timeout=120)
        return time.perf_counter() - start, sandbox

    done = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
    made = [one for one in done if not isinstance(one, BaseException)]
    await asyncio.gather(*(sandbox.kill() for _, sandbox in made))
    for error in [one for one in done if isinstance(one, BaseException)][:3]:
        print(f"burst: {error!r}", file=sys.stderr)
    return [took for took, _ in made]


def commands_and_files(api, args):
    """Measures commands and files in one sandbox for each API or SDK; returns how fast files were sent."""
    rates = []

    def rate(name, write, read):
        size = args.megabytes * (1 << 20) / 1e6
        rates.append(f"{name} files of {size:.0f} MB: write {size / write:.0f} MB/s, read {size / read:.0f} MB/s")

    data = os.urandom(1 << 20) * args.megabytes
    box = "/v1/sandboxes/" + api.call("POST", "/v1/sandboxes", {})["id"]
    run = {"argv": ["true"], "wait_ms": 60000}
    row("native API: exec `true`, one after another", timed(args.runs, lambda: api.call("POST", box + "/execs", run)))
    file = box + "/files?path=/tmp/large"
    # The first transfer of each kind warms up.
    rate("native API", min(timed(3, lambda: api.raw("PUT", file, data))), min(timed(3, lambda: api.raw("GET", file))))
    api.call("DELETE", box)
    with Sandbox.create(timeout=3600) as sandbox:
        row('E2B: commands.run("true"), one after another', timed(args.runs, lambda: sandbox.commands.run("true")))
        row("E2B: files.write 1 KiB", timed(args.runs, lambda: sandbox.files.write("f", b"x" * 1024)))
        row("E2B: files.read 1 KiB", timed(args.runs, lambda: sandbox.files.read("f", format="bytes")))
        written = min(timed(3, lambda: sandbox.files.write("large", data, request_timeout=600)))
        read = min(timed(3, lambda: len(sandbox.files.read("large", format="bytes", request_timeout=600))))
        rate("E2B", written, read)
    if args.langsmith:
        told = langsmith(args, runs=args.runs)
        row('LangSmith: run("true"), one after another', told["runs"])
        rate("LangSmith", told["write"], told["read"])
    return ". ".join(rates)


def cells(api, args):
    from e2b_code_interpreter import Sandbox as Interpreter

    def create():
        sandbox = Interpreter.create(timeout=600, request_timeout=300)
        assert sandbox.run_code("1+1").text == "2"
        return sandbox

    kill = lambda sandbox: sandbox.kill()
    row('code interpreter: create → run_code("1+1"), a kernel started each time', timed(min(args.cells, 5), create, after=kill))
    with Pool(api, args.pool, template=INTERPRETER) as pool:
        row(f'code interpreter: create → run_code("1+1"), pool of {args.pool}', timed(args.cells, create, pool.full, kill))
    with Interpreter.create(timeout=3600, request_timeout=300) as sandbox:
        row('code interpreter: run_code("1+1"), one after another', timed(args.cells * 10, lambda: sandbox.run_code("1+1")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--creates", type=int, default=100)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--burst", type=int, default=100)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--pool", type=int, default=8, help="how many wait in the pools")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--langsmith", help="Python that has LangSmith's SDK")
    args = parser.parse_args()
    api = Api()
    print("| call | median | p99 | slowest | of |\n|---|---|---|---|---|")
    creations(api, args)
    with Pool(api, args.pool, image=os.environ.get("POOL_IMAGE", "host")) as pool:
        creations(api, args, pool)
    times = asyncio.run(burst(args.burst))
    row(f"E2B: create → commands.run, {args.burst} at once", times)
    throughput = commands_and_files(api, args)
    if INTERPRETER in {template["name"] for template in api.call("GET", "/v1/templates")["items"]}:
        cells(api, args)
    print(f"\nburst: {len(times)} of {args.burst} succeeded. {throughput}")
    sys.exit(len(times) != args.burst)


if __name__ == "__main__":
    main()
