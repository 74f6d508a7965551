"""What E2B's users do, at the isolation level in TEST_LEVEL: each call works, or says that the level cannot do it."""

import os

import pytest
from e2b import CommandExitException, Sandbox, SandboxException, SandboxState, Volume

from conftest import data_plane, since, until

LEVEL = os.environ.get("TEST_LEVEL", "container")
# Virtual machines may be emulated: a call that takes a moment elsewhere takes half a minute there.
SLOW = {"request_timeout": 600}
pytestmark = [pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def box():
    sandbox = Sandbox.create(timeout=3600, metadata={"level": LEVEL}, envs={"MINE": "1"}, **SLOW)
    yield sandbox
    sandbox.kill(**SLOW)


def run(box, command, **more):
    return box.commands.run(command, timeout=600, **SLOW, **more)


def test_sandboxes_are_known(box):
    assert box.is_running(**SLOW) and box.get_info(**SLOW).metadata == {"level": LEVEL}
    assert box.sandbox_id in {one.sandbox_id for one in Sandbox.list(**SLOW).next_items()}
    assert Sandbox.connect(box.sandbox_id, **SLOW).sandbox_id == box.sandbox_id


def test_commands(box):
    out = []
    done = run(box, 'echo "$MINE $(whoami) $PWD"; echo bad >&2', on_stdout=out.append)
    assert (done.stdout, done.stderr, done.exit_code) == ("1 user /home/user\n", "bad\n", 0) and "".join(out) == done.stdout
    assert run(box, "whoami", user="root").stdout == "root\n"
    with pytest.raises(CommandExitException) as failed:
        run(box, "exit 7")
    assert failed.value.exit_code == 7
    reader = box.commands.run("read line; echo got $line", background=True, stdin=True, timeout=600, **SLOW)
    assert reader.pid in {process.pid for process in box.commands.list(**SLOW)}
    box.commands.send_stdin(reader.pid, "this\n", **SLOW)
    assert reader.wait().stdout == "got this\n"
    sleeper = box.commands.run("sleep 1000", background=True, timeout=600, **SLOW)
    assert box.commands.kill(sleeper.pid, **SLOW)
    with pytest.raises(CommandExitException):
        sleeper.wait()


def test_files(box):
    data = os.urandom(3 << 20)
    box.files.write("dir/data.bin", data, **SLOW)
    assert bytes(box.files.read("dir/data.bin", format="bytes", **SLOW)) == data
    assert run(box, "wc -c < dir/data.bin").stdout.strip() == str(len(data))
    handle = box.files.watch_dir("dir", **SLOW)
    box.files.rename("dir/data.bin", "dir/other.bin", **SLOW)
    assert [entry.name for entry in box.files.list("dir", **SLOW)] == ["other.bin"]
    until(lambda: any(event.name == "other.bin" for event in handle.get_new_events()), 120)
    box.files.remove("dir", **SLOW)
    assert not box.files.exists("dir", **SLOW)


@since(2, 50)
def test_metadata_of_files(box):
    if LEVEL == "gvisor":
        # gVisor keeps no extended attributes.
        with pytest.raises(SandboxException, match="gvisor"):
            box.files.write("meta.txt", "x", metadata={"a": "b"}, **SLOW)
        assert not box.files.exists("meta.txt", **SLOW)
    else:
        box.files.write("meta.txt", "x", metadata={"a": "b"}, **SLOW)
        assert box.files.get_info("meta.txt", **SLOW).metadata == {"a": "b"}


def test_ports(box):
    with pytest.raises(CommandExitException):
        run(box, "exec 3<>/dev/tcp/127.0.0.1/8123")
    status, _, body = data_plane(box.sandbox_id, "GET", "/", port=8123)
    assert status == 502 and b"port is not open" in body


def test_a_pause_keeps_files_and_with_memory_processes():
    box = Sandbox.create(timeout=3600, **SLOW)
    try:
        run(box, "echo kept > kept.txt")
        sleeper = box.commands.run("sleep 100000", background=True, timeout=0, **SLOW)
        box.pause(**SLOW)
        assert box.get_info(**SLOW).state == SandboxState.PAUSED and not box.is_running(**SLOW)
        box.connect(timeout=3600, **SLOW)
        assert box.files.read("kept.txt", **SLOW) == "kept\n"
        assert sleeper.pid in {process.pid for process in box.commands.list(**SLOW)}
        box.pause(keep_memory=False, **SLOW)
        box.connect(timeout=3600, **SLOW)
        assert box.files.read("kept.txt", **SLOW) == "kept\n"
        assert sleeper.pid not in {process.pid for process in box.commands.list(**SLOW)}
    finally:
        box.kill(**SLOW)


def test_snapshots_and_forks_have_the_files(box):
    box.files.write("there.txt", "before", **SLOW)
    snapshot = box.create_snapshot(**SLOW)
    others = [Sandbox.create(snapshot.snapshot_id, timeout=3600, **SLOW)]
    try:
        box.files.write("there.txt", "after", **SLOW)
        assert others[0].files.read("there.txt", **SLOW) == "before"
        others += box.fork(count=1, **SLOW)
        assert others[1].files.read("there.txt", **SLOW) == "after"
    finally:
        for other in others:
            other.kill(**SLOW)
        Sandbox.delete_snapshot(snapshot.snapshot_id, **SLOW)


def test_volumes():
    volume = Volume.create(f"level-{LEVEL}", **SLOW)
    try:
        mounts = {"/mnt/volume": volume}
        if LEVEL == "microvm":
            with pytest.raises(SandboxException, match="volumes cannot be mounted"):
                Sandbox.create(volume_mounts=mounts, **SLOW)
            return
        box = Sandbox.create(timeout=600, volume_mounts=mounts, **SLOW)
        try:
            run(box, "echo mine > /mnt/volume/f")
            assert volume.read_file("f") == "mine\n"
        finally:
            box.kill(**SLOW)
    finally:
        Volume.destroy(volume.volume_id, **SLOW)
