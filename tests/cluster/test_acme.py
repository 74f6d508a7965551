"""Two nodes and a real server of ACME (Pebble): one node orders, the other answers the challenges and has the certificate, too."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from cluster import Cluster, until
from way import Way, join

DOMAIN = "boxes.test"
# Seconds that a certificate lives: enough for a busy host to see it, few enough for a test to wait for the next.
LIFE_S = 90


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Gate(Way):
    """A way to a port that holds every connection until the test opens it."""

    def __init__(self, to):
        self.to, self.is_open = to, threading.Event()
        super().__init__()

    def serve(self, client):
        self.is_open.wait()
        join(client, socket.create_connection(("127.0.0.1", self.to)))


class Pebble:
    """Let's Encrypt's server for tests, and a DNS server that resolves every name to this host."""

    def __init__(self, place, http):
        self.place, self.port, dns, management = place, free_port(), free_port(), free_port()
        self.certificate()
        config = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{management}",
            "certificate": str(place / "leaf.pem"),
            "privateKey": str(place / "leaf.key"),
            "httpPort": http,
            "tlsPort": free_port(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": False,
            "certificateValidityPeriod": LIFE_S,
        }
        (place / "config.json").write_text(json.dumps({"pebble": config}))
        quiet = {"stdin": subprocess.DEVNULL, "stdout": open(place / "log", "ab"), "stderr": subprocess.STDOUT}
        names = ["-dns01", f"127.0.0.1:{dns}", "-management", f"127.0.0.1:{free_port()}", "-defaultIPv6", ""]
        names += ["-http01", "", "-https01", "", "-tlsalpn01", ""]
        environment = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0", "PEBBLE_AUTHZREUSE": "0"}
        command = ["pebble", "-strict", "-config", place / "config.json", "-dnsserver", f"127.0.0.1:{dns}"]
        self.processes = [
            subprocess.Popen(["pebble-challtestsrv", *names], **quiet),
            subprocess.Popen(command, env=environment, **quiet),
        ]
        until("Pebble listens", lambda: socket.socket().connect_ex(("127.0.0.1", self.port)) == 0)

    def certificate(self):
        def openssl(line):
            subprocess.run(["openssl", *line.split()], cwd=self.place, check=True, capture_output=True)

        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        openssl(f"req -x509 -keyout ca.key -out ca.pem -subj /CN=Pebble -days 2 {key}")
        openssl(f"req -keyout leaf.key -out leaf.csr -subj /CN=leaf {key}")
        (self.place / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl("x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out leaf.pem")

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def shown(node):
    """The certificate that a node shows for the domain."""
    context = ssl._create_unverified_context()
    address = ("127.0.0.1", int(node.url.rsplit(":", 1)[1]))
    with socket.create_connection(address) as stream, context.wrap_socket(stream, server_hostname=DOMAIN) as secured:
        return secured.getpeercert(binary_form=True)


def check(node):
    checks = json.loads(node.cli("--json", "doctor").stdout)["checks"]
    return next(check for check in checks if check["name"] == "certificate")


def orders(node):
    return node.log.read_text().count("ordering a certificate")


@pytest.fixture
def place(tmp_path):
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.long
def test_one_orders_and_the_other_answers(place):
    cluster = Cluster("a", "b")
    a, b = cluster.nodes
    doors = {a: free_port(), b: free_port()}
    # Pebble sends its challenges to b, which does not order.
    pebble = Pebble(place, doors[b])
    gate = Gate(pebble.port)
    for node in cluster.nodes:
        node.args = ["--domain", DOMAIN, "--acme", "--acme-agree-tos", "--acme-ca", str(place / "ca.pem")]
        node.args += ["--acme-directory", f"https://127.0.0.1:{gate.port}/dir"]
        node.args += ["--acme-http-listen", f"127.0.0.1:{doors[node]}"]
    try:
        with cluster:
            assert check(b)["status"] == "missing", check(b)
            gate.is_open.set()
            until("both have it", lambda: all(check(node)["status"] == "ok" for node in cluster.nodes))
            assert orders(a) + orders(b) == orders(a) >= 1, (a.log.read_text(), b.log.read_text())
            until("both show the same", lambda: shown(a) == shown(b))
            first = shown(b)
            # Node a, which ordered, dies: b renews, and a takes b's certificate when it is back.
            a.kill()
            until("b renews it", lambda: shown(b) != first)
            before = orders(a)
            a.start()
            until("a has it", lambda: shown(a) == shown(b))
            assert orders(a) == before, a.log.read_text()
    finally:
        pebble.stop()
        gate.listener.close()
