"""A registry with one image, made of this machine's shell and a few programs. It requires a password."""

import base64
import gzip
import hashlib
import http.server
import io
import json
import re
import shutil
import subprocess
import tarfile
import threading

PROGRAMS = ["bash", "sh", "cat", "ls", "mkdir", "env", "id", "sleep", "uname"]


def layer():
    """The programs with the libraries that they need, as a tar."""
    files = {}
    for program in PROGRAMS:
        path = shutil.which(program, path="/usr/bin:/bin")
        files[f"bin/{program}"] = path
        for library in re.findall(r"(/\S+\.so\S*)", subprocess.run(["ldd", path], capture_output=True, text=True).stdout):
            files[library.lstrip("/")] = library
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "marker": b"from the registry\n"}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
        for name, path in sorted(files.items()):
            add(tar, name, path)
    return out.getvalue()


def add(tar, name, path):
    with open(path, "rb") as file:
        content = file.read()
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o755
    tar.addfile(info, io.BytesIO(content))


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    def __init__(self, user, password):
        tar = layer()
        packed = gzip.compress(tar, 1)
        architecture = {"x86_64": "amd64", "aarch64": "arm64"}[subprocess.check_output(["uname", "-m"], text=True).strip()]
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {"Env": ["PATH=/bin", "IMAGE=yes"], "WorkingDir": "/work"},
                "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config), "size": len(config)},
                "layers": [
                    {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(packed), "size": len(packed)}
                ],
            }
        ).encode()
        blobs = {digest(data): data for data in (config, packed, manifest)}
        wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if self.headers.get("Authorization") != wanted:
                    return self.answer(401, b"{}", {"WWW-Authenticate": 'Basic realm="test"'})
                reference = self.path.rsplit("/", 1)[-1]
                if "/manifests/" in self.path and (reference == "1.2" or reference == digest(manifest)):
                    kind = "application/vnd.oci.image.manifest.v1+json"
                    return self.answer(200, manifest, {"Content-Type": kind, "Docker-Content-Digest": digest(manifest)})
                if "/blobs/" in self.path and reference in blobs:
                    return self.answer(200, blobs[reference], {"Content-Type": "application/octet-stream"})
                return self.answer(200 if self.path == "/v2/" else 404, b"{}", {})

            do_HEAD = do_GET

            def answer(self, status, body, headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.image = f"{self.host}/team/app:1.2"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
