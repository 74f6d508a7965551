"""Attacks by paths of files that lead to what the agent has open: it resolves them, and `/proc/self` is the agent there."""

import time
import urllib.parse

from verdict import held_if
from world import PATIENCE, Broken

DESCRIPTORS = range(3, 24)
LINKS = "ln -s /proc/self /root/agent; for n in $(seq 3 23); do ln -s /proc/self/fd/$n /root/fd-$n; ln -s /proc/self/fd/$n/cgroup.procs /root/procs-$n; done"


def ways_of(number):
    """Paths of what the agent has open under a number."""
    return [f"/proc/self/fd/{number}", f"/proc/thread-self/fd/{number}", f"/proc/1/fd/{number}", f"/root/agent/fd/{number}", f"/root/fd-{number}"]


class Writers:
    """Every way in which a client writes a file; those of E2B and Daytona write into the file itself."""

    def __init__(self, world, box):
        self.world, self.box = world, box
        answer = world.ask("POST", f"/e2b/sandboxes/{box}/connect", {"timeout": 600}, headers={"x-api-key": world.key})
        self.token = answer.json.get("envdAccessToken")
        if not self.token:
            raise Broken(f"E2B: {answer!r}")
        for way in (self.native, self.daytona, self.e2b):
            answer = way("/root/proof", way.__name__.encode())
            if answer.status >= 300 or world.sh(box, "cat /root/proof") != way.__name__:
                raise Broken(f"{way.__name__}: {answer!r}")

    def native(self, path, content):
        return self.world.ask("PUT", f"/v1/sandboxes/{self.box}/files?path={urllib.parse.quote(path)}", content)

    def daytona(self, path, content):
        form = b'--b0und\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + content + b"\r\n--b0und--\r\n"
        return self.world.ask("POST", f"/daytona/toolbox/{self.box}/files/upload?path={urllib.parse.quote(path)}", form,
                              headers={"content-type": "multipart/form-data; boundary=b0und"})

    def e2b(self, path, content):
        return self.world.ask("POST", f"/files?path={urllib.parse.quote(path)}&username=root", content,
                              headers={"e2b-sandbox-id": self.box, "x-access-token": self.token, "content-type": "application/octet-stream"})

    def all(self, path, content):
        """The writers that the server told that it is done."""
        return [way.__name__ for way in (self.native, self.daytona, self.e2b) if way(path, content).status < 300]


def victim(world, box):
    """A command that runs: its exec, its process, and its cgroup."""
    exec_ = world.ok("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["sh", "-c", "echo $$ > /root/pid; exec sleep 1000"]})["exec"]["id"]
    since = time.monotonic()
    while not (pid := world.sh(box, "cat /root/pid 2>/dev/null").strip()):
        if time.monotonic() - since > PATIENCE:
            raise Broken("the command does not begin")
    return exec_, pid


def attack_cgroup_by_files(world):
    """tries: move a command out of its cgroup, by writing its number in place to a file of the cgroup that the agent has open (native API, Daytona, E2B; named, and by links)
    because: the agent follows no magic link of /proc for a client, and changes nothing of a file system of cgroups
    must: refused"""
    box = world.sandbox()
    try:
        world.sh(box, LINKS)
        writers = Writers(world, box)
        exec_, pid = victim(world, box)
        before = world.sh(box, f"cat /proc/{pid}/cgroup")
        done = []
        for number in DESCRIPTORS:
            for path in [f"{way}/cgroup.procs" for way in ways_of(number)] + [f"/root/procs-{number}"]:
                done += [f"{path} by {way}" for way in writers.all(path, pid.encode())]
        after = world.sh(box, f"cat /proc/{pid}/cgroup")
        if done or after != before:
            return "succeeded", f"{done} {before!r} {after!r}"
        ended = world.ask("POST", f"/v1/sandboxes/{box}/execs/{exec_}/signal", {"signal": "KILL"})
        return ("refused", "") if ended.status < 300 else ("succeeded", f"it cannot be ended: {ended!r}")
    finally:
        world.delete(box)


def attack_cgroups_of_its_own(world):
    """tries: make, rename and remove cgroups beside those of others, by directories in the cgroup that the agent has open
    because: as above
    must: refused"""
    box = world.sandbox()
    try:
        world.sh(box, LINKS)
        tree = "{ find /sys/fs/cgroup -type d 2>/dev/null; cat /proc/1/cgroup /proc/self/cgroup; } | sed 's/exec-[^/]*/exec/' | sort -u"
        before = world.sh(box, tree)
        files, done = f"/v1/sandboxes/{box}/files", []
        for number in DESCRIPTORS:
            for way in ways_of(number):
                tries = [world.ask("POST", f"{files}/mkdir", {"path": f"{way}/evil"}),
                         world.ask("POST", f"{files}/mkdir", {"path": f"{way}/evil/deep", "parents": True}),
                         world.ask("POST", f"{files}/move", {"from": f"{way}/evil", "to": f"{way}/other"}),
                         world.ask("DELETE", f"{files}?path={way}/evil&recursive=true")]
                done += [f"{way}: {answer!r}" for answer in tries if answer.status < 300]
        return ("refused", "") if not done and world.sh(box, tree) == before else ("succeeded", str(done))
    finally:
        world.delete(box)


def attack_address_layout(world):
    """tries: read where the agent's memory lies, and what it has open, by its own directory of /proc (maps, auxv, stat, fd)
    because: of its own directory the agent shows a client only what it says of the whole sandbox
    must: held"""
    box = world.sandbox()
    try:
        world.sh(box, LINKS)
        names = ["maps", "smaps", "smaps_rollup", "numa_maps", "mem", "auxv", "environ", "stat", "syscall", "stack", "pagemap", "exe"]
        got = []
        for top in ("/proc/self", "/proc/thread-self", "/proc/1", "/root/agent", "/proc/self/task/1"):
            for name in names:
                answer = world.ask("GET", f"/v1/sandboxes/{box}/files?path={top}/{name}")
                if answer.status < 300:
                    got.append(f"{top}/{name}")
            for name in ("fd", "fdinfo", "task", "map_files", "ns"):
                if world.ask("GET", f"/v1/sandboxes/{box}/files/list?path={top}/{name}").status < 300:
                    got.append(f"{top}/{name}")
        shown = world.ask("GET", f"/v1/sandboxes/{box}/files?path=/proc/self/status")
        if "Name:" not in shown.text:
            raise Broken(f"nothing can be read there: {shown!r}")
        return held_if(not got, f"{got}")
    finally:
        world.delete(box)
