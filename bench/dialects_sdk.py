#!/usr/bin/env python3
"""Measures creating a sandbox and running `true` in it through a vendor's SDK, and natively. Started by bench/dialects."""

import argparse
import concurrent.futures
import http.client
import json
import os
import threading
import time
import urllib.parse


class Native:
    """Atoll's own API over a connection for each thread."""

    def __init__(self):
        self.url, self.own = urllib.parse.urlsplit(os.environ["ATOLL_URL"]), threading.local()

    def call(self, method, path, body=None):
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=120)
        headers = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json"}
        self.own.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.own.connection.getresponse()
        content = answer.read()
        assert answer.status < 300, content
        return json.loads(content) if content else None

    def create(self):
        return self.call("POST", "/v1/sandboxes", {})["id"]

    def run(self, id):
        done = self.call("POST", f"/v1/sandboxes/{id}/execs", {"argv": ["true"], "wait_ms": 60000})
        return done["exec"]["exit"]["code"]

    def delete(self, id):
        self.call("DELETE", f"/v1/sandboxes/{id}")


class Daytona:
    def __init__(self):
        import daytona

        self.client = daytona.Daytona()

    def create(self):
        return self.client.create()

    def run(self, sandbox):
        return sandbox.process.exec("true").exit_code

    def delete(self, sandbox):
        sandbox.delete()


class Runloop:
    def __init__(self):
        import runloop_api_client

        self.client = runloop_api_client.Runloop()

    def create(self):
        return self.client.devboxes.create_and_await_running()

    def run(self, devbox):
        return self.client.devboxes.execute_and_await_completion(devbox.id, command="true").exit_status

    def delete(self, devbox):
        self.client.devboxes.shutdown(devbox.id)


class Modal:
    def __init__(self):
        import modal

        self.modal, self.app = modal, modal.App.lookup("bench", create_if_missing=True)

    def create(self):
        return self.modal.Sandbox.create(app=self.app, timeout=600)

    def run(self, sandbox):
        return sandbox.exec("true").wait()

    def delete(self, sandbox):
        sandbox.terminate()


VENDORS = {"daytona": Daytona, "runloop": Runloop, "modal": Modal}


def once(api):
    """Creates a sandbox and runs the command; returns the seconds until its end, and the sandbox."""
    start = time.perf_counter()
    sandbox = api.create()
    code = api.run(sandbox)
    took = time.perf_counter() - start
    assert code == 0, code
    return took, sandbox


def one_after_another(api, count):
    times = []
    for _ in range(count):
        took, sandbox = once(api)
        times.append(took)
        api.delete(sandbox)
    return times


def at_once(api, count):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        start = time.perf_counter()
        done = list(pool.map(lambda _: once(api), range(count)))
        whole = time.perf_counter() - start
        list(pool.map(lambda one: api.delete(one[1]), done))
    return [took for took, _ in done], whole


def milliseconds(times):
    ordered = sorted(times)
    share = lambda percent: ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
    return f"{share(50) * 1000:.1f} | {share(99) * 1000:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vendor", choices=VENDORS)
    parser.add_argument("--creates", type=int, default=100)
    parser.add_argument("--burst", type=int, default=50)
    args = parser.parse_args()
    print(f"\n| {args.vendor} | create → `true`, p50 ms | p99 ms | {args.burst} at once, p50 ms | p99 ms | all, s |")
    print("|---|---|---|---|---|---|")
    for name, api in (("native", Native()), ("SDK", VENDORS[args.vendor]())):
        one_after_another(api, 3)
        times = one_after_another(api, args.creates)
        burst, whole = at_once(api, args.burst)
        print(f"| {name} | {milliseconds(times)} | {milliseconds(burst)} | {whole:.2f} |", flush=True)


if __name__ == "__main__":
    main()
