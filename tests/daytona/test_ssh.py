"""SSH by token, with the machine's own `ssh`."""

import shlex
import subprocess

import pytest
from conftest import call
from daytona import DaytonaError

OPTIONS = ["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
OPTIONS += ["-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR"]


def ssh(made, command, stdin=""):
    argv = shlex.split(made.ssh_command)
    return subprocess.run([argv[0], *OPTIONS, *argv[1:], command], input=stdin, capture_output=True, text=True, timeout=60)


def test_a_login(own):
    own.fs.upload_file(b"seen\n", "/tmp/seen")
    made = own.create_ssh_access(expires_in_minutes=10)
    assert made.sandbox_id == own.id and made.token in made.ssh_command
    said = ssh(made, "cat /tmp/seen -; exit 3", "typed\n")
    assert (said.stdout, said.returncode) == ("seen\ntyped\n", 3), said.stderr
    told = own.validate_ssh_access(made.token)
    assert (told.valid, told.sandbox_id) == (True, own.id)
    own.revoke_ssh_access(made.token)
    assert ssh(made, "true").returncode == 255
    assert not own.validate_ssh_access(made.token).valid
    with pytest.raises(DaytonaError, match="not there"):
        own.revoke_ssh_access(made.token)


def test_a_token_is_for_one_sandbox(own, box):
    made, kept = own.create_ssh_access(), own.create_ssh_access()
    own.revoke_ssh_access(made.token)
    assert not own.validate_ssh_access(made.token).valid
    made = kept
    assert call("DELETE", f"/sandbox/{box.id}/ssh-access?token={made.token}")[0] == 404
    assert own.validate_ssh_access(made.token).valid
    for wrong in ("", "x", made.token[:-1], made.token + "0", made.token[:-1] + ("1" if made.token[-1] == "0" else "0")):
        assert not own.validate_ssh_access(wrong or "t").valid
    second = own.create_ssh_access()
    # This revokes all accesses that the key made.
    assert call("DELETE", f"/sandbox/{own.id}/ssh-access")[0] == 200
    for token in (made.token, second.token):
        assert not own.validate_ssh_access(token).valid


def test_how_long(own):
    for bad in ("0", "600000000", "x"):
        assert call("POST", f"/sandbox/{own.id}/ssh-access?expiresInMinutes={bad}")[0] == 400
    made = own.create_ssh_access(expires_in_minutes=1)
    assert 50 < (made.expires_at - made.created_at).total_seconds() <= 60


def test_a_stopped_sandbox_wakes(own):
    made = own.create_ssh_access()
    own.stop()
    assert ssh(made, "echo awake").stdout == "awake\n"
