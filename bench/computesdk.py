#!/usr/bin/env python3
"""Measures a running server the way ComputeSDK's public benchmark measures providers: how long from asking
for a sandbox until `node -v` has ended in it. Sequential, staggered, and as a burst; median, p95 and p99.

    ATOLL_URL=http://127.0.0.1:4600 ATOLL_API_KEY=… bench/computesdk.py [--count 50] [--every-ms 200] [--pool 50]

Needs nothing but Python. With --pool a warm pool of that size is set up for the run and removed after it.
Without `node` in the image it says so and measures nothing.
"""

import argparse
import http.client
import json
import os
import sys
import threading
import time
import urllib.parse


class Api:
    """One kept-alive connection."""

    def __init__(self, url, key):
        self.connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=120)
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def call(self, method, path, body=None):
        text = None if body is None else json.dumps(body)
        self.connection.request(method, path, text, self.headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status}: {content.decode()}")
        return json.loads(content) if content else None

    def run(self, image, argv):
        """Creates a sandbox and runs the command; returns (seconds, exec, sandbox)."""
        start = time.perf_counter()
        sandbox = self.call("POST", "/v1/sandboxes", {"image": image})["id"]
        done = self.call("POST", f"/v1/sandboxes/{sandbox}/execs", {"argv": argv, "wait_ms": 60000})
        return time.perf_counter() - start, done["exec"], sandbox

    def delete(self, sandbox):
        self.call("DELETE", f"/v1/sandboxes/{sandbox}")


def percentile(values, share):
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def show(name, values, failures):
    if not values:
        print(f"| {name} | 0 | {failures} | | | |")
        return
    row = " | ".join(f"{percentile(values, share) * 1000:.1f}" for share in (50, 95, 99))
    print(f"| {name} | {len(values)} | {failures} | {row} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="sandboxes of each mode")
    parser.add_argument("--every-ms", type=int, default=200, help="pause between starts in the staggered mode")
    parser.add_argument("--image", default="host")
    parser.add_argument("--pool", type=int, default=0, help="keep this many warm during the run")
    args = parser.parse_args()
    if "ATOLL_URL" not in os.environ or "ATOLL_API_KEY" not in os.environ:
        sys.exit("set ATOLL_URL and ATOLL_API_KEY to those of a running server")
    url, key = urllib.parse.urlsplit(os.environ["ATOLL_URL"]), os.environ["ATOLL_API_KEY"]

    api = Api(url, key)
    _, probe, sandbox = api.run(args.image, ["node", "-v"])
    api.delete(sandbox)
    if probe["exit"]["code"] != 0:
        sys.exit(f"skipped: there is no node in the image '{args.image}' ({probe['exit']['reason']})")

    if args.pool:
        api.call("PUT", "/v1/pools", {"image": args.image, "min": args.pool, "max": args.pool})

    def calm():
        while args.pool:
            pools = api.call("GET", "/v1/pools")["items"]
            if any(pool["image"] == args.image and pool["ready"] >= args.pool for pool in pools):
                return
            time.sleep(0.05)
        time.sleep(1)

    def at_once(pause_s):
        took, made, failures, lock = [], [], [], threading.Lock()

        def one():
            try:
                mine = Api(url, key)
                seconds, done, sandbox = mine.run(args.image, ["node", "-v"])
                with lock:
                    made.append(sandbox)
                    (took if done["exit"]["code"] == 0 else failures).append(seconds)
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                with lock:
                    failures.append(error)

        threads = []
        for _ in range(args.count):
            thread = threading.Thread(target=one)
            thread.start()
            threads.append(thread)
            time.sleep(pause_s)
        for thread in threads:
            thread.join()
        for sandbox in made:
            api.delete(sandbox)
        return took, len(failures)

    print(f"create to `node -v` done, image {args.image}, pool of {args.pool}, milliseconds\n")
    print("| mode | succeeded | failed | median | p95 | p99 |\n|---|---:|---:|---:|---:|---:|")
    try:
        calm()
        took = []
        for _ in range(args.count):
            seconds, _, sandbox = api.run(args.image, ["node", "-v"])
            took.append(seconds)
            api.delete(sandbox)
        show("sequential", took, 0)
        calm()
        show(f"staggered, one every {args.every_ms} ms", *at_once(args.every_ms / 1000))
        calm()
        show("burst", *at_once(0))
    finally:
        if args.pool:
            api.call("DELETE", f"/v1/pools?image={urllib.parse.quote(args.image, safe='')}")


if __name__ == "__main__":
    main()
