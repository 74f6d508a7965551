"""Images for tests: a shell with its libraries, and layers on top, as OCI layouts and in a registry."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile

from cluster import until

PROGRAMS = ("/usr/bin/dash", "/usr/bin/cat", "/usr/bin/sha256sum")


def layer(files):
    """A tar archive of files, given as bytes by path; the same files give the same archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def shell():
    """A layer with a shell, two more programs, and the libraries that they need."""
    files = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash"}
    for program in PROGRAMS:
        files[program[1:]] = pathlib.Path(program).read_bytes()
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/lib\S+)", linked):
            files["usr" + library] = pathlib.Path(library).resolve().read_bytes()
    files["etc/passwd"] = b"root:x:0:0:root:/root:/bin/sh\n"
    return layer(files)


class Image:
    """An image whose layers are these archives, one on top of the other."""

    def __init__(self, name, *layers):
        self.name, self.blobs = name, {}
        packed = [self.blob(gzip.compress(one, 1, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip") for one in layers]
        self.diff_ids = ["sha256:" + hashlib.sha256(one).hexdigest() for one in layers]
        self.layers = [one["digest"] for one in packed]
        config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["OF=image"]}}
        config |= {"rootfs": {"type": "layers", "diff_ids": self.diff_ids}}
        config = self.blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": packed}
        manifest = self.blob(json.dumps(manifest).encode(), manifest["mediaType"])
        self.digest = manifest["digest"]
        manifest["annotations"] = {"io.containerd.image.name": name}
        self.index = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()

    def blob(self, content, kind):
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def archive(self):
        """An OCI layout, as an archive."""
        out = io.BytesIO()
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": self.index}
        files |= {f"blobs/sha256/{digest[7:]}": content for digest, content in self.blobs.items()}
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return out.getvalue()

    def load(self, node):
        """Loads the image into a node; returns the image that the node reports at the end."""
        headers = {"Content-Type": "application/x-tar"}
        status, _, text = node.raw("POST", "/v1/images/load", self.archive(), headers=headers)
        assert status == 200, text
        last = json.loads(text.splitlines()[-1])
        assert last.get("image", {}).get("digest") == self.digest, text
        return last["image"]


def place(node, image):
    """Where a node says that an image is; `None` when it does not know the image."""
    found = [one for one in node.ok("GET", "/v1/images")["items"] if one["digest"] == image.digest]
    return found[0]["place"] if found else None


def shared(node, image):
    """Waits until every node can fetch an image that this node has."""
    until("every node can have it", lambda: place(node, image) == "shared")


class Registry:
    """Debian's docker-registry, with its images in a directory."""

    def __init__(self):
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="atoll-registry-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.host = f"127.0.0.1:{free.getsockname()[1]}"
        config = {"version": 0.1, "log": {"level": "error"}, "http": {"addr": self.host}}
        config |= {"storage": {"filesystem": {"rootdirectory": str(self.place / "storage")}}}
        (self.place / "config.yml").write_text(json.dumps(config))
        command = ["docker-registry", "serve", self.place / "config.yml"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("the registry", self.answers)

    def answers(self):
        host, port = self.host.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return True
        except OSError:
            return False

    def push(self, image, name):
        """Pushes an image to the registry; returns its reference."""
        archive = self.place / "image.tar"
        archive.write_bytes(image.archive())
        reference = f"{self.host}/{name}"
        command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
        subprocess.run([*command, f"oci-archive:{archive}", f"docker://{reference}"], check=True)
        return reference

    def lose(self, digest):
        """Removes a blob from the registry."""
        shutil.rmtree(self.place / "storage/docker/registry/v2/blobs/sha256" / digest[7:9] / digest[7:])

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.place)
