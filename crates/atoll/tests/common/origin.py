"""Servers outside, all behind one TLS port: an API, a git server, a Python index, an npm registry.

Everything but /open wants the secret, which it never repeats: where a request holds it, the answer says <SECRET>.
usage: origin.py CERTIFICATE KEY DIRECTORY, with SECRET in the environment. Prints its port.
"""

import base64, gzip, hashlib, io, json, os, ssl, subprocess, sys, tarfile, threading, time, urllib.parse, zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ["SECRET"]
CERTIFICATE, KEY, DIRECTORY = sys.argv[1:4]


def wheel():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("atollpkg.py", "answer = 42\n")
        archive.writestr("atollpkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: atollpkg\nVersion: 1.0\n")
        archive.writestr("atollpkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("atollpkg-1.0.dist-info/RECORD", "")
    return out.getvalue()


def package():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in [("package.json", '{"name":"atollpkg","version":"1.0.0","main":"i.js"}'), ("i.js", "module.exports = 42\n")]:
            info = tarfile.TarInfo("package/" + name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


WHEEL, PACKAGE = wheel(), package()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status, body=b"", kind="text/plain", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def authorized(self):
        value = self.headers.get("Authorization", "")
        if value.lower().startswith("basic "):
            value = base64.b64decode(value[6:]).decode()
        return SECRET in value

    def handle_any(self):
        host = self.headers.get("Host", "").split(":")[0]
        path, _, query = self.path.partition("?")
        if path == "/echo":
            body = self.body()
            seen = {"host": host, "method": self.command, "path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()},
                    "basic": "", "body": body.decode(errors="replace")[:10000], "bytes": len(body)}
            value = self.headers.get("Authorization", "")
            if value.lower().startswith("basic "):
                seen["basic"] = base64.b64decode(value[6:]).decode()
            text = json.dumps(seen).replace(SECRET, "<SECRET>")
            return self.send(200, text.encode(), "application/json")
        if path == "/leak":
            return self.send(200, ("it is " + SECRET + "!").encode(), X_Leak=SECRET)
        if path == "/abort":
            self.connection.close()
            self.close_connection = True
            return
        if path == "/forms":
            forms = [SECRET, urllib.parse.quote(SECRET, safe=""), json.dumps(SECRET), SECRET.replace("/", "\\/"),
                     base64.b64encode(SECRET.encode()).decode(), self.path, str(self.headers)]
            return self.send(200, ("forms: " + " ".join(forms)).encode())
        if path == "/redirect":
            return self.send(302, Location="https://other.example.com/echo")
        if not self.authorized():
            return self.send(401, b"no", WWW_Authenticate='Basic realm="x"')
        if path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n in range(3):
                event = b"data: %d\n\n" % n
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
                time.sleep(0.02)
            return self.wfile.write(b"0\r\n\r\n")
        if path == "/gzip":
            return self.send(200, gzip.compress(b"unpacked"), Content_Encoding="gzip")
        if path == "/large":
            return self.send(200, b"x" * int(query))
        if path == "/socket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", accept)
            self.end_headers()
            self.wfile.write(b"\x81\x05hello\x88\x00")
            self.close_connection = True
            return
        if path.startswith("/simple/"):
            return self.send(200, b'<a href="/files/atollpkg-1.0-py3-none-any.whl">atollpkg-1.0-py3-none-any.whl</a>', "text/html")
        if path.startswith("/files/"):
            return self.send(200, WHEEL)
        if path == "/atollpkg":
            sha = hashlib.sha1(PACKAGE).hexdigest()
            dist = {"tarball": f"https://{host}/atollpkg-1.0.0.tgz", "shasum": sha}
            version = {"name": "atollpkg", "version": "1.0.0", "dist": dist}
            meta = {"name": "atollpkg", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
            return self.send(200, json.dumps(meta).encode(), "application/json")
        if path == "/atollpkg-1.0.0.tgz":
            return self.send(200, PACKAGE)
        if path.startswith("/repo.git/"):
            return self.git(path, query)
        self.send(404)

    def git(self, path, query):
        body = self.body()
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        env = dict(os.environ, GIT_PROJECT_ROOT=DIRECTORY, GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path, QUERY_STRING=query,
                   REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get("Content-Type", ""), REMOTE_USER="user",
                   CONTENT_LENGTH=str(len(body)), HTTP_GIT_PROTOCOL=self.headers.get("Git-Protocol", ""))
        done = subprocess.run(["git", "http-backend"], input=body, env=env, stdout=subprocess.PIPE, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(fields.pop("Status", "200 OK").split()[0])
        kind = fields.pop("Content-Type", "text/plain")
        self.send(status, content, kind, **fields)

    do_GET = do_POST = do_PUT = do_HEAD = do_PATCH = do_DELETE = handle_any


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Clients that do not trust us are part of the tests."""


server = Server(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
context.set_alpn_protocols(["http/1.1"])
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
