"""The database and bucket of a running cluster are backed up, and restored into others, where other nodes go on."""

import contextlib
import os
import subprocess

import pytest

from cluster import Cluster, until
from test_move import as_it_was, hibernate, seen, work


def shared(cluster):
    return ["--cluster", "--database", cluster.postgres.url, *cluster.bucket.args]


def atoll(*args):
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    return subprocess.run([os.environ["ATOLL_BIN"], *map(str, args)], env=environment, capture_output=True, text=True)


def refused(why, *args):
    done = atoll(*args)
    assert done.returncode and why in done.stderr, done


@pytest.fixture
def original():
    with Cluster("a", "b", objects=True) as cluster:
        yield cluster


@pytest.mark.long
def test_a_cluster_comes_back_on_another_database_and_bucket(original, tmp_path):
    a, _ = original.nodes
    id, digest, last = work(a, "box")
    hibernate(a, "box")
    a.make(name="runs")
    a.ok("PUT", "/v1/secrets/token", {"value": "s3cret", "scope": {"hosts": ["example.com"]}})
    snapshot = a.ok("POST", "/v1/sandboxes/runs/snapshots", {"tags": ["snap"]})
    a.cli("snapshot", "push", snapshot["id"])
    key = a.cli("key", "create", "somebody", "--scope", "manage").stdout.decode().strip()

    file = tmp_path / "cluster.tar.zst"
    made = atoll("backup", file, *shared(original))
    assert made.returncode == 0, made
    assert "s3cret" not in made.stdout + made.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "nothing is left beside it"
    assert atoll("restore", file, "--verify").returncode == 0
    assert seen(a, "runs")["state"] == "running", "it went on"
    # `restore` refuses a target that is not empty, and a data directory, because this backup is of none.
    refused("not empty", "restore", file, *shared(original))
    refused("has no data directory", "restore", file, "--data-dir", tmp_path / "data")
    broken = tmp_path / "broken"
    broken.write_bytes(file.read_bytes()[:-100])

    other = Cluster("c", "d", objects=True)
    other.vault_key, other.key = original.vault_key, original.key
    refused("backup", "restore", broken, *shared(other))
    assert other.bucket.names() == []
    done = atoll("restore", file, *shared(other))
    assert done.returncode == 0, done
    assert other.bucket.names() == original.bucket.names()
    # The original nodes still run, but the test sends them no more requests.
    with contextlib.ExitStack() as stack:
        stack.push(other.__exit__)
        c, d = [node.start() for node in other.nodes]
        until("its nodes are known to be dead", lambda: seen(c, "box").get("state") == "paused")
        as_it_was(c, "box", id, digest, last)
        status, _ = d.call("GET", "/v1/sandboxes", key=key)
        assert status == 200, "the key is as good as before"
        assert [secret["name"] for secret in c.ok("GET", "/v1/secrets")["items"]] == ["token"]
        until("what ran is not there any more", lambda: seen(c, "runs").get("state") in (None, "failed"))
        refused("not empty", "restore", file, *shared(other))
