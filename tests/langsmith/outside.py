"""A stand-in for the internet, on loopback: outside.py COMMAND…

Runs a command in a world in which every host name leads to one HTTPS server with a certificate of a private
authority: a resolver, a proxy that stands for the internet, and that server. `with-server` gets their
settings in SERVE_ARGS. The server answers with the request that it received; below `/org/private.git` it serves a
repository to clients that send the password in OUTSIDE_SECRET.
"""

import base64
import json
import os
import re
import secrets
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = bytes([93, 184, 216, 34])
SECRET = "s3cret-" + secrets.token_hex(12)
# OUTSIDE_NAMES may have more names, separated by commas.
NAMES = ["github.com", "*.github.com", "*.example.com", *filter(None, os.environ.get("OUTSIDE_NAMES", "").split(","))]


def run(*command, cwd):
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def certificates(place):
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    run("openssl", "req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Outside", *key, cwd=place)
    leaf = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in NAMES)]
    run("openssl", "req", "-x509", "-keyout", "leaf.key", "-out", "leaf.pem", "-subj", "/CN=leaf",
        "-addext", "basicConstraints=critical,CA:FALSE", *leaf, *key, cwd=place)


def repository(place):
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    work = os.path.join(place, "work")
    os.mkdir(work)
    run(*git, "init", "-q", cwd=work)
    with open(os.path.join(work, "README"), "w") as file:
        file.write("private\n")
    run(*git, "add", "README", cwd=work)
    run(*git, "commit", "-q", "-m", "first", cwd=work)
    os.mkdir(os.path.join(place, "org"))
    run(*git, "clone", "-q", "--bare", "work", "org/private.git", cwd=place)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        if path.startswith("/org/"):
            return self.git(path, query, body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = {"host": headers.get("host"), "path": self.path, "method": self.command, "headers": headers}
        # The answer has a marker in place of the secret, so that the secret does not come back to a sandbox.
        basic = base64.b64encode(f"x-access-token:{SECRET}".encode()).decode()
        text = json.dumps(seen).replace(SECRET, "<SECRET>").replace(basic, "<BASIC>")
        self.answer(200, text.encode(), Content_Type="application/json")

    do_POST = do_PUT = do_GET

    def git(self, path, query, body):
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "basic" or base64.b64decode(value).decode() != f"x-access-token:{SECRET}":
            return self.answer(401, b"no", WWW_Authenticate='Basic realm="private"')
        environment = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": self.server.place, "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
            "QUERY_STRING": query, "REQUEST_METHOD": self.command, "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(re.findall(r"^([\w-]+): *(.*?)\r?$", head.decode(), re.MULTILINE))
        status = int(fields.pop("Status", "200").split()[0])
        fields.pop("Content-Length", None)
        self.answer(status, content, **fields)


def origin(place):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.place = True, place
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(place, "leaf.pem"), os.path.join(place, "leaf.key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def resolver():
    """Starts a name server that gives every name the one address."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def serve():
        while True:
            query, client = server.recvfrom(1500)
            end = query.index(0, 12) + 1
            is_a = query[end : end + 2] == b"\0\1"
            answer = query[:2] + bytes([0x81, 0x80, 0, 1, 0, is_a, 0, 0, 0, 0]) + query[12 : end + 4]
            if is_a:
                answer += bytes([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]) + ADDRESS
            server.sendto(answer, client)

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def proxy(port):
    """Starts a proxy that connects every request to the one server."""

    class Connect(socketserver.StreamRequestHandler):
        def handle(self):
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            with socket.create_connection(("127.0.0.1", port)) as there:
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
    with tempfile.TemporaryDirectory(prefix="atoll-outside-", dir="/var/tmp") as place:
        certificates(place)
        repository(place)
        through = proxy(origin(place))
        arguments = f"--resolver 127.0.0.1:{resolver()} --egress-proxy http://127.0.0.1:{through}"
        arguments += f" --upstream-ca {place}/ca.pem {os.environ.get('SERVE_ARGS', '')}"
        environment = dict(os.environ, OUTSIDE_SECRET=SECRET, SERVE_ARGS=arguments)
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)


if __name__ == "__main__":
    main()
