"""A sandbox of the level that tests/levels has set: made, used and gone."""

import os

import modal
import pytest
from conftest import native, native_id


def test_from_beginning_to_end():
    app = modal.App.lookup("level", create_if_missing=True)
    sandbox = modal.Sandbox.create(app=app, timeout=600)
    assert native(f"/v1/sandboxes/{native_id(sandbox)}")["isolation"] == os.environ["LEVEL"]
    process = sandbox.exec("sh", "-c", "cat; echo trouble >&2; exit 3")
    process.stdin.write(b"said\n")
    process.stdin.write_eof()
    process.stdin.drain()
    assert (process.stdout.read(), process.stderr.read(), process.wait()) == ("said\n", "trouble\n", 3)
    sandbox.filesystem.write_text("content", "/tmp/file")
    assert sandbox.filesystem.read_text("/tmp/file") == "content"
    assert sandbox.exec("cat", "/tmp/file").stdout.read() == "content"
    # The server refuses features that the level does not have with an error of the SDK, and leaves nothing.
    volume = modal.Volume.from_name("of-the-level", create_if_missing=True)
    if os.environ["LEVEL"] == "microvm":
        with pytest.raises(modal.exception.Error, match="volumes cannot be mounted at the isolation level 'microvm'"):
            modal.Sandbox.create(app=app, timeout=60, volumes={"/data": volume})
    else:
        with pytest.raises(modal.exception.Error, match="memory"):
            sandbox._experimental_snapshot()
    sandbox.terminate()
    assert modal.Sandbox.from_id(sandbox.object_id).poll() is not None
