"""A scripted model for agents in sandboxes, and the network that leads to it: model.py COMMAND…

Runs a command in a world in which the model vendors' host names lead to one HTTPS server with a certificate of a private
authority, which speaks OpenAI's and Anthropic's APIs and takes one key. Every other name and address stays as it is.
The server under test gets their settings in SERVE_ARGS; MODEL_KEY is the key, MODEL_LOG a file with a line of JSON for
each request.
"""

import json
import os
import secrets
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import as_anthropic
import as_openai

# An address that is never contacted: the proxy connects to the model instead.
ADDRESS = "93.184.216.35"
HOSTS = ["api.openai.com", "api.anthropic.com"]
# As long as real keys are. It is random, so the tests can search for it everywhere.
KEY = "sk-" + secrets.token_hex(24)
PATHS = {
    "/v1/chat/completions": as_openai.chat,
    "/v1/responses": as_openai.responses,
    "/v1/messages": as_anthropic.messages,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def tell(self, **told):
        line = {"host": self.headers.get("Host"), "path": self.path, **told}
        with self.server.lock, open(self.server.log, "a") as file:
            file.write(json.dumps(line) + "\n")

    def do_GET(self):
        self.answer(200, {"object": "list", "data": [], "has_more": False})

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = [self.headers.get("x-api-key"), (self.headers.get("Authorization") or "").removeprefix("Bearer ")]
        if KEY not in given:
            self.tell(status=401)
            return self.answer(401, {"type": "error", "error": {"type": "authentication_error", "message": "not the key"}})
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            return self.answer(200, {"input_tokens": 1000})
        speak = PATHS.get(path)
        if speak is None:
            self.tell(status=404)
            return self.answer(404, {"type": "error", "error": {"type": "not_found_error", "message": path}})
        body = json.loads(content)
        said, usage = speak(body)
        self.tell(status=200, usage=usage, stream=bool(body.get("stream")))
        if isinstance(said, dict):
            return self.answer(200, said)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in said:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            time.sleep(0.005)
        self.wfile.write(b"0\r\n\r\n")


def openssl(place, *arguments):
    subprocess.run(["openssl", "req", "-x509", *arguments], cwd=place, check=True, stderr=subprocess.DEVNULL)


def serve(place, log):
    """Starts the model on a port of loopback, and returns the port."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl(place, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Models", *key)
    names = "subjectAltName=" + ",".join(f"DNS:{host}" for host in HOSTS)
    openssl(place, "-keyout", "leaf.key", "-out", "leaf.pem", "-subj", "/CN=model", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-addext", names, "-addext", "basicConstraints=critical,CA:FALSE", *key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.log, server.lock = True, log, threading.Lock()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(place, "leaf.pem"), os.path.join(place, "leaf.key"))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def resolver():
    """Starts a name server: it gives ADDRESS for the vendors' names, and this host's answer for other names."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def look_up(query, client):
        end = query.index(0, 12) + 1
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
            at += 1 + query[at]
        addresses = []
        if query[end : end + 2] == b"\0\1":
            try:
                addresses = [ADDRESS] if ".".join(labels).lower() in HOSTS else socket.gethostbyname_ex(".".join(labels))[2]
            except OSError:
                pass
        answer = query[:2] + bytes([0x81, 0x80, 0, 1, 0, len(addresses), 0, 0, 0, 0]) + query[12 : end + 4]
        for address in addresses:
            answer += bytes([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]) + socket.inet_aton(address)
        server.sendto(answer, client)

    def serve():
        while True:
            threading.Thread(target=look_up, args=server.recvfrom(1500), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def proxy(port):
    """Starts a proxy: for ADDRESS it connects to the model, for every other address to that address."""

    class Connect(socketserver.StreamRequestHandler):
        def handle(self):
            host, _, wanted = self.rfile.readline().split()[1].decode().rpartition(":")
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            try:
                there = socket.create_connection(("127.0.0.1", port) if host == ADDRESS else (host, int(wanted)), timeout=60)
            except OSError:
                return self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            with there:
                there.settimeout(None)
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=pump, args=(there, self.connection), daemon=True)
                back.start()
                pump(self.connection, there)
                back.join()

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connect)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def pump(source, sink):
    try:
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def main():
    with tempfile.TemporaryDirectory(prefix="atoll-model-", dir="/var/tmp") as place:
        log = os.path.join(place, "log")
        open(log, "w").close()
        port = serve(place, log)
        through = proxy(port)
        arguments = f"--resolver 127.0.0.1:{resolver()} --egress-proxy http://127.0.0.1:{through}"
        arguments += f" --upstream-ca {place}/ca.pem {os.environ.get('SERVE_ARGS', '')}"
        environment = dict(os.environ, MODEL_KEY=KEY, MODEL_LOG=log, MODEL_PORT=str(port), MODEL_CA=f"{place}/ca.pem", SERVE_ARGS=arguments)
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)


if __name__ == "__main__":
    main()
