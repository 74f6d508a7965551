"""Files of volumes, without a sandbox and with one."""

import io
import os
import subprocess
import urllib.error
import urllib.request
import uuid

import modal
import pytest
from conftest import run, since


@pytest.fixture(params=[None, 1, 2])
def versioned(request):
    """Volumes without a version, and of each version."""
    name = f"v-{uuid.uuid4().hex[:8]}"
    yield request.param, modal.Volume.from_name(name, create_if_missing=True, version=request.param)
    modal.Volume.objects.delete(name)


@pytest.fixture
def volume(versioned):
    return versioned[1]


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "ü").write_text("below\n")
    (tmp_path / "run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run").chmod(0o755)
    return tmp_path


def read(volume, path):
    return b"".join(volume.read_file(path))


# More than two blocks, of which one is zeros.
LARGE = os.urandom(8 << 20) + bytes(8 << 20) + os.urandom(1 << 20) + bytes(1000)


@since(1, 6)
def test_files_go_in_and_come_out(volume, tree, make):
    with volume.batch_upload() as batch:
        batch.put_file(io.BytesIO(b"hello"), "/a/hello")
        batch.put_file(io.BytesIO(LARGE), "large")
        batch.put_file(io.BytesIO(b""), "empty")
        batch.put_directory(tree, "/tree")
    assert read(volume, "a/hello") == b"hello" and read(volume, "/empty") == b""
    assert read(volume, "large") == LARGE
    kinds = {entry.path: (entry.type.name, entry.size) for entry in volume.listdir("/", recursive=True)}
    assert kinds["large"] == ("FILE", len(LARGE)) and kinds["tree/deep"][0] == "DIRECTORY"
    assert {"a", "a/hello", "empty", "tree/deep/ü", "tree/run"} <= set(kinds)
    assert sorted(entry.path for entry in volume.listdir("/tree")) == ["tree/deep", "tree/run"]
    assert [entry.path for entry in volume.listdir("/a/hello")] == ["a/hello"]
    sandbox = make(volumes={"/data": volume})
    assert run(sandbox, "sh", "-c", "/data/tree/run; cat /data/a/hello /data/tree/deep/ü; echo new >/data/new") == (0, "ran\nhellobelow\n")
    assert read(volume, "new") == b"new\n"


@since(1, 6)
def test_what_is_there_is_not_replaced_by_accident(volume):
    with volume.batch_upload() as batch:
        batch.put_file(io.BytesIO(b"one"), "/file")
    with pytest.raises(FileExistsError):
        with volume.batch_upload() as batch:
            batch.put_file(io.BytesIO(b"other"), "/other")
            batch.put_file(io.BytesIO(b"two"), "/file")
    assert read(volume, "file") == b"one"
    with pytest.raises(FileNotFoundError):
        read(volume, "other")
    with volume.batch_upload(force=True) as batch:
        batch.put_file(io.BytesIO(b"two"), "/file")
    assert read(volume, "file") == b"two"


@since(1, 6)
def test_copy_and_remove(versioned, tree):
    version, volume = versioned
    with volume.batch_upload() as batch:
        batch.put_directory(tree, "/tree")
        batch.put_file(io.BytesIO(b"one"), "/file")
    volume.copy_files(["file"], "copy")
    volume.copy_files(["file", "copy"], "tree")
    assert read(volume, "copy") == b"one" and read(volume, "tree/copy") == b"one"
    # Clients do not send this request for volumes of version 1.
    if version != 1:
        volume.copy_files(["tree"], "again", recursive=True)
        assert read(volume, "again/deep/ü") == "below\n".encode()
        with pytest.raises(modal.exception.Error):
            volume.copy_files(["tree"], "tree/deep/tree", recursive=True)
        volume.remove_file("again", recursive=True)
    volume.remove_file("file")
    volume.remove_file("tree", recursive=True)
    assert sorted(entry.path for entry in volume.listdir("/")) == ["copy"]
    for missing in ("file", "tree/run"):
        with pytest.raises(FileNotFoundError):
            volume.remove_file(missing)
        with pytest.raises(FileNotFoundError):
            read(volume, missing)


@since(1, 6)
def test_paths_stay_within(volume):
    for path in ("../../etc/passwd", "a/../../b"):
        with pytest.raises(modal.exception.Error):
            volume.listdir(path)
        with pytest.raises((modal.exception.Error, FileNotFoundError)):
            read(volume, path)


def other_key(scope):
    command = [os.environ["ATOLL_BIN"], "key", "create", f"k-{uuid.uuid4().hex[:8]}", "--scope", scope, "--for", "modal"]
    pair = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return modal.Client.from_credentials(*pair.split(":"))


@since(1, 6)
def test_keys_that_may_only_look(volume):
    with volume.batch_upload() as batch:
        batch.put_file(io.BytesIO(b"one"), "/file")
    reader = modal.Volume.from_id(volume.object_id, client=other_key("read"))
    assert read(reader, "file") == b"one"
    with pytest.raises(modal.exception.Error):
        reader.remove_file("file")


@since(1, 6)
def test_volumes_are_found(volume):
    volume.hydrate()
    assert volume.object_id in [one.object_id for one in modal.Volume.objects.list()]
    with pytest.raises(modal.exception.NotFoundError):
        modal.Volume.from_id("vo-" + "0" * 20).hydrate()


def test_addresses_cannot_be_guessed():
    root = os.environ["MODAL_SERVER_URL"] + "/modal"
    for path in ["/content/", "/content/" + "0" * 64, "/content/" + "0" * 64 + "/0", "/content/../../v1/sandboxes", "/x"]:
        for method in ("GET", "PUT"):
            request = urllib.request.Request(root + path, method=method, data=b"x" if method == "PUT" else None)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=30)
            assert refused.value.code in (400, 404, 405)
