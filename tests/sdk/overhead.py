"""Measures the time that the Python SDK adds to a call, over raw HTTP with the same client: prints medians in ms.

    tests/sdk/with-server python tests/sdk/overhead.py [CALLS]

Each round sends the same request in three ways, one after the other, so that other load of the machine affects all.
"""

import json
import os
import statistics
import sys
import time

import httpx
from atoll import Atoll

calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
headers = {"authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"}
url = os.environ["ATOLL_URL"]


def clocks():
    return time.perf_counter(), time.process_time()


def measured(work, wall, cpu):
    began = clocks()
    work()
    ended = clocks()
    wall.append((ended[0] - began[0]) * 1000)
    cpu.append((ended[1] - began[1]) * 1000)


with Atoll() as client, httpx.Client(headers=headers) as raw, client.sandboxes.create() as box:
    path = f"{url}/v1/sandboxes/{box.id}"

    def raw_get():
        return json.loads(raw.get(path).content)

    def raw_run():
        body = json.dumps({"argv": ["true"], "wait_ms": 30000}).encode()
        answer = raw.post(f"{path}/execs", content=body, headers={"content-type": "application/json"}, timeout=60)
        return json.loads(answer.content)

    for name, one, other in [("get", raw_get, box.refresh), ("run", raw_run, lambda: box.run(["true"]))]:
        samples = [[], [], [], []]
        for _ in range(calls if name == "get" else calls // 5):
            measured(one, samples[0], samples[1])
            measured(other, samples[2], samples[3])
        plain, plain_cpu, sdk, sdk_cpu = (statistics.median(sample) for sample in samples)
        print(
            f"{name}: raw {plain:.3f} ms, SDK {sdk:.3f} ms, overhead {sdk - plain:.3f} ms;"
            f" processor time {sdk_cpu - plain_cpu:.3f} ms"
        )
