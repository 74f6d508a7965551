"""Ports of sandboxes, reached from outside."""

import os
import urllib.parse
import urllib.request

import modal
import pytest
from conftest import run, until

SERVER = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8123)"


def fetch(host, path, **headers):
    """Sends a request for a port, by its host name, to the server under test."""
    server = urllib.parse.urlsplit(os.environ["ATOLL_URL"])
    request = urllib.request.Request(f"http://{server.netloc}{path}", headers={"Host": host, **headers})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.status, response.read().decode()


def fetched(host, path, **headers):
    try:
        return fetch(host, path, **headers)
    except urllib.error.HTTPError:
        return None


def test_tunnels(make):
    sandbox = make(encrypted_ports=[8123], unencrypted_ports=[8124], workdir="/tmp")
    tunnels = sandbox.tunnels()
    assert set(tunnels) == {8123, 8124}
    assert tunnels[8123].host.startswith("8123-") and tunnels[8124].tcp_socket[0].startswith("8124-")
    run(sandbox, "sh", "-c", "echo inside > /tmp/page")
    sandbox.exec("python3", "-c", SERVER, workdir="/tmp")
    host = f"{tunnels[8123].host}:{tunnels[8123].port}"
    assert until(lambda: fetched(host, "/page")) == (200, "inside\n")
    # A port that the client did not open stays closed to requests without a key.
    assert fetched(host.replace("8123-", "8125-"), "/page") is None


def test_readiness(make):
    sandbox = make("sh", "-c", "sleep 0.5; touch /tmp/ready; sleep 60", readiness_probe=modal.Probe.with_exec("test", "-e", "/tmp/ready"))
    sandbox.wait_until_ready(timeout=30)
    assert run(sandbox, "test", "-e", "/tmp/ready")[0] == 0
    never = make(readiness_probe=modal.Probe.with_tcp(9999))
    with pytest.raises(modal.exception.TimeoutError):
        never.wait_until_ready(timeout=1)
