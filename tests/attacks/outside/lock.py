"""Attacks through the API on a policy that says which programs may run."""

import base64

from verdict import held_if, must_refuse
from world import Broken

IMAGE = {"programs": "image"}
COPY = "cp /bin/echo /var/x; chmod 755 /var/x; "


def locked(world, **more):
    return world.sandbox(execution=IMAGE, **more)


def killed(world, box, argv):
    """Refused if the command is killed at its start, succeeded if it runs; any other end raises `Broken`."""
    exit_, out, err = world.run(box, argv)
    if "RAN" in out:
        return "succeeded", out[:100]
    if exit_ is None or (exit_.get("signal") != 9 and exit_.get("code") != 137):
        raise Broken(f"{exit_} {out[:200]} {err[:200]}")
    return "refused", "killed at its start"


def attack_first_program(world):
    """tries: have the server start a copy of a program as a command of its own
    because: what the agent starts is asked as all else
    levels: container"""
    box = locked(world)
    try:
        world.sh(box, COPY)
        return killed(world, box, ["/var/x", "RAN"])
    finally:
        world.delete(box)


def attack_uploaded(world):
    """tries: upload a program through the API, and run it
    because: what came after the image is not the image's, whoever brought it
    levels: container"""
    box = locked(world)
    try:
        with open("/bin/echo", "rb") as program:
            world.ok("PUT", f"/v1/sandboxes/{box}/files?path=/var/x&mode=755", program.read())
        return killed(world, box, ["sh", "-c", "chmod 755 /var/x; /var/x RAN"])
    finally:
        world.delete(box)


def attack_from_a_volume(world):
    """tries: run a program from a volume
    because: a volume is not the image
    levels: container"""
    return from_a_volume(world, False)


def attack_from_a_volume_that_is_read_only(world):
    """tries: run a program from a volume that is mounted read-only, as an image's directory is
    because: what is bound in the place of an image is known by its number
    levels: container"""
    return from_a_volume(world, True)


def from_a_volume(world, read_only):
    volume = world.ok("POST", "/v1/volumes", {"name": world.new_name("v")})["name"]
    writer = world.sandbox(volumes=[{"volume": volume, "path": "/vol"}])
    world.sh(writer, "cp /bin/echo /vol/x")
    world.delete(writer)
    box = locked(world, volumes=[{"volume": volume, "path": "/vol", "read_only": read_only}])
    try:
        return killed(world, box, ["sh", "-c", "/vol/x RAN"])
    finally:
        world.delete(box)
        world.ask("DELETE", f"/v1/volumes/{volume}")


def attack_after_a_pause(world):
    """tries: run a copy of a program after the sandbox was put to disk and woken
    because: it is woken with the policy that it was made with
    levels: container"""
    box = locked(world)
    try:
        world.sh(box, COPY)
        world.ok("POST", f"/v1/sandboxes/{box}/pause", {"mode": "filesystem"})
        world.ok("POST", f"/v1/sandboxes/{box}/resume")
        return killed(world, box, ["sh", "-c", "/var/x RAN"])
    finally:
        world.delete(box)


def attack_in_a_fork(world):
    """tries: run in a fork what was written in its parent
    because: a fork has its parent's policy, and what was written before is written
    levels: container"""
    box = locked(world)
    try:
        world.sh(box, COPY)
        child = world.ok("POST", f"/v1/sandboxes/{box}/fork", {})["results"][0]["sandbox"]["id"]
        try:
            return killed(world, child, ["sh", "-c", "/var/x RAN"])
        finally:
            world.delete(child)
    finally:
        world.delete(box)


def attack_unlock_with_a_lesser_key(world):
    """tries: open the policy of a sandbox with a key that may only use it
    because: changing a sandbox is another right than running commands in it
    levels: container"""
    box = locked(world)
    try:
        key = world.new_key("exec")["secret"]
        return must_refuse(world.ask("PATCH", f"/v1/sandboxes/{box}", {"execution": {"programs": "any"}}, key=key))
    finally:
        world.delete(box)


def attack_misspelt(world):
    """tries: make a sandbox whose policy is misspelt, and so holds nothing
    because: unknown words and fields are refused
    levels: container"""
    return must_refuse(*(world.ask("POST", "/v1/sandboxes", {"execution": policy}) for policy in (
        {"program": "image"}, {"programs": "Image"}, {"programs": "image", "mode": "off"}, "image", {"programs": None})))


def attack_level_without(world):
    """tries: make a sandbox with a policy at a level that cannot enforce it
    because: what cannot be enforced is refused (unenforceable)
    levels: gvisor microvm"""
    answer = world.ask("POST", "/v1/sandboxes", {"execution": IMAGE})
    if answer.status >= 400 and answer.code != "unenforceable":
        raise Broken(repr(answer))
    return must_refuse(answer)


def attack_drowned_refusal(world):
    """tries: run a copy of a program without the journal telling of it
    because: the kernel writes the refusal into the sandbox's own ring before anything else can happen
    levels: container"""
    box = locked(world)
    try:
        world.sh(box, COPY + "/var/x RAN; true")
        events = world.ok("GET", f"/v1/sandboxes/{box}/events?kind=policy&wait_ms=10000")["items"]
        told = [event for event in events if event.get("stage") == "exec" and event.get("subject") == "/var/x"]
        return held_if(told and not told[0]["allowed"] and told[0]["witness"] == "host", repr(events)[:300])
    finally:
        world.delete(box)


def attack_script_of_bytes(world):
    """tries: write a program piece by piece, by commands of the image only
    because: who wrote it does not matter
    levels: container"""
    box = locked(world)
    try:
        with open("/bin/echo", "rb") as program:
            text = base64.b64encode(program.read()).decode()
        for at in range(0, len(text), 60_000):
            world.run(box, ["sh", "-c", "printf %s \"$1\" >> /var/b", "sh", text[at:at + 60_000]])
        return killed(world, box, ["sh", "-c", "base64 -d /var/b > /var/x; chmod 755 /var/x; /var/x RAN"])
    finally:
        world.delete(box)
