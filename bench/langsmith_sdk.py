#!/usr/bin/env python3
"""Measures Atoll through the LangSmith SDK for Python. Started by bench/langsmith, with the server in LANGSMITH_ENDPOINT."""

import argparse
import asyncio
import statistics
import time

from langsmith.sandbox import AsyncSandboxClient, SandboxClient


def milliseconds(times):
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    return f"{statistics.median(times) * 1000:.1f} ms", f"{p99 * 1000:.1f} ms", f"{times[-1] * 1000:.1f} ms"


def measure(count, work):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def create_run_delete(client):
    times = []

    def once():
        start = time.perf_counter()
        box = client.create_sandbox()
        assert box.run("true").exit_code == 0
        times.append(time.perf_counter() - start)
        client.delete_sandbox(box.name)

    return times, once


async def in_parallel(clients, count):
    """`clients` clients of one sandbox each, `count` commands each, all at once."""

    async def one():
        async with AsyncSandboxClient() as client:
            async with await client.sandbox() as box:
                await box.run("true")
                times = []
                for _ in range(count):
                    start = time.perf_counter()
                    await box.run("true")
                    times.append(time.perf_counter() - start)
                return times

    return [time for times in await asyncio.gather(*(one() for _ in range(clients))) for time in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--creates", type=int, default=200)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--megabytes", type=int, default=100)
    args = parser.parse_args()
    rows = []
    with SandboxClient() as client:
        times, once = create_run_delete(client)
        once()
        times.clear()
        measure(args.creates, once)
        rows.append(("create → run(\"true\")", *milliseconds(times)))
        with client.sandbox() as box:
            box.run("true")
            rows.append(("run(\"true\")", *milliseconds(measure(args.runs, lambda: box.run("true")))))
            rows.append(("write 1 KiB", *milliseconds(measure(args.runs, lambda: box.write("/tmp/f", b"x" * 1024)))))
            rows.append(("read 1 KiB", *milliseconds(measure(args.runs, lambda: box.read("/tmp/f")))))
            size = args.megabytes << 20
            command = f"head -c {size} /dev/zero | tr '\\0' 'x'"
            start = time.perf_counter()
            assert len(box.run(command, timeout=600).stdout) == size
            streamed = size / (time.perf_counter() - start) / 1e6
            box.run(f"head -c {size} /dev/zero > /tmp/large")
            start = time.perf_counter()
            content = box.read("/tmp/large", timeout=600)
            read = len(content) / (time.perf_counter() - start) / 1e6
            start = time.perf_counter()
            box.write("/tmp/large", content, timeout=600)
            written = len(content) / (time.perf_counter() - start) / 1e6
    rows.append(("run(\"true\"), 20 clients at once", *milliseconds(asyncio.run(in_parallel(20, args.runs // 20)))))
    print("| call | median | p99 | slowest |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(f"\nstdout {streamed:.0f} MB/s, read {read:.0f} MB/s, write {written:.0f} MB/s, {args.megabytes} MB each")


if __name__ == "__main__":
    main()
