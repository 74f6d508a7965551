"""What moving costs, measured between servers on one machine: `tests/cluster/figures [MIB]`. Not a test."""

import json
import os
import sys
import time

from cluster import Cluster, until
from images import Image, layer, shared, shell
from test_move import run, seen


def timed(work):
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 2)


def of_an_image(cluster, mib):
    """An image of so many MiB in two layers, which one node loads and the other then needs."""
    a, b = cluster.nodes
    # Compresses about as programs do: half of it is zeros.
    half = lambda: b"".join(os.urandom(2048) + bytes(2048) for _ in range(mib * 128))
    image = Image("reg.test/large:1", shell(), layer({"one": half()}), layer({"two": half()}))
    figures = {"image_packed_mb": round(sum(map(len, image.blobs.values())) / 1e6)}
    figures["load_s"] = timed(lambda: image.load(a))
    figures["image_shared_s"] = timed(lambda: shared(a, image))
    figures["create_where_it_was_loaded_s"] = timed(lambda: a.make(image="reg.test/large:1"))
    figures["create_elsewhere_s"] = timed(lambda: b.make(image="reg.test/large:1"))
    figures["create_elsewhere_again_s"] = timed(lambda: b.make(image="reg.test/large:1"))
    return figures


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    figures = {"mib": mib}
    with Cluster("a", "b", objects=True) as cluster:
        a, b = cluster.nodes
        a.ok("POST", "/v1/sandboxes", {"name": "box"})
        run(a, "box", f"head -c {mib}M /dev/urandom > /root/big")

        def kept(node):
            until("it is kept", lambda: seen(node, "box").get("kept_at_ms"))

        figures["pause_s"] = timed(lambda: a.ok("POST", "/v1/sandboxes/box/pause", {"mode": "filesystem"}))
        figures["copied_s"] = timed(lambda: kept(a))
        run(a, "box", "echo x > /root/x")
        a.ok("POST", "/v1/sandboxes/box/pause", {"mode": "filesystem"})
        figures["copied_again_s"] = timed(lambda: kept(a))
        figures["wake_here_s"] = timed(lambda: a.ok("POST", "/v1/sandboxes/box/resume", {}))
        a.ok("POST", "/v1/sandboxes/box/pause", {"mode": "filesystem"})
        kept(a)
        a.kill()
        figures["another_has_it_s"] = timed(lambda: until("it is there", lambda: seen(b, "box")))
        figures["wake_there_s"] = timed(lambda: b.ok("POST", "/v1/sandboxes/box/resume", {}, timeout=600))
        a.start()
        b.ok("POST", "/v1/sandboxes", {"name": "durable", "durability": {"after_exec": True}})
        run(b, "durable", "echo x > /root/x")
        time.sleep(5)
        b.kill()
        # Six seconds of this are the lease.
        figures["failover_s"] = timed(lambda: until("it runs", lambda: seen(a, "durable").get("state") == "running"))
        b.start()
        figures |= of_an_image(cluster, mib)
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
