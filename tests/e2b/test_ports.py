"""Ports of sandboxes, and the answers when no server listens."""

import json
import os
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest

from conftest import call, data_plane, raw, until
from e2b import Sandbox


def serve(box, port):
    box.commands.run(f"cd /tmp && echo served > served.txt && exec python3 -m http.server {port}", background=True)
    until(lambda: data_plane(box.sandbox_id, "GET", "/served.txt", port=port)[0] == 200)


def test_a_port_is_everybody_s(own):
    status, _, text = data_plane(own.sandbox_id, "GET", "/", port=8123)
    assert status == 502
    assert json.loads(text) == {
        "sandboxId": own.sandbox_id, "message": "The sandbox is running but port is not open", "port": 8123, "code": 502,
    }
    serve(own, 8123)
    status, _, text = data_plane(own.sandbox_id, "GET", "/served.txt", port=8123)
    assert (status, text) == (200, b"served\n")
    assert own.get_host(8123).startswith(f"8123-{own.sandbox_id}.")


def test_the_name_of_a_port_leads_to_this_server(own):
    address = urlsplit(os.environ["E2B_API_URL"])
    domain = call("GET", f"/sandboxes/{own.sandbox_id}")[1]["domain"]
    assert domain == f"localhost:{address.port}"
    assert call("POST", f"/sandboxes/{own.sandbox_id}/connect", {"timeout": 60})[1]["domain"] == domain
    serve(own, 8125)
    host = {"Host": f"8125-{own.sandbox_id}.{domain}"}
    assert raw("GET", "/served.txt", headers=host, root=f"http://{address.netloc}")[::2] == (200, b"served\n")
    # A client on another machine: 'localhost' would lead it to itself.
    elsewhere = {"Host": f"server.example.com:{address.port}"}
    _, _, told = raw("GET", f"/sandboxes/{own.sandbox_id}", headers=elsewhere)
    assert json.loads(told)["domain"] is None


def test_a_port_that_wants_a_token():
    body = {"templateID": "base", "timeout": 120, "network": {"allowPublicTraffic": False}}
    status, made = call("POST", "/v2/sandboxes", body)
    assert status == 201 and made["trafficAccessToken"]
    box = Sandbox.connect(made["sandboxID"])
    try:
        box.commands.run("cd /tmp && exec python3 -m http.server 8124", background=True)
        with_token = {"e2b-traffic-access-token": made["trafficAccessToken"]}
        until(lambda: data_plane(box.sandbox_id, "GET", "/", port=8124, headers=with_token)[0] == 200)
        assert data_plane(box.sandbox_id, "GET", "/", port=8124)[0] == 403
        assert data_plane(box.sandbox_id, "GET", "/", port=8124, headers={"e2b-traffic-access-token": "x"})[0] == 403
        assert box.commands.run("echo envd").stdout == "envd\n"
    finally:
        box.kill()


SECURE = """
cd /tmp && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=box \\
  -keyout key.pem -out cert.pem 2>/dev/null && cat > secure.py <<'EOF' && exec python3 secure.py
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"secured {[name for name in self.headers if name.lower() == 'host']}".encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
EOF
"""


def test_a_port_that_speaks_https():
    body = {"templateID": "base", "timeout": 120, "network": {"httpsPorts": [8443, 8125]}}
    status, made = call("POST", "/v2/sandboxes", body)
    assert status == 201
    box = Sandbox.connect(made["sandboxID"])
    try:
        assert call("GET", f"/sandboxes/{box.sandbox_id}")[1]["network"] == {"httpsPorts": [8443, 8125]}
        box.commands.run(SECURE, background=True)
        until(lambda: data_plane(box.sandbox_id, "GET", "/", port=8443)[0] == 200)
        # Names of headers are written as most clients write them.
        assert data_plane(box.sandbox_id, "GET", "/", port=8443)[2] == b"secured ['Host']"
        box.commands.run("exec python3 -m http.server 8125", background=True)
        plain = lambda: data_plane(box.sandbox_id, "GET", "/", port=8125)
        until(lambda: b"does not speak TLS" in plain()[2])
        assert plain()[0] == 502
    finally:
        box.kill()


# Enough of a gRPC service for one call: HTTP/2 without TLS, the message comes back, the status is in trailers.
GRPC = r"""python3 -c "
import socket
def field(name, value): return bytes([0, len(name)]) + name + bytes([len(value)]) + value
def serve(to):
    def send(kind, flags, stream, body): to.sendall(len(body).to_bytes(3, 'big') + bytes([kind, flags]) + stream.to_bytes(4, 'big') + body)
    heard, said = to.makefile('rb'), b''
    heard.read(24)
    send(4, 0, 0, b'')
    while len(head := heard.read(9)) == 9:
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], 'big')
        body = heard.read(int.from_bytes(head[:3], 'big'))
        if kind == 0: said += body
        if kind in (4, 6) and not flags & 1: send(kind, 1, 0, body if kind == 6 else b'')
        if kind in (0, 1) and flags & 1:
            send(1, 4, stream, bytes([0x88]) + field(b'content-type', b'application/grpc'))
            send(0, 0, stream, said)
            send(1, 5, stream, field(b'grpc-status', b'0'))
            said = b''
listener = socket.create_server(('0.0.0.0', 50051))
while True:
    try: serve(listener.accept()[0])
    except OSError: pass
"
"""


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_grpc_to_a_port(own, tmp_path):
    own.commands.run(GRPC, background=True)
    message = bytes(4) + bytes([5]) + b"hello"
    (tmp_path / "message").write_bytes(message)
    command = [
        "curl", "-sS", "--http2-prior-knowledge", "-D", tmp_path / "head", "--data-binary", f"@{tmp_path / 'message'}",
        "-H", f"E2b-Sandbox-Id: {own.sandbox_id}", "-H", "E2b-Sandbox-Port: 50051",
        "-H", "Content-Type: application/grpc", "-H", "TE: trailers", os.environ["E2B_SANDBOX_URL"] + "/test.Echo/Say",
    ]
    answered = lambda: subprocess.run(command, capture_output=True, timeout=30).stdout == message
    until(answered)
    head = (tmp_path / "head").read_text()
    assert head.startswith("HTTP/2 200") and "grpc-status: 0" in head


def test_strangers(own):
    status, _, text = data_plane("sb00000000000000000000", "GET", "/health")
    assert status == 502 and "was not found" in json.loads(text)["message"]
    status, _, text = data_plane("../x", "GET", "/health")
    assert status == 502
    assert data_plane(own.sandbox_id, "GET", "/health", port=0)[0] == 400
    status, _, text = data_plane(own.sandbox_id, "POST", "/process.Process/List", {})
    assert status == 401 and "access token" in json.loads(text)["message"]
    other = Sandbox.create(timeout=60)
    try:
        wrong = {"X-Access-Token": other._envd_access_token}
        assert data_plane(own.sandbox_id, "POST", "/process.Process/List", {}, headers=wrong)[0] == 401
        right = {"X-Access-Token": own._envd_access_token}
        assert data_plane(own.sandbox_id, "POST", "/process.Process/List", {}, headers=right)[0] == 200
        assert data_plane(own.sandbox_id, "POST", "/init", {}, headers=right)[0] == 404
        assert data_plane(own.sandbox_id, "GET", "/envs", headers=right)[0] == 200
        assert data_plane(own.sandbox_id, "GET", "/metrics", headers=right)[0] == 200
    finally:
        other.kill()
