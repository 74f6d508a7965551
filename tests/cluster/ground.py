"""What nodes stand on, where a test takes it away: a network namespace and a disk for each."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from cluster import until

DISK_BYTES = 2 << 30
# Free bytes on a disk that this test fills: fewer than those at which a server freezes its sandboxes.
DISK_LEFT_BYTES = 40 << 20


def ip(*args):
    subprocess.run(["ip", *args], check=True)


class Net:
    """A bridge, and a namespace for each node."""

    def __init__(self, names):
        self.tag = f"ac{os.getpid() % 10000}"
        self.net = f"10.231.{os.getpid() % 250}"
        self.names = names

    def __enter__(self):
        ip("link", "add", self.tag, "type", "bridge")
        ip("addr", "add", f"{self.net}.254/24", "dev", self.tag)
        ip("link", "set", self.tag, "up")
        for number, name in enumerate(self.names):
            space, end = self.space(name), self.cable(name)
            ip("netns", "add", space)
            ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", end, "master", self.tag, "up")
            ip("-n", space, "addr", "add", f"{self.net}.{number + 1}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "eth0", "up")
        return self

    def space(self, name):
        return f"{self.tag}-{name}"

    def cable(self, name):
        return f"{self.tag}{name}"

    def address(self, name):
        return f"{self.net}.{self.names.index(name) + 1}"

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.space(name)])
        subprocess.run(["ip", "link", "del", self.tag])


class Disks:
    """A disk for each node."""

    def __init__(self, names):
        self.names = names

    def __enter__(self):
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="atoll-cluster-disks-", dir="/var/tmp"))
        for name in self.names:
            image, disk = self.place / f"{name}.img", self.place / name
            disk.mkdir()
            with open(image, "wb") as file:
                file.truncate(DISK_BYTES)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
            subprocess.run(["mount", "-o", "loop", image, disk], check=True)
        return self

    def data(self, name):
        return self.place / name / "data"

    def fill(self, name, seconds):
        """Fills the disk of a node for so many seconds, no faster than the disk writes."""
        ballast, disk = self.place / name / "ballast", self.place / name
        try:
            # A server may write to the last free bytes first.
            with contextlib.suppress(OSError), open(ballast, "wb") as file:
                while (free := shutil.disk_usage(disk).free) > DISK_LEFT_BYTES:
                    file.write(bytes(min(16 << 20, free - DISK_LEFT_BYTES)))
                    file.flush()
                    os.fsync(file.fileno())
            time.sleep(seconds)
        finally:
            ballast.unlink(missing_ok=True)

    def __exit__(self, *_):
        for name in self.names:
            # The watchdog of the node's lease ends later than its server.
            until(f"the disk of {name} is free", lambda: subprocess.run(["umount", self.place / name], stderr=subprocess.DEVNULL).returncode == 0)
        shutil.rmtree(self.place)
