"""Ports of a sandbox: the TCP tunnel."""

import hashlib
import socket
import threading
import time
import urllib.request

import pytest
from conftest import since

ECHO = """
import socket, threading
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
listener = socket.create_server(('127.0.0.1', 7777), backlog=200)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"""


@pytest.fixture(scope="module")
def serving(box):
    box.write("/tmp/echo.py", ECHO)
    box.run("mkdir -p /tmp/www; head -c 3000000 /dev/urandom > /tmp/www/data; sha256sum < /tmp/www/data > /tmp/www/sum")
    for command in ["python3 /tmp/echo.py", "python3 -m http.server 8888 --directory /tmp/www --bind 127.0.0.1"]:
        box.run(f"setsid {command} >/tmp/server.log 2>&1 & echo")
    deadline = time.monotonic() + 30
    while "11" not in box.run("for p in 7777 8888; do (echo > /dev/tcp/127.0.0.1/$p) 2>/dev/null && printf 1; done").stdout:
        assert time.monotonic() < deadline, "nothing listens"
        time.sleep(0.1)
    return box


def test_http_through_the_tunnel(serving):
    with serving.tunnel(8888, local_port=free_port()) as tunnel:
        base = f"http://127.0.0.1:{tunnel.local_port}"
        data = urllib.request.urlopen(base + "/data", timeout=60).read()
        wanted = urllib.request.urlopen(base + "/sum", timeout=60).read().split()[0].decode()
        assert hashlib.sha256(data).hexdigest() == wanted


def test_many_connections_at_once(serving):
    with serving.tunnel(7777, local_port=free_port()) as tunnel:
        failures = []

        def talk(n):
            try:
                data = bytes([n]) * 200_000
                with socket.create_connection(("127.0.0.1", tunnel.local_port), timeout=60) as connection:
                    sending = threading.Thread(target=connection.sendall, args=(data,))
                    sending.start()
                    got = b""
                    # The client's tunnel has no half-close, so this reads until all bytes have come.
                    while len(got) < len(data) and (piece := connection.recv(65536)):
                        got += piece
                    sending.join()
                assert got == data, len(got)
            except Exception as error:
                failures.append((n, error))

        threads = [threading.Thread(target=talk, args=(n,)) for n in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


def test_a_port_on_which_nothing_listens(serving):
    with serving.tunnel(9, local_port=free_port()) as tunnel:
        with socket.create_connection(("127.0.0.1", tunnel.local_port), timeout=30) as connection:
            assert connection.recv(1) == b""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
