"""Attacks by users of the host who are not the operator."""

import os
import subprocess

from world import Broken

NOBODY = 65534


def as_nobody(*argv):
    """What a command says that runs with no rights."""
    return subprocess.run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", *argv], capture_output=True, timeout=300, text=True, errors="replace")


def attack_state_directories(world):
    """tries: read, list or enter the directories of the server's sandboxes, disks and images, as a user of the host (CVE-2024-25621)
    because: what the server keeps is in a directory that only its own user may enter"""
    box = world.sandbox()
    try:
        links = [os.readlink(f"/proc/{world.server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{world.server.pid}/fd") if os.path.islink(f"/proc/{world.server.pid}/fd/{fd}")]
        kept = {"/".join(path.split("/")[:4]) for path in links if path.startswith("/var/tmp/") and str(world.dir) not in path and " (deleted)" not in path}
        if not kept:
            raise Broken(f"where does it keep things? {links}")
        for place in kept:
            found = as_nobody("find", place, "-mindepth", "1").stdout
            inside = as_nobody("sh", "-c", f"ls {place}/* {place}/sandboxes/{box} {place}/sandboxes/*/ && echo entered").stdout
            made = as_nobody("sh", "-c", f": > {place}/x || ln -s /etc {place}/sandboxes/x; ls {place}/x").stdout
            if found or inside or made:
                return "succeeded", f"{place}: {(found or inside or made)[:200]}"
        return "refused", " ".join(kept)
    finally:
        world.delete(box)


def attack_processes_of_sandboxes(world):
    """tries: trace or read the server and what it runs, as a user of the host
    because: they are another user's, and cannot be traced
    must: refused"""
    box = world.sandbox()
    try:
        children = subprocess.run(["pgrep", "-P", str(world.server.pid)], capture_output=True, text=True).stdout.split()
        for pid in [str(world.server.pid), *children]:
            said = as_nobody("sh", "-c", f"cat /proc/{pid}/environ /proc/{pid}/maps /proc/{pid}/auxv; ls -l /proc/{pid}/fd/ /proc/{pid}/root /proc/{pid}/cwd; head -c 1 /proc/{pid}/mem")
            said = "".join(line for line in said.stdout.splitlines() if "->" in line or not line.startswith(("total", "l", "d")))
            if said:
                return "succeeded", f"{pid}: {said[:200]}"
        return "refused", f"the server and {len(children)} others"
    finally:
        world.delete(box)
