"""Searches a sandbox for a text, from outside: memory, environment, disk, and the server's data directory."""

import os
import subprocess
from pathlib import Path


def processes(sandbox):
    """Pids of the processes in a sandbox, by its id."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if sandbox in (entry / "cgroup").read_text() and (entry / "cmdline").read_bytes():
                    yield int(entry.name)
            except OSError:
                pass


def in_memory(pid, texts):
    """Which of some texts are in the readable and writable memory of a process."""
    found = set()
    longest = max(map(len, texts))
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        memory = open(f"/proc/{pid}/mem", "rb", buffering=0)
    except OSError:
        return found
    with memory:
        for line in lines:
            span, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            at, end = (int(part, 16) for part in span.split("-"))
            while at < end:
                try:
                    memory.seek(at)
                    piece = memory.read(min(1 << 20, end - at))
                except (OSError, ValueError, OverflowError):
                    piece = b""
                found |= {text for text in texts if text in piece}
                # The pieces overlap, so that a text across a border is found.
                at += max(len(piece) - longest, 1) if len(piece) == 1 << 20 else 1 << 20
    return found


def in_environment(pid, texts):
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return set()
    return {text for text in texts if text in environment}


def on_disk(pid, text, since):
    """Files of a sandbox, as one of its processes sees them, that changed after the file `since` and contain a text."""
    root = f"/proc/{pid}/root/"
    find = ["find", root, "-xdev", "-type", "f", "-newercm", str(since), "-exec", "grep", "-laF", "-e", text, "{}", "+"]
    return subprocess.run(find, capture_output=True, text=True).stdout.splitlines()


def in_data(text):
    """Files of the server's data directory, disks included, that contain a text. Disks are mostly holes."""
    each = 'tar --sparse -cf - -- "$1" 2>/dev/null | grep -qaF -e "$0" && echo "$1"; true'
    find = ["find", os.environ["ATOLL_DATA"], "-type", "f", "-exec", "sh", "-c", each, text, "{}", ";"]
    return subprocess.run(find, capture_output=True, text=True, check=True).stdout.splitlines()
