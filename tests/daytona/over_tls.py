"""Files of the client in images, by the Python SDK, which sends them over https only: see with-trust."""

import hashlib
import os
import uuid

import pytest
from daytona import AsyncDaytona, CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, CreateSnapshotParams, Image


@pytest.fixture
def files(tmp_path):
    """A file and a directory. The client sends one file of the directory in several parts."""
    (tmp_path / "hello.txt").write_text("hello\n")
    tree = tmp_path / "tree"
    (tree / "below" / "empty").mkdir(parents=True)
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "below" / "ü").write_text("ü\n")
    (tree / "large").write_bytes(os.urandom(13 << 20))
    return tmp_path


def image_of(files):
    return (
        Image.base("host")
        .add_local_file(str(files / "hello.txt"), "/opt/files/")
        .add_local_dir(str(files / "tree"), "/opt/tree")
        .run_commands("/opt/tree/run.sh >/opt/ran")
    )


def check(sandbox, files):
    shown = sandbox.process.exec("cat /opt/files/hello.txt /opt/tree/below/ü /opt/ran; ls -d /opt/tree/below/empty").result
    assert shown == "hello\nü\nran\n/opt/tree/below/empty\n"
    digest = hashlib.sha256((files / "tree" / "large").read_bytes()).hexdigest()
    assert sandbox.process.exec("sha256sum </opt/tree/large").result.split()[0] == digest


def test_a_sandbox_of_an_image_with_files(daytona, files):
    sandbox = daytona.create(CreateSandboxFromImageParams(image=image_of(files)), timeout=0)
    check(sandbox, files)
    sandbox.delete()
    # The client sends the changed file again, and only that.
    (files / "hello.txt").write_text("changed\n")
    sandbox = daytona.create(CreateSandboxFromImageParams(image=image_of(files)), timeout=0)
    assert sandbox.fs.download_file("/opt/files/hello.txt") == b"changed\n"
    sandbox.delete()


def test_a_snapshot_of_an_image_with_files(daytona, files):
    name, lines = f"files-{uuid.uuid4().hex[:8]}", []
    params = CreateSnapshotParams(name=name, image=image_of(files))
    daytona.snapshot.create(params, on_logs=lines.append, timeout=0)
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    check(sandbox, files)
    sandbox.delete()
    daytona.snapshot.delete(daytona.snapshot.get(name))


def test_a_dockerfile_and_what_it_copies(daytona, files, monkeypatch):
    (files / "Dockerfile").write_text("FROM host\nCOPY hello.txt /opt/\nCOPY tree/below /opt/below\n")
    monkeypatch.chdir(files)
    image = Image.from_dockerfile(str(files / "Dockerfile"))
    sandbox = daytona.create(CreateSandboxFromImageParams(image=image), timeout=0)
    assert sandbox.process.exec("cat /opt/hello.txt /opt/below/ü").result == "hello\nü\n"
    sandbox.delete()


async def test_by_the_asynchronous_client(files):
    async with AsyncDaytona() as client:
        params = CreateSandboxFromImageParams(image=image_of(files))
        sandbox = await client.create(params, timeout=0)
        shown = await sandbox.process.exec("cat /opt/files/hello.txt")
        assert shown.result == "hello\n"
        await sandbox.delete()
