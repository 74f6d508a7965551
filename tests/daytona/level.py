"""A sandbox of the level that tests/levels has set: made, used and gone."""

import os

import pytest
from daytona import CreateSandboxFromSnapshotParams, DaytonaError, DaytonaNotFoundError, VolumeMount


def test_from_beginning_to_end(daytona):
    sandbox = daytona.create()
    assert sandbox.sandbox_class == ("linux-vm" if os.environ["LEVEL"] == "microvm" else "container")
    done = sandbox.process.exec('echo "$A"; exit 3', env={"A": "b c"})
    assert (done.result, done.exit_code) == ("b c\n", 3)
    sandbox.fs.upload_file(b"content", "/tmp/file")
    assert sandbox.process.exec("cat /tmp/file").result == "content"
    assert sandbox.fs.download_file("/tmp/file") == b"content"
    sandbox.process.create_session("s")
    sandbox.stop()
    assert sandbox.state == "stopped"
    sandbox.start()
    assert sandbox.fs.download_file("/tmp/file") == b"content"
    # The server refuses features that the level does not have with an error of the SDK, and leaves nothing.
    volume = daytona.volume.get("of-the-level", create=True)
    mounts = [VolumeMount(volume_id=volume.id, mount_path="/mnt/data", subpath="a/b")]
    if os.environ["LEVEL"] == "microvm":
        with pytest.raises(DaytonaError, match="volumes cannot be mounted at the isolation level 'microvm'"):
            daytona.create(CreateSandboxFromSnapshotParams(volumes=mounts))
    else:
        other = daytona.create(CreateSandboxFromSnapshotParams(volumes=mounts))
        assert other.process.exec("touch /mnt/data/file && ls -A /mnt/data").result == "file\n"
        other.delete()
    daytona.volume.delete(volume)
    sandbox.delete()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(sandbox.id)
