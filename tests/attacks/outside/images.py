"""Attacks by images and snapshots that the server unpacks."""

import io
import tarfile

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
