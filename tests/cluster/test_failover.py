"""The database dies, and its replica takes its place: nothing that was acknowledged is lost, and what runs runs on."""

import threading

import pytest

from cluster import Cluster, Replica, until
from proxy import PostgresProxy


@pytest.mark.long
def test_a_replica_takes_the_place_of_the_database():
    cluster = Cluster("a", "b")
    # Longer than a failover takes on a busy host.
    cluster.lease = "20s"
    proxies = [PostgresProxy(cluster.postgres, node.name) for node in cluster.nodes]
    for node, proxy in zip(cluster.nodes, proxies):
        node.database = proxy.url
    with cluster:
        replica = Replica(cluster.postgres)
        clients = [Client(node, f"box-{node.name}") for node in cluster.nodes]
        for client in clients:
            client.start()
        until("all have done something", lambda: all(len(client.done) > 5 for client in clients))
        cluster.postgres.kill()
        replica.promote()
        cluster.postgres = replica
        for proxy in proxies:
            proxy.postgres = replica
        done = [len(client.done) for client in clients]
        until("all go on", lambda: all(len(client.done) > before + 5 for client, before in zip(clients, done)))
        for client in clients:
            client.over.set()
            client.join()
        for client in clients:
            for node in cluster.nodes:
                seen = node.ok("GET", f"/v1/sandboxes/{client.box['id']}")
                assert (seen["state"], seen["boot_id"]) == ("running", client.box["boot_id"])
                text = node.cli("exec", client.box["name"], "--", "cat", "/root/log").stdout.decode()
                # Each word once; the last one may have been written although the client got no answer.
                lines = text.split()
                assert lines[: len(client.done)] == client.done and len(lines) <= len(client.done) + 1, (lines, client.done)
                listed = {one["argv"][-1]: one["state"] for one in node.ok("GET", f"/v1/sandboxes/{client.box['id']}/execs?limit=500")["items"]}
                assert all(listed.get(f"echo {word} >> /root/log") == "exited" for word in client.done)
        # Both nodes know a sandbox that is made after the failover.
        made = cluster.nodes[0].make(name="after")
        assert cluster.nodes[1].ok("GET", "/v1/sandboxes/after")["id"] == made["id"]


class Client(threading.Thread):
    """Runs one command after the other, and repeats each until the node acknowledges it."""

    def __init__(self, node, name):
        super().__init__()
        self.node, self.box = node, node.make(name=name)
        self.done, self.over = [], threading.Event()

    def run(self):
        number = 0
        while not self.over.is_set():
            word = f"{self.box['name']}-{number}"
            body = {"argv": ["sh", "-c", f"echo {word} >> /root/log"], "idempotency_key": word, "wait_ms": 10000}
            try:
                status, answer = self.node.call("POST", f"/v1/sandboxes/{self.box['id']}/execs", body, timeout=30)
            except OSError:
                continue
            if status < 300 and answer["exec"]["state"] == "exited":
                self.done.append(word)
                number += 1
            elif status < 500 and status >= 300:
                raise AssertionError((status, answer))
