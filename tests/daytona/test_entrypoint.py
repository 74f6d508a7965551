"""The entrypoint that an image starts by itself, and its log."""

import uuid

import pytest
from conftest import call, since, toolbox, until
from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, DaytonaError, DaytonaNotFoundError, Image

try:
    from daytona import CreateSnapshotParams
except ImportError:
    CreateSnapshotParams = None

LINES = "echo begun; echo trouble >&2; sleep 3600"


def check(sandbox):
    session = sandbox.process.get_entrypoint_session()
    assert session.session_id == "entrypoint"
    (command,) = session.commands
    assert command.command == f"sh -c {LINES}" and command.exit_code is None
    logs = until(lambda: (said := sandbox.process.get_entrypoint_logs()).stdout and said.stderr and said)
    assert (logs.stdout, logs.stderr) == ("begun\n", "trouble\n")
    assert sandbox.process.get_session_command("entrypoint", command.id).command == command.command


@since(0, 210)
def test_of_an_image(daytona):
    image = Image.base("host").entrypoint(["sh", "-c", LINES])
    sandbox = daytona.create(CreateSandboxFromImageParams(image=image), timeout=0)
    check(sandbox)
    # The entrypoint runs again after each start of the sandbox.
    sandbox.stop()
    sandbox.start()
    check(sandbox)
    sandbox.delete()


@since(0, 210)
def test_of_a_snapshot(daytona):
    name = f"entry-{uuid.uuid4().hex[:8]}"
    params = CreateSnapshotParams(name=name, image=Image.base("host"), entrypoint=["sh", "-c", LINES])
    daytona.snapshot.create(params, timeout=0)
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    check(sandbox)
    sandbox.delete()
    daytona.snapshot.delete(daytona.snapshot.get(name))


@since(0, 210)
async def test_its_log_as_it_comes(daytona):
    image = Image.base("host").entrypoint(["sh", "-c", "echo one; echo two >&2; sleep 1; echo three; sleep 3600"])
    sandbox = daytona.create(CreateSandboxFromImageParams(image=image), timeout=0)
    out, err = [], []

    def said(text):
        out.append(text)
        if "three" in "".join(out):
            # When the entrypoint ends, the log ends, too.
            sandbox.process.exec("pkill -f 'sleep 3600'")

    await sandbox.process.get_entrypoint_logs_async(said, err.append)
    assert ("".join(out), "".join(err)) == ("one\nthree\n", "two\n")
    sandbox.delete()


@since(0, 210)
def test_where_nothing_was_started(own):
    with pytest.raises(DaytonaNotFoundError, match="no entrypoint"):
        own.process.get_entrypoint_session()
    with pytest.raises(DaytonaError, match="already exists"):
        own.process.create_session("entrypoint")
    assert call("DELETE", f"/{own.id}/process/session/entrypoint", root=toolbox())[0] == 405
