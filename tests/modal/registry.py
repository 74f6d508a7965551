"""A container registry on loopback that requires a password. Its one image has the file /there and no programs."""

import contextlib
import hashlib
import io
import json
import socket
import subprocess
import tarfile
import time

USER, PASSWORD = "somebody", "p4ssword-of-the-registry"


@contextlib.contextmanager
def serve(directory):
    """Runs the registry; returns its address, user and password."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = subprocess.run(["htpasswd", "-nbB", USER, PASSWORD], capture_output=True, text=True, check=True).stdout
    (directory / "htpasswd").write_text(line)
    (directory / "config.yml").write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {directory}/data}}}}\n"
        f"auth: {{htpasswd: {{realm: test, path: {directory}/htpasswd}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with open(directory / "log", "wb") as log:
        command = ["docker-registry", "serve", str(directory / "config.yml")]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _until_it_listens(server, port)
        _image(directory / "image")
        push = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
        push += [f"--dest-creds={USER}:{PASSWORD}", f"oci:{directory}/image:1", f"docker://127.0.0.1:{port}/app:1"]
        subprocess.run(push, check=True)
        yield f"127.0.0.1:{port}", USER, PASSWORD
    finally:
        server.terminate()
        server.wait()


def _until_it_listens(server, port):
    while True:
        assert server.poll() is None, "the registry ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def _image(directory):
    """An OCI layout with one layer."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("there")
        content = b"of the registry\n"
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    layer = blob(archive.getvalue(), "layer.v1.tar")
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
    config = blob(json.dumps(config).encode(), "config.v1+json")
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]}
    manifest = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
