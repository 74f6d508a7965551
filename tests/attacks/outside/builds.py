"""Attacks by builds: files of the host through mounts and contexts, and steps with more rights."""

import tempfile
import time
from pathlib import Path

from small import file, link, packed
from verdict import held_if
from world import PATIENCE, Broken

BASE = {"container": "host", "gvisor": "default", "microvm": "default"}


def build(world, dockerfile, entries=()):
    """Builds; returns the state that it ended in, and its log with the reason of its failure, or the refusal of the request."""
    body = {"name": world.new_name("b"), "dockerfile": f"FROM {BASE[world.level]}\n{dockerfile}"}
    if BASE[world.level] != "host":
        world.image()
    answer = world.ask("POST", "/v1/builds", body)
    if answer.status >= 300:
        return "refused", answer.text
    made = answer.json
    if made["needs_context"]:
        sent = world.ask("PUT", f"/v1/builds/{made['id']}/context", packed(list(entries)), headers={"content-type": "application/x-tar"})
        if sent.status >= 300:
            world.ask("POST", f"/v1/builds/{made['id']}/cancel")
            return "refused", sent.text
    since = time.monotonic()
    while (made := world.ok("GET", f"/v1/builds/{made['id']}"))["state"] not in ("succeeded", "failed", "cancelled"):
        if time.monotonic() - since > PATIENCE:
            raise Broken(f"the build does not end: {made}")
        time.sleep(0.2)
    log = world.ask("GET", f"/v1/builds/{made['id']}/log").text
    if made["state"] == "succeeded":
        world.ask("DELETE", f"/v1/templates/{body['name']}")
    return made["state"], log + str(made.get("failure"))


def shows_the_bait(world, steps, entries=()):
    """Builds each step alone; held if none shows a file of the operator's, and some step ran or all were refused."""
    said = []
    for step in steps:
        state, text = build(world, step, entries)
        if world.bait_text in text:
            return "succeeded", step
        said.append(state)
    if world.bait.read_text() != world.bait_text:
        return "succeeded", "it was overwritten"
    return "held", ", ".join(said)


def attack_files_by_mounts(world):
    """tries: show files of the host to a step by what it mounts: paths and links that lead out, caches (CVE-2024-23651)
    because: what a step mounts is looked up in the context or in another step's sandbox, following no link out; caches are empty
    slow: yes"""
    entries = [file("f", b"x"), link("l", str(world.dir)), link("up", "../../../../../.."), link("self", "/proc/self/root")]
    read = f"cat /m/bait /m{world.bait} /m; ls /m; true"
    mounts = ["bind,source=l,target=/m", "bind,source=l/bait,target=/m", f"bind,source=up{world.dir},target=/m", f"bind,source=../../../..{world.dir},target=/m",
              f"bind,source={world.dir},target=/m", f"bind,source=self{world.dir},target=/m", f"cache,source=../../..{world.dir},target=/m", f"cache,id=../../..{world.dir},target=/m"]
    return shows_the_bait(world, [f"RUN --mount=type={mount} {read}" for mount in mounts], entries)


def attack_files_by_context(world):
    """tries: copy files of the host into an image, by a context with links and names that lead out
    because: a context is unpacked beneath a directory, and links in it mean what is in it
    slow: yes"""
    entries = [link("l", str(world.dir)), link("b", str(world.bait)), file("f", b"x")]
    steps = ["COPY l/bait /x", "COPY b /x", "COPY l /x", f"COPY ../../../../../..{world.bait} /x", f"COPY {world.bait} /x", f"ADD file://{world.bait} /x"]
    return shows_the_bait(world, [f"{step}\nRUN cat /x /x/bait; true" for step in steps], entries)


def attack_clean_up_removes_files(world):
    """tries: have the clean-up after a step remove a file of the host, by a link in the place of what was mounted (CVE-2024-23652)
    because: what a step mounts is put in its place and taken away in the step's sandbox
    slow: yes"""
    with tempfile.TemporaryDirectory(dir=world.dir.parent) as outside:
        victim = Path(outside) / "f"
        victim.write_text("")
        swap = f"rm -rf /m 2>/dev/null; mv /m /old 2>/dev/null; ln -sfn {outside} /m; true"
        steps = [f"RUN --mount=type={mount} {swap}" for mount in ("bind,source=d,target=/m", "bind,source=d/f,target=/m/f", "tmpfs,target=/m/f")]
        steps += [f"RUN ln -s {outside} /m\nRUN --mount=type=bind,source=d,target=/m/f true"]
        said = [build(world, step, [file("d/f", b"")])[0] for step in steps]
        return held_if([path.name for path in Path(outside).iterdir()] == ["f"], str(said))


def attack_steps_with_more_rights(world):
    """tries: have steps run with more rights than a sandbox has, by options, a frontend of its own or devices (CVE-2024-23653)
    because: there are no such options and no frontends; a step has the rights of any command
    slow: yes"""
    check = "(cat /proc/self/status | grep CapEff; cat " + str(world.bait) + "; mount -t tmpfs x /mnt && echo MOUNTED) 2>&1; true"
    ran = []
    for step in (f"RUN --security=insecure {check}", f"RUN --network=host {check}", f"RUN --device=/dev/vda {check}", f"RUN --privileged {check}"):
        state, text = build(world, step)
        if world.bait_text in text or ("MOUNTED" in text and world.level != "microvm"):
            return "succeeded", step
        if state == "succeeded":
            ran.append(step.split()[1])
    state, text = build(world, "RUN true")
    if state != "succeeded":
        raise Broken(text[-300:])
    syntax = world.ask("POST", "/v1/builds", {"name": world.new_name("b"), "dockerfile": f"# syntax=127.0.0.1:{world.port}/evil/frontend:1\nFROM no/such-image\nRUN true"})
    if syntax.status < 300:
        world.ask("POST", f"/v1/builds/{syntax.json['id']}/cancel")
    return ("held", f"without a meaning: {ran}") if ran else ("refused", "no such options")
