"""A devbox of the level that tests/levels has set: made, used and gone."""

import os

from conftest import native
from runloop_api_client import Runloop


def test_from_beginning_to_end():
    client = Runloop()
    devbox = client.devboxes.create_and_await_running()
    level = native("GET", f"/v1/sandboxes/sb{devbox.id.removeprefix('dbx_')}")["isolation"]
    assert level == os.environ["LEVEL"]
    done = client.devboxes.execute_and_await_completion(devbox.id, command="echo said; echo trouble >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_status) == ("said\n", "trouble\n", 3)
    client.devboxes.write_file_contents(devbox.id, file_path="/tmp/file", contents="content")
    assert client.devboxes.read_file_contents(devbox.id, file_path="/tmp/file") == "content"
    client.devboxes.suspend(devbox.id)
    client.devboxes.await_suspended(devbox.id)
    client.devboxes.resume(devbox.id)
    client.devboxes.await_running(devbox.id)
    assert client.devboxes.read_file_contents(devbox.id, file_path="/tmp/file") == "content"
    assert client.devboxes.shutdown(devbox.id).status == "shutdown"
