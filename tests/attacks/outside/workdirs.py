"""Attacks by working directories that are descriptors of the agent's (CVE-2024-21626), named by a client, a link or an image."""

from small import Small, link
from verdict import held_if
from world import Broken

DESCRIPTORS = range(3, 40)
NO_DIRECTORY = {"cwd_not_found", "not_a_directory", "permission_denied"}
# Goes to the exec's own cgroup, if the directory is above it, and up to a file of the operator's. A cgroup has such files only.
LOOK = 'cat "../../../../../../../..$BAIT" 2>/dev/null; for f in cgroup.* */cgroup.*; do [ -e "$f" ] && echo "CGROUP $f"; done; echo done'


def looked(world, box, **where):
    """What a command finds in a working directory, or why it does not start."""
    body = {"argv": ["/bin/sh", "-c", LOOK], "env": {"BAIT": str(world.bait)}, "wait_ms": 60_000, **where}
    answer = world.ask("POST", f"/v1/sandboxes/{box}/execs", body)
    if answer.status >= 300:
        if answer.code not in NO_DIRECTORY:
            raise Broken(repr(answer))
        return answer.code
    out = "".join(chunk["data"] for chunk in answer.json["output"])
    if "done" not in out:
        raise Broken(repr(answer))
    return out


def verdict(world, seen):
    """The worst of what was found, by directory."""
    for where, out in seen.items():
        if world.bait_text in out or "CGROUP" in out:
            return "succeeded", f"{where}: {out}"
    return ("refused", "no such directory") if set(seen.values()) <= NO_DIRECTORY else ("held", "nothing of the host's or the agent's")


def attack_of_an_exec(world):
    """tries: run a command in a directory that the agent has open (CVE-2024-21626), which leads out of the command's cgroup
    because: what starts a command closes all descriptors before it enters the directory
    must: refused"""
    box = world.sandbox()
    try:
        places = [f"{way}/fd/{number}" for number in DESCRIPTORS for way in ("/proc/self", "/proc/thread-self")]
        return verdict(world, {place: looked(world, box, cwd=place) for place in places})
    finally:
        world.delete(box)


def attack_of_the_first_process(world):
    """tries: run a command in a directory that process 1 has open, which is the agent
    because: nobody in a container may look through the agent, and gVisor's has no directory open; a machine's root may, and its agent is trusted with nothing beyond
    must: refused
    microvm: open"""
    box = world.sandbox()
    try:
        return verdict(world, {number: looked(world, box, cwd=f"/proc/1/fd/{number}") for number in DESCRIPTORS})
    finally:
        world.delete(box)


def attack_behind_a_link(world):
    """tries: have a client run its command in a directory that the agent has open, by a link with a harmless name
    because: what starts a command closes all descriptors before it enters the directory
    must: refused"""
    box = world.sandbox()
    try:
        world.sh(box, "".join(f"ln -s /proc/self/fd/{number} /root/work-{number}; " for number in DESCRIPTORS))
        return verdict(world, {number: looked(world, box, cwd=f"/root/work-{number}") for number in DESCRIPTORS})
    finally:
        world.delete(box)


def attack_of_an_image(world):
    """tries: bring an image whose working directory is one that the agent has open, or a link to it
    because: what starts a command closes all descriptors before it enters the directory; a command without a directory of its own begins in /"""
    seen = {}
    for place in ("/proc/self/fd/4", "/proc/self/fd/4/..", "/work"):
        with Small(world, [link("work", "/proc/self/fd/4")], WorkingDir=place) as image:
            started = image.start()
            if started.status >= 300 and started.code not in NO_DIRECTORY:
                raise Broken(repr(started))
            seen[place] = started.code if started.status >= 300 else looked(world, image.boxes[-1])
    return verdict(world, seen)


def attack_out_of_its_time(world):
    """tries: outlive the time that a command may take, by leaving its cgroup for the one above, which the agent has open
    because: no working directory leads to it, and cgroups seen from inside have nothing above
    levels: container
    must: refused or held"""
    box = world.sandbox()
    try:
        leave = "for place in /proc/self/fd/* /root/work; do cd $place 2>/dev/null && echo $$ > cgroup.procs; done 2>/dev/null; exec sleep 1000"
        world.sh(box, "ln -s /proc/self/fd/4 /root/work")
        for cwd in ("/root/work", "/"):
            body = {"argv": ["sh", "-c", f"echo $$ > cgroup.procs 2>/dev/null; {leave}"], "cwd": cwd, "timeout_ms": 1000, "wait_ms": 60_000}
            answer = world.ask("POST", f"/v1/sandboxes/{box}/execs", body)
            if answer.status < 300 and not answer.json["exec"]["exit"]:
                return "succeeded", f"{cwd}: it runs on"
        return held_if("sleep 1000" not in world.sh(box, "cat /proc/[0-9]*/cmdline | tr '\\\\0' ' '"), "it runs on")
    finally:
        world.delete(box)
