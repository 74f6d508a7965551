"""SSH with the key that the client gets from the server, and the machine's own `ssh`."""

import os
import subprocess
import urllib.parse

from conftest import native

OPTIONS = ["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
OPTIONS += ["-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR"]


def ssh(made, key, command, user=None):
    port = urllib.parse.urlsplit(os.environ["RUNLOOP_BASE_URL"]).port
    argv = ["ssh", *OPTIONS, "-i", str(key), "-p", str(port), f"{user or made.ssh_user}@{made.url}", command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def written(made, path):
    path.write_text(made.ssh_private_key)
    path.chmod(0o600)
    return path


def test_a_key_is_for_one_devbox(client, own, box, tmp_path):
    made = client.devboxes.create_ssh_key(own.id)
    assert made.id == own.id
    key = written(made, tmp_path / "own")
    said = ssh(made, key, "whoami; exit 3")
    assert (said.stdout, said.returncode) == ("user\n", 3), said.stderr
    assert ssh(made, key, "whoami", f"{made.ssh_user}+root").stdout == "root\n"
    # Other user names, another devbox's key, and no key are refused.
    other = client.devboxes.create_ssh_key(box.id)
    assert other.ssh_private_key != made.ssh_private_key
    for name in ("sb" + own.id.removeprefix("dbx_"), own.id, other.ssh_user, made.ssh_user[:-1], "k", "t" + made.ssh_user[1:]):
        assert ssh(made, key, "true", name).returncode == 255, name
    assert ssh(made, written(other, tmp_path / "other"), "true").returncode == 255
    assert ssh(made, "/dev/null", "true").returncode == 255
    # When the access is deleted, the key no longer works.
    id = "sb" + own.id.removeprefix("dbx_")
    for access in native("GET", f"/v1/sandboxes/{id}/access")["items"]:
        native("DELETE", f"/v1/sandboxes/{id}/access/{access['id']}")
    assert ssh(made, key, "true").returncode == 255
