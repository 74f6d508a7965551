"""Attacks by images and snapshots that the server unpacks."""

import io
import json
import subprocess
import tarfile

from small import Small, link
from verdict import held_if, must_refuse
from world import Broken


def image(world, *entries):
    """Imports an archive; returns whether the image was listed, and the text of the server's answer."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, fields in entries:
            entry = tarfile.TarInfo(name)
            body = fields.pop("body", b"")
            for field, value in fields.items():
                setattr(entry, field, value)
            entry.size = len(body) if "size" not in fields else entry.size
            tar.addfile(entry, io.BytesIO(body) if body else None)
    name = world.new_name("hostile")
    answer = world.ask("POST", f"/v1/images/import?name={name}", packed.getvalue(), headers={"content-type": "application/x-tar"})
    there = world.ask("GET", "/v1/images").text
    imported = f'"{name}' in there or f"/{name}" in there
    world.ask("DELETE", f"/v1/images/{name}")
    return imported, answer.text


def refuse_image(world, *entries):
    imported, said = image(world, *entries)
    if imported:
        return "succeeded", said[-200:]
    if "error" not in said and "code" not in said:
        raise Broken(said[-300:])
    return "refused", said[-200:]


def attack_names_lead_up(world):
    """tries: unpack a file above the place of an image's layer
    because: names are opened beneath the layer's root, `..` is refused
    levels: container"""
    return refuse_image(world, ("../../out", {"body": b"x"}))


def attack_absolute_link_then_file(world):
    """tries: unpack a link to a directory of the host, then a file through it
    because: links are followed only beneath the root, where they mean the image's own
    levels: container"""
    image(world, ("l", {"type": tarfile.SYMTYPE, "linkname": str(world.dir)}), ("l/bait", {"body": b"overwritten"}))
    return held_if(world.bait.read_text() == world.bait_text, "it was overwritten")


def attack_hard_link_to_the_host(world):
    """tries: link a file of the host into an image
    because: what is linked to is looked up beneath the root
    levels: container"""
    return refuse_image(world, ("h", {"type": tarfile.LNKTYPE, "linkname": "../../../../../../" + str(world.bait)}))


def attack_devices(world):
    """tries: bring the device of the host's disk in an image
    because: devices are not made, and no mount inside has any
    levels: container"""
    imported, said = image(world, ("dev/disk", {"type": tarfile.BLKTYPE, "devmajor": 254, "devminor": 0}), ("x", {"body": b"x"}))
    return ("held" if imported else "refused"), said[-100:]


def attack_steering_attributes(world):
    """tries: bring attributes that steer an overlay to other directories
    because: such attributes are refused
    levels: container"""
    return refuse_image(world, ("d", {"type": tarfile.DIRTYPE, "pax_headers": {"SCHILY.xattr.trusted.overlay.redirect": "/etc"}}))


def attack_absurd_size(world):
    """tries: have the server reserve an exabyte for a file of an image
    because: sizes are bounded, and written as they come
    levels: container"""
    return refuse_image(world, ("a", {"pax_headers": {"size": "1152921504606846976"}}))


def attack_circle_of_links(world):
    """tries: have the server follow links in a circle
    because: the kernel gives up, and so does the import
    levels: container"""
    return refuse_image(world, ("a", {"type": tarfile.SYMTYPE, "linkname": "b"}), ("b", {"type": tarfile.SYMTYPE, "linkname": "a"}), ("a/x", {"body": b"x"}))


def attack_pull_from_loopback(world):
    """tries: make the server ask its own network, by pulling an image from there
    because: every address of a registry is checked where it becomes one
    levels: container"""
    answers = [world.ask("POST", "/v1/images/pull", {"reference": f"{host}/x/y:1", "insecure_http": True}) for host in
               (f"127.0.0.1:{world.port}", "169.254.169.254", "10.0.0.1:5000", f"[::1]:{world.port}", f"localhost:{world.port}")]
    bad = [answer for answer in answers if '"code"' not in answer.text]
    return ("succeeded", repr(bad[0])) if bad else ("refused", answers[0].text[-200:])


def attack_snapshot_that_is_none(world):
    """tries: import bytes that are no snapshot, a bomb of zeros among them
    because: what comes in is bounded and checked before it is mounted
    levels: container"""
    zeros = bytes.fromhex("28b52ffd0458") + b"\0" * 64
    return must_refuse(*(world.ask("POST", "/v1/snapshots/import", body, headers={"content-type": "application/zstd"})
                         for body in (b"", b"junk", zeros, b"\x28\xb5\x2f\xfd" + b"\xff" * 100)))


def attack_system_directories_are_links(world):
    """tries: start a sandbox whose image has /dev, /proc, /sys or /etc as a link to the host or elsewhere in the image (CVE-2026-41579, CVE-2023-27561)
    because: what is mounted or written at the start wants real directories there, and follows no link
    must: refused"""
    beside, answers = sorted(path.name for path in world.dir.iterdir()), []
    for name in ("dev", "proc", "sys", "etc"):
        for target in (str(world.dir), "/root", "../../../../../../proc/1/root" + str(world.dir)):
            with Small(world, [link(name, target)]) as image:
                answers.append(image.start())
    now = sorted(path.name for path in world.dir.iterdir())
    return must_refuse(*answers) if now == beside else ("succeeded", f"beside the server's files are {now}")


def attack_files_of_the_start_are_links(world):
    """tries: have the start of a sandbox write to the host, by links in the place of /etc/hosts, /etc/hostname, /etc/resolv.conf, /etc/machine-id and /tmp
    because: each is made anew in its directory, which was opened without following a link; links are looked up in the sandbox's root"""
    beside = sorted(path.name for path in world.dir.iterdir())
    entries = [link(f"etc/{name}", str(target)) for name, target in (("hosts", world.bait), ("hostname", world.dir / "new"), ("resolv.conf", "/proc/sys/kernel/core_pattern"), ("machine-id", world.bait))]
    for more in ([], [link("tmp", str(world.dir))], [link("root", str(world.dir))]):
        with Small(world, entries + more) as image:
            answer = image.start(workdir=str(world.dir / "made"))
            if answer.status < 300:
                world.sh(image.boxes[-1], "cat /etc/hosts; cat /root/x; echo x > /tmp/x", env={"HOME": "/root"})
            elif answer.status >= 500:
                raise Broken(repr(answer))
    now = sorted(path.name for path in world.dir.iterdir())
    return held_if(now == beside and world.bait.read_text() == world.bait_text, f"beside the server's files are {now}")


def attack_devices_are_links(world):
    """tries: start a sandbox whose image has /dev/null, /dev/console, /dev/pts and /dev/shm as links into /proc (CVE-2025-31133, CVE-2025-52565)
    because: /dev is a new file system, which is filled before any program of the image runs; the host's /proc/sys is looked at after each attack"""
    entries = [link(f"dev/{name}", "/proc/sys/kernel/core_pattern") for name in ("null", "console", "tty", "ptmx")] + [link("dev/pts", "/proc/sys"), link("dev/shm", "/proc")]
    with Small(world, entries) as image:
        answer = image.start()
        if answer.status >= 300:
            return must_refuse(answer)
        box = image.boxes[-1]
        seen = world.sh(box, "[ -c /dev/null ] && echo DEVICE; echo '|/evil' > /dev/null; read -r x < /proc/kcore && echo KCORE; "
                             "(echo '|/evil' > /dev/console) 2>/dev/null; cat /proc/sys/kernel/core_pattern")
        if "DEVICE" not in seen:
            return "succeeded", f"/dev/null is no device: {seen}"
        # A machine's root may read its own kernel's memory.
        return held_if("KCORE" not in seen or world.level == "microvm", seen) if "/evil" not in seen else ("succeeded", seen)


def attack_user_beyond_all_ids(world):
    """tries: become root by an image's user, or a command's, that is no id: 2³¹ and more, negative, overflowing (CVE-2024-40635)
    because: ids are read as 32 bits, anything else is a name that nobody has; no id becomes another"""
    odd = ["2147483648", "4294967295", "4294967296", "4294967297", "18446744073709551616", "-1", "+0", "0x0", "1e1", "65536:4294967296", "00000000000000000000001"]
    with Small(world) as image:
        box = image.box()
        answers = {user: world.ask("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["/bin/cat", "/proc/self/status"], "user": user, "wait_ms": 60_000}) for user in odd}
    for user in ("4294967296", "2147483648", "-1"):
        with Small(world, User=user) as image:
            started = image.start()
            if started.status < 300:
                answers[f"image {user}"] = world.ask("POST", f"/v1/sandboxes/{image.boxes[-1]}/execs", {"argv": ["/bin/cat", "/proc/self/status"], "wait_ms": 60_000})
    for user, answer in answers.items():
        if answer.status < 300:
            out = "".join(chunk["data"] for chunk in answer.json["output"])
            if "Uid:\t" not in out and "exit" not in answer.text:
                raise Broken(repr(answer))
            if "Uid:\t0\t" in out:
                return "succeeded", f"{user}: {out[:200]}"
        elif answer.status >= 500:
            raise Broken(f"{user}: {answer!r}")
    return "held", ", ".join(f"{user}: {answer.status}" for user, answer in answers.items())


def attack_labels_are_commands(world):
    """tries: have labels, annotations and commands of an image run on the host (CVE-2026-53488)
    because: they are texts; what an image starts is started inside
    levels: container gvisor"""
    beside = sorted(path.name for path in world.dir.iterdir())
    evil = f"; touch {world.dir}/owned #"
    labels = {"containerd.io/restart.status": "running", "containerd.io/restart.logpath": f"binary:///bin/touch?{world.dir}/owned", "com.nvidia.cdi": evil,
              "io.kubernetes.cri-o.userns-mode": evil, "$(touch " + str(world.dir) + "/owned)": evil, "../../../x": evil, "x" * 4096: "y" * 65536}
    with Small(world, Labels=labels, Env=["PATH=/bin", f"LD_PRELOAD={world.dir}/x.so", "NVIDIA_VISIBLE_DEVICES=all"], Entrypoint=[f"{world.dir}/evil"], StopSignal=evil,
               Volumes={str(world.dir): {}, "/../../x": {}}, Healthcheck={"Test": ["CMD-SHELL", evil]}, OnBuild=[f"RUN {evil}"]) as image:
        if image.refused:
            return "refused", image.refused[-200:]
        world.sh(image.box(), "cat /proc/self/status")
    now = sorted(path.name for path in world.dir.iterdir())
    return held_if(now == beside, f"beside the server's files are {now}")


def attack_snapshot_with_links(world):
    """tries: leave links to the host in the place of /etc, /proc and others in a disk, and start from its snapshot (CVE-2026-119101)
    because: a start from a snapshot asks the same of the disk as one from an image: real directories, no links"""
    beside = sorted(path.name for path in world.dir.iterdir())
    box, started = world.sandbox(image=world.image()), []
    try:
        # Only a machine's root can take /proc and /sys away.
        world.sh(box, f"mv /etc /etc.old && ln -s {world.dir} /etc; mv /tmp /tmp.old && ln -s {world.dir} /tmp; for d in proc sys; do umount -l /$d && rmdir /$d && ln -s {world.dir} /$d; done; true")
        snapshot = world.ok("POST", f"/v1/sandboxes/{box}/snapshots", {})["id"]
        answer = world.ask("POST", "/v1/sandboxes", {"snapshot": snapshot})
        if answer.status < 300:
            started.append(answer.json["id"])
            world.sh(started[0], "echo x > /etc/x; echo x > /tmp/x; cat /etc/bait")
        world.ask("DELETE", f"/v1/snapshots/{snapshot}")
        now = sorted(path.name for path in world.dir.iterdir())
        if now != beside or world.bait.read_text() != world.bait_text:
            return "succeeded", f"beside the server's files are {now}"
        return must_refuse(answer) if not started else ("held", "it runs, and wrote inside")
    finally:
        for one in (box, *started):
            world.delete(one)


def attack_snapshot_that_was_changed(world):
    """tries: import a snapshot whose description was changed: its image, user, directory, sizes, names (CVE-2026-53492 and others)
    because: each value is checked as one from a request would be, and the digest is over all of them
    levels: container"""
    box = world.sandbox()
    try:
        world.sh(box, "echo x > /root/x")
        snapshot = world.ok("POST", f"/v1/sandboxes/{box}/snapshots", {})["id"]
        whole = subprocess.run(["zstd", "-dc"], input=world.ask("GET", f"/v1/snapshots/{snapshot}/export").body, capture_output=True, check=True).stdout
    finally:
        world.delete(box)
    magic = whole.index(b"\n") + 1
    length = int.from_bytes(whole[magic:magic + 4], "little")
    header, disk = json.loads(whole[magic + 4:magic + 4 + length]), whole[magic + 4 + length:]
    evil = str(world.dir)

    def asked(**changes):
        new = json.loads(json.dumps(header))
        for path, value in changes.items():
            at = new
            *way, last = path.split("__")
            for name in way:
                at = at[name]
            at[last] = value
        text = json.dumps(new).encode()
        packed = subprocess.run(["zstd", "-c"], input=whole[:magic] + len(text).to_bytes(4, "little") + text + disk, capture_output=True, check=True).stdout
        return world.ask("POST", "/v1/snapshots/import", packed, headers={"content-type": "application/zstd"})

    good = asked()
    if good.status >= 300:
        raise Broken(f"as it was: {good!r}")
    world.ask("DELETE", f"/v1/snapshots/{good.json['id']}")
    world.ask("DELETE", f"/v1/snapshots/{snapshot}")
    values = [{"manifest__image": f"../../../..{evil}"}, {"manifest__workdir": "/proc/self/fd/4"}, {"manifest__user": "0:0;x"}, {"manifest__env": {"LD_PRELOAD": evil}},
              {"manifest__isolation": "none"}, {"manifest__resources": {"cpu_millis": 1, "memory_bytes": 2**63, "pids": 1, "disk_bytes": 1}}, {"manifest__format": 0},
              {"manifest__layers": {"../x": {"digest": evil}}}, {"disk_bytes": 2**62}, {"disk_bytes": 0}, {"digest": "../../x"}, {"log": evil}, {"manifest__devices": ["/dev/vda"]}]
    changed = [asked(**value) for value in values]
    taken = [answer for answer in changed if answer.status < 400]
    # The server says with a status of its own that the content is not what it was said to be.
    return must_refuse(*taken, *(answer for answer in changed if answer.code != "digest_mismatch"))
