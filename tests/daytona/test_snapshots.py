"""Snapshots, volumes and forks, which outlive a sandbox."""

import uuid

import pytest
from conftest import call, since
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaError,
    DaytonaNotFoundError,
    Image,
    Resources,
    VolumeMount,
)

try:
    from daytona import CreateSnapshotParams
except ImportError:
    CreateSnapshotParams = None


def name(what):
    return f"{what}-{uuid.uuid4().hex[:10]}"


@since(0, 220)
def test_a_snapshot_of_a_sandbox(own, daytona):
    own.fs.upload_file(b"kept", "/tmp/kept")
    snapshot = name("snap")
    own.create_snapshot(snapshot)
    found = daytona.snapshot.get(snapshot)
    assert (found.name, found.state) == (snapshot, "active")
    assert snapshot in [one.name for one in daytona.snapshot.list().items]
    child = daytona.create(CreateSandboxFromSnapshotParams(snapshot=snapshot))
    assert child.fs.download_file("/tmp/kept") == b"kept"
    child.delete()
    with pytest.raises(DaytonaError):
        own.create_snapshot(snapshot)
    daytona.snapshot.delete(found)
    with pytest.raises(DaytonaNotFoundError):
        daytona.snapshot.get(snapshot)


def test_an_image_that_a_client_describes(daytona):
    image = (
        Image.base("host")
        .run_commands("mkdir -p /opt/made && echo made >/opt/made/file")
        .env({"MADE": "yes"})
        .workdir("/opt/made")
    )
    # The sandbox gets at least the disk that it asks for: the disk of an image with steps is larger.
    asked = CreateSandboxFromImageParams(image=image, resources=Resources(cpu=1, memory=1, disk=3))
    sandbox = daytona.create(asked, timeout=0)
    assert sandbox.process.exec("cat file; echo $MADE").result == "made\nyes\n"
    sandbox.delete()
    # The second sandbox of this image uses the build of the first.
    sandbox = daytona.create(CreateSandboxFromImageParams(image=image))
    assert sandbox.fs.download_file("/opt/made/file") == b"made\n"
    sandbox.delete()


def test_a_snapshot_of_an_image(daytona):
    snapshot, lines = name("built"), []
    image = Image.base("host").run_commands("echo in the log", "mkdir -p /opt && echo built >/opt/built")
    daytona.snapshot.create(CreateSnapshotParams(name=snapshot, image=image), on_logs=lines.append, timeout=0)
    assert "in the log" in "".join(lines)
    found = daytona.snapshot.get(snapshot)
    assert found.state == "active"
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot=snapshot))
    assert sandbox.fs.download_file("/opt/built") == b"built\n"
    sandbox.delete()
    status, _ = call("POST", "/snapshots", {"name": snapshot, "imageName": "host"})
    assert status == 409
    daytona.snapshot.delete(found)
    with pytest.raises(DaytonaNotFoundError):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot=snapshot))


def test_an_image_that_cannot_be_built(daytona):
    image = Image.base("host").run_commands("echo the reason >&2; exit 3")
    with pytest.raises(DaytonaError) as failed:
        daytona.create(CreateSandboxFromImageParams(image=image), timeout=0)
    assert "could not be built" in str(failed.value) and "the reason" in str(failed.value)
    snapshot = name("broken")
    with pytest.raises(DaytonaError):
        daytona.snapshot.create(CreateSnapshotParams(name=snapshot, image=image), timeout=0)
    assert daytona.snapshot.get(snapshot).state == "build_failed"


def test_volumes(daytona):
    volume = daytona.volume.get(name("vol"), create=True)
    assert volume.state == "ready"
    mounts = [VolumeMount(volume_id=volume.id, mount_path="/mnt/shared")]
    one = daytona.create(CreateSandboxFromSnapshotParams(volumes=mounts))
    two = daytona.create(CreateSandboxFromSnapshotParams(volumes=mounts))
    one.fs.upload_file(b"shared", "/mnt/shared/file")
    assert two.fs.download_file("/mnt/shared/file") == b"shared"
    assert one.volumes[0].mount_path == "/mnt/shared"
    assert call("DELETE", f"/volumes/{volume.id}")[0] == 409
    one.delete()
    two.delete()
    assert volume.id in [known.id for known in daytona.volume.list()]
    daytona.volume.delete(volume)
    assert call("GET", f"/volumes/by-name/{volume.name}")[0] == 404
    status, body = call("POST", "/sandbox", {"volumes": [{"volumeId": "none", "mountPath": "/mnt"}]})
    assert status == 400 and "none" in body["message"]


def test_a_directory_of_a_volume(daytona):
    volume = daytona.volume.get(name("vol"), create=True)

    def with_part(subpath):
        mount = VolumeMount(volume_id=volume.id, mount_path="/home/data", subpath=subpath)
        return daytona.create(CreateSandboxFromSnapshotParams(volumes=[mount]))

    ann, bob, whole = with_part("users/ann"), with_part("users/bob"), with_part(None)
    assert ann.volumes[0].subpath == "users/ann" and whole.volumes[0].subpath is None
    ann.fs.upload_file(b"hers", "/home/data/file")
    assert bob.process.exec("ls -A /home/data").result == ""
    assert whole.process.exec("cd /home/data && find . -type f").result == "./users/ann/file\n"
    # The server refuses a subpath that has `..` or a link, or is no directory, and names it.
    whole.process.exec("cd /home/data && ln -s users/ann link && ln -s / root")
    for bad, named in (("../other", "'..'"), ("link", "link"), ("root/etc", "root"), ("users/ann/file", "users/ann/file")):
        status, body = call("POST", "/sandbox", {"volumes": [{"volumeId": volume.id, "mountPath": "/mnt", "subpath": bad}]})
        assert status == 400 and named in body["message"], body
    for box in (ann, bob, whole):
        box.delete()
    daytona.volume.delete(volume)


@since(0, 220)
def test_a_fork(own):
    own.fs.upload_file(b"both", "/tmp/both")
    child = own.fork()
    own.fs.upload_file(b"parent", "/tmp/both")
    assert child.id != own.id
    assert child.fs.download_file("/tmp/both") == b"both"
    child.delete()
