"""The filesystem API, of newer clients and of older ones."""

import threading
import time

import modal
import pytest
from conftest import before, run, since, until

pytestmark = since(1, 5)


def test_bytes_and_texts(box):
    files = box.filesystem
    files.write_bytes(b"\x00\xff" * 1_500_000, "/tmp/f/large")
    assert files.read_bytes("/tmp/f/large") == b"\x00\xff" * 1_500_000
    files.write_text("ä", "/tmp/f/text")
    assert files.read_text("/tmp/f/text") == "ä"
    files.write_text("", "/tmp/f/empty")
    assert files.read_text("/tmp/f/empty") == ""


def test_local_files(box, tmp_path):
    (tmp_path / "one").write_bytes(b"content")
    box.filesystem.copy_from_local(tmp_path / "one", "/tmp/local")
    box.filesystem.copy_to_local("/tmp/local", tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == b"content"


def test_lists_and_descriptions(box):
    files = box.filesystem
    files.make_directory("/tmp/l/deep")
    files.write_text("abc", "/tmp/l/file")
    run(box, "sh", "-c", "ln -s file /tmp/l/link; chmod 640 /tmp/l/file")
    found = {entry.name: entry for entry in files.list_files("/tmp/l")}
    assert set(found) == {"deep", "file", "link"}
    assert found["deep"].is_dir() and found["link"].is_symlink() and found["link"].symlink_target == "file"
    entry = files.stat("/tmp/l/file")
    assert (entry.path, entry.size, entry.permissions, entry.owner) == ("/tmp/l/file", 3, "0640", "root")
    assert abs(entry.modified_time - time.time()) < 3600


def test_removal(box):
    files = box.filesystem
    files.write_text("", "/tmp/r/file")
    with pytest.raises(modal.exception.SandboxFilesystemDirectoryNotEmptyError):
        files.remove("/tmp/r")
    files.remove("/tmp/r", recursive=True)
    with pytest.raises(modal.exception.SandboxFilesystemNotFoundError):
        files.stat("/tmp/r")


def test_what_goes_wrong(box):
    files = box.filesystem
    wrong = modal.exception
    with pytest.raises(wrong.SandboxFilesystemNotFoundError):
        files.read_text("/tmp/none")
    with pytest.raises(wrong.SandboxFilesystemIsADirectoryError):
        files.read_text("/tmp")
    with pytest.raises(wrong.SandboxFilesystemIsADirectoryError):
        files.write_text("x", "/tmp")
    files.write_text("x", "/tmp/plain")
    with pytest.raises(wrong.SandboxFilesystemNotADirectoryError):
        files.write_text("x", "/tmp/plain/below")
    with pytest.raises(wrong.SandboxFilesystemNotADirectoryError):
        files.list_files("/tmp/plain")
    with pytest.raises(wrong.SandboxFilesystemPathAlreadyExistsError):
        files.make_directory("/tmp/plain", create_parents=False)
    with pytest.raises(wrong.SandboxFilesystemNotFoundError):
        files.make_directory("/tmp/not/there", create_parents=False)


def test_changes(box):
    box.filesystem.make_directory("/tmp/w")
    seen = []

    def watch():
        for event in box.filesystem.watch("/tmp/w", timeout=20):
            seen.append((event.type.value, event.paths))
            if event.paths == ["/tmp/w/last"]:
                return

    thread = threading.Thread(target=watch)
    thread.start()

    def change():
        run(box, "sh", "-c", "echo x > /tmp/w/new; rm /tmp/w/new; touch /tmp/w/last; rm /tmp/w/last")
        return not thread.is_alive()

    until(change)
    thread.join()
    assert ("Create", ["/tmp/w/new"]) in seen or ("Create", ["/tmp/w/last"]) in seen


@before(1, 6)
class TestOpen:
    """`Sandbox.open` and its like."""

    def test_write_and_read(self, box):
        with box.open("/tmp/opened", "w") as file:
            file.write("one\ntwo\n")
        with box.open("/tmp/opened", "r") as file:
            assert file.readline() == "one\n"
            assert file.read() == "two\n"
            file.seek(1)
            assert file.read(2) == "ne"
        with box.open("/tmp/opened", "a") as file:
            file.write("three")
        with box.open("/tmp/opened", "rb") as file:
            assert file.read() == b"one\ntwo\nthree"
        with box.open("/tmp/opened", "r+") as file:
            file.write("ONE")
        assert run(box, "cat", "/tmp/opened") == (0, "ONE\ntwo\nthree")

    def test_flush(self, box):
        file = box.open("/tmp/flushed", "wb")
        file.write(b"x" * 3_000_000)
        file.flush()
        assert run(box, "wc", "-c", "/tmp/flushed")[1].split()[0] == "3000000"
        file.close()

    def test_directories(self, box):
        box.mkdir("/tmp/o/deep", parents=True)
        box.open("/tmp/o/file", "w").close()
        assert sorted(box.ls("/tmp/o")) == ["deep", "file"]
        box.rm("/tmp/o", recursive=True)
        with pytest.raises(FileNotFoundError):
            box.ls("/tmp/o")

    def test_what_goes_wrong(self, box):
        with pytest.raises(FileNotFoundError):
            box.open("/tmp/none", "r")
        with pytest.raises(IsADirectoryError):
            box.open("/tmp", "r")
        with pytest.raises(IsADirectoryError):
            box.open("/tmp", "w")
        with pytest.raises(FileNotFoundError):
            box.open("/tmp/not/there", "w")
        box.open("/tmp/there", "w").close()
        with pytest.raises(FileExistsError):
            box.open("/tmp/there", "x")
