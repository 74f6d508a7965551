"""Small images as `docker save` packs them: a shell, `cat`, and whatever an attack adds."""

import hashlib
import io
import json
import tarfile

from world import CACHE, Broken

PROGRAMS = {"bin/sh": "usr/bin/dash", "bin/cat": "usr/bin/cat", "lib64/ld-linux-x86-64.so.2": "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            "lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6"}
# What every image has, unless an attack brings something else of that name.
DIRECTORIES = ("dev", "proc", "sys", "etc", "tmp", "root", "bin", "lib64", "lib", "lib/x86_64-linux-gnu")


def link(name, target):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry, b""


def file(name, body):
    entry = tarfile.TarInfo(name)
    entry.size = len(body)
    return entry, body


def packed(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry, body in entries:
            tar.addfile(entry, io.BytesIO(body))
    return out.getvalue()


def layer(entries):
    """A layer of these entries above the programs and directories that they do not replace."""
    mine = {entry.name for entry, _ in entries}
    base = []
    for name in DIRECTORIES:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        base.append((entry, b""))
    for name, source in PROGRAMS.items():
        entry, body = file(name, (CACHE / "debian-minimal" / source).read_bytes())
        entry.mode = 0o755
        base.append((entry, body))
    return packed([one for one in base if one[0].name not in mine] + entries)


def saved(entries, config):
    """The archive of an image without a name."""
    whole = layer(entries)
    about = {"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]} | config,
             "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(whole).hexdigest()]}}
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": ["layer.tar"]}]
    return packed([file("manifest.json", json.dumps(manifest).encode()), file("config.json", json.dumps(about).encode()), file("layer.tar", whole)])


class Small:
    """A loaded image, and its sandboxes; all of it goes at the end."""

    def __init__(self, world, entries=(), **config):
        world.image()
        self.world, self.name, self.boxes = world, world.new_name("small"), []
        answer = world.ask("POST", f"/v1/images/load?name={self.name}", saved(list(entries), config), headers={"content-type": "application/x-tar"})
        # Why it is no image, if it is none.
        self.refused = None if '"done"' in answer.text else answer.text
        if self.refused and '"code"' not in self.refused:
            raise Broken(f"{answer!r}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for box in self.boxes:
            self.world.delete(box)
        self.world.ask("DELETE", f"/v1/images/{self.name}")

    def start(self, **more):
        """The answer to the request for a sandbox."""
        answer = self.world.ask("POST", "/v1/sandboxes", {"image": self.name, **more})
        if answer.status < 300:
            self.boxes.append(answer.json["id"])
        return answer

    def box(self, **more):
        answer = self.start(**more)
        if answer.status >= 300:
            raise Broken(f"{answer!r}")
        return self.boxes[-1]
