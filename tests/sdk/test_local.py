"""Local servers that the SDK starts: `Atoll.local()`."""

import os
import signal
import subprocess
import sys

import pytest
from atoll import Atoll, AsyncAtoll, errors
from conftest import until


def servers(directory):
    """Servers that `local` started with this directory as TMPDIR."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as line, open(f"/proc/{entry}/environ", "rb") as environment:
                if b"\0--ephemeral\0" in line.read() and f"TMPDIR={directory}\0".encode() in environment.read():
                    found.append(entry)
        except OSError:
            continue
    return found


def test_it_serves_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Atoll.local() as client:
        box = client.sandboxes.create()
        assert box.run("echo here").stdout == "here\n"
        assert servers(tmp_path)
    assert not servers(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(errors.Unreachable):
        Atoll(client.url, "atoll_x", max_retries=0).info()


async def test_asynchronously():
    async with await AsyncAtoll.local() as client:
        async with await client.sandboxes.create() as box:
            assert (await box.run("echo here")).stdout == "here\n"


def test_it_ends_with_a_client_that_was_killed(tmp_path):
    code = "import sys, atoll; atoll.Atoll.local(); print('up', flush=True); sys.stdin.read()"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert child.stdout.readline() == b"up\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    until(lambda: not servers(tmp_path))
    child.stdin.close()
    child.stdout.close()


def test_a_program_that_is_not_there_or_does_not_start(monkeypatch):
    monkeypatch.setenv("ATOLL_BIN", "/bin/false")
    with pytest.raises(errors.ServerError):
        Atoll.local()
    monkeypatch.delenv("ATOLL_BIN")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(errors.InvalidRequest) as missing:
        Atoll.local()
    assert missing.value.code == "no_program" and "ATOLL_BIN" in missing.value.hint
