"""Attacks by volumes: links that are swapped while a sandbox starts, and places that are not for volumes."""

import time

from small import Small, link
from verdict import held_if, must_refuse
from world import Broken

# Two names of a volume change places all the time: a directory, and a link to somewhere else.
SWAP = """chdir "/v"; mkdir "real"; mkdir "real/part"; mkdir "secret"; mkdir "secret/part"; open my $f, ">", "secret/part/key"; print $f "KEY"; close $f;
symlink $ENV{TARGET}, "link"; print "swapping\\n"; $| = 1; while (1) { rename "real", "other"; rename "link", "real"; select undef, undef, undef, 0.001; rename "real", "link"; rename "other", "real"; select undef, undef, undef, 0.001 }"""
TRIES_MAX = 600
# After a refusal: on a busy host the links may not change places between two tries.
PAUSE_S = 0.01


class Volume:
    """A volume that two sandboxes may have at once."""

    def __init__(self, world):
        self.world, self.name, self.boxes = world, world.ok("POST", "/v1/volumes", {"name": world.new_name("v"), "size_bytes": 64 << 20})["name"], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for box in self.boxes:
            self.world.delete(box)
        self.world.ask("DELETE", f"/v1/volumes/{self.name}")

    def ask(self, path, **more):
        subpath = {"subpath": more.pop("subpath")} if "subpath" in more else {}
        answer = self.world.ask("POST", "/v1/sandboxes", {"volumes": [{"volume": self.name, "path": path, **subpath}], **more})
        if answer.status < 300:
            self.boxes.append(answer.json["id"])
        return answer

    def box(self, path, **more):
        answer = self.ask(path, **more)
        if answer.status >= 300:
            raise Broken(repr(answer))
        return self.boxes[-1]


def swapped(world, target, subpath):
    """Starts sandboxes that want a directory of a volume while links are swapped on the way to it; some start, some are refused."""
    beside = sorted(path.name for path in world.dir.iterdir())
    with Volume(world) as volume:
        attacker = volume.box("/v")
        body = {"argv": ["perl", "-e", SWAP], "env": {"TARGET": target}, "wait_ms": 1000}
        world.ok("POST", f"/v1/sandboxes/{attacker}/execs", body)
        started = refused = 0
        for number in range(TRIES_MAX):
            answer = volume.ask("/part", subpath=subpath.format(number))
            if answer.status >= 300:
                # Between the server's two looks a link took the directory's place: refused for that, or with the kernel's error.
                if answer.status >= 500 and not any(step in answer.text for step in ("directory of a volume", "attach the volume at")):
                    raise Broken(repr(answer))
                refused += 1
                time.sleep(PAUSE_S)
            else:
                started += 1
                seen = world.sh(volume.boxes[-1], "ls -A /part; cat /part/* /part/../key; echo x > /part/made", env={"BAIT": str(world.bait)})
                if "KEY" in seen or world.bait_text in seen:
                    return "succeeded", seen
                world.delete(volume.boxes.pop())
            if started >= 3 and refused >= 3:
                break
        if not started or not refused:
            raise Broken(f"no race: {started} started, {refused} were refused")
        now = sorted(path.name for path in world.dir.iterdir())
        return held_if(now == beside, f"beside the server's files are {now}")


def attack_subpath_leads_out(world):
    """tries: swap a directory of a volume for a link to the host's files, while a sandbox starts that is to have the directory alone
    because: the directory is opened without following a link, and what was opened is mounted
    levels: container gvisor"""
    return swapped(world, "/var/tmp/" + world.dir.name, "real")


def attack_subpath_leads_beside(world):
    """tries: swap a directory of a volume for a link to another's directory in it, while a sandbox starts that is to have the directory alone
    because: the directory is opened without following a link, and what was opened is mounted
    levels: container gvisor"""
    return swapped(world, "secret", "real/part")


def attack_directories_are_made_outside(world):
    """tries: have the server make directories on the host, by links that are swapped on the way to them (CVE-2024-45310)
    because: each name is made in the directory that was opened before it, without following a link
    levels: container gvisor"""
    return swapped(world, str(world.dir), "real/new-{0}/deep")


def attack_over_system_directories(world):
    """tries: put a volume in the place of /proc, /sys, /dev or /etc, or lead to them by its path (CVE-2025-52881 begins so)
    because: such places are refused by name, before anything is made
    levels: container gvisor"""
    with Volume(world) as volume:
        places = ["/", "/proc", "/proc/self", "/proc/sys/kernel", "/sys/fs/cgroup", "/dev", "/dev/shm", "/etc", "/etc/new", "/root/../proc", "//proc", "proc", "/proc/", "/x/./../etc"]
        return must_refuse(*(volume.ask(place) for place in places))


def attack_in_another_volume(world):
    """tries: have a volume mounted in a directory of another volume, where links can be swapped meanwhile (CVE-2024-45310)
    because: a volume within another is refused
    levels: container gvisor"""
    with Volume(world) as one, Volume(world) as other:
        mounts = [{"volume": one.name, "path": "/v"}, {"volume": other.name, "path": "/v/in/it"}]
        return must_refuse(world.ask("POST", "/v1/sandboxes", {"volumes": mounts}), world.ask("POST", "/v1/sandboxes", {"volumes": mounts[::-1]}))


def attack_over_a_link_of_the_image(world):
    """tries: have a volume mounted, and its place made, where an image has a link to the host's files or to /proc
    because: each name on the way is a directory or the start is refused
    levels: container gvisor"""
    beside = sorted(path.name for path in world.dir.iterdir())
    answers = []
    with Small(world, [link("out", str(world.dir)), link("self", "/proc/self"), link("up", "../../../..")]) as image, Volume(world) as volume:
        for place in ("/out", "/out/new", "/self/fd", "/up/new"):
            answers.append(volume.ask(place, image=image.name))
        verdict = must_refuse(*answers)
    now = sorted(path.name for path in world.dir.iterdir())
    return verdict if now == beside else ("succeeded", f"beside the server's files are {now}")


def attack_links_to_the_host(world):
    """tries: have the server read and write its own files, by links in a volume whose files are asked for without a sandbox
    because: links are followed within the volume only
    levels: container gvisor"""
    with Volume(world) as volume:
        box = volume.box("/v")
        world.sh(box, f"cd /v; ln -s {world.bait} file; ln -s {world.dir} dir; ln -s / root; ln -s /proc/self/root proc; ln -s /proc/self/fd/0 null; mkfifo pipe")
        world.delete(volume.boxes.pop())
        names = ["file", "dir/bait", f"root{world.bait}", f"proc{world.bait}", f"../../../../../..{world.bait}", f"../../..{world.bait}"]
        seen = "".join(world.ask("GET", f"/v1/volumes/{volume.name}/files?path=/{name}").text for name in [*names, "pipe", "null"])
        seen += "".join(world.ask("GET", f"/v1/volumes/{volume.name}/files/list?path=/{name}").text for name in ("dir", "root", "proc"))
        for name in names:
            world.ask("PUT", f"/v1/volumes/{volume.name}/files?path=/{name}", b"overwritten")
            world.ask("DELETE", f"/v1/volumes/{volume.name}/files?path=/{name}")
        return held_if(world.bait_text not in seen and '"/dir/log"' not in seen and world.bait.exists() and world.bait.read_text() == world.bait_text, seen[-200:])
