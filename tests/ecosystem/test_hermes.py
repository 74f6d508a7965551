"""Hermes Agent: its terminal over SSH. The login name makes the sandbox."""

import os
import subprocess
import urllib.parse

import pytest
from tools.environments.ssh import SSHEnvironment

ATOLL = os.environ["ATOLL_BIN"]


@pytest.fixture
def terminal(tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    subprocess.run([ATOLL, "ssh-key", "add", f"{key}.pub"], check=True, stdout=subprocess.DEVNULL)
    at = urllib.parse.urlsplit(os.environ["ATOLL_URL"])
    terminal = SSHEnvironment(host=at.hostname, port=at.port, user="new+hermes", key_path=str(key), cwd="/root")
    yield terminal
    terminal.cleanup()


def test_its_terminal_is_a_sandbox_that_it_made(terminal):
    done = terminal.execute("mkdir -p work && cd work && echo $((6*7)) > a.txt && cat a.txt; exit 3")
    assert (done["output"].strip(), done["returncode"]) == ("42", 3), done
    assert terminal.execute("hostname")["output"].strip() == "hermes"
    # The next command starts in the directory that the previous one changed to.
    assert terminal.execute("cd /root/work")["returncode"] == 0
    assert terminal.execute("cat a.txt")["output"].strip() == "42"
    assert subprocess.run([ATOLL, "exec", "hermes", "cat", "/root/work/a.txt"], capture_output=True, check=True).stdout == b"42\n"
