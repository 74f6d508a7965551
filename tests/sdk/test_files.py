"""Files and directories."""

import io
import os

import pytest
from atoll import errors


def test_files(box):
    files = box.files
    files.write("/w/deep/a.txt", "häll", mode="0640")
    assert (files.read("/w/deep/a.txt"), files.read_bytes("/w/deep/a.txt")) == ("häll", "häll".encode())
    stat = files.stat("/w/deep/a.txt")
    assert (stat.kind, stat.mode, stat.size_bytes) == ("file", "0640", 5)
    assert files.write("/w/big", io.BytesIO(b"x" * 3_000_000)) == 3_000_000
    assert files.write("/w/many", (b"y" * 1000 for _ in range(10))) == 10_000
    assert sum(len(piece) for piece in files.stream("/w/big")) == 3_000_000
    assert sorted(entry.path for entry in files.list("/w")) == ["/w/big", "/w/deep", "/w/many"]
    assert "/w/deep/a.txt" in [entry.path for entry in files.list("/w", depth=2)]
    assert [entry.path for entry in files.find("/w", "**/*.txt")] == ["/w/deep/a.txt"]
    [found] = files.grep("äll", "/w")
    assert (found.file.path, found.line, found.text) == ("/w/deep/a.txt", 1, "häll")
    files.move("/w/many", "/w/few")
    files.chmod("/w/few", "0600")
    assert files.stat("/w/few").mode == "0600"
    files.mkdir("/w/x/y")
    files.mkdir("/w/x/y")
    assert files.exists("/w/x/y") and not files.exists("/w/many") and not files.exists("/w/few/below")
    files.remove("/w/x", recursive=True)
    for what, kind, code in [
        (lambda: files.read("/w/none"), errors.NotFound, "file_not_found"),
        (lambda: files.read("relative"), errors.InvalidRequest, "path_invalid"),
        (lambda: files.remove("/w"), errors.Conflict, "directory_not_empty"),
        (lambda: files.move("/w/few", "/w/big", replace=False), errors.Conflict, "file_exists"),
    ]:
        with pytest.raises(kind) as failed:
            what()
        assert failed.value.code == code
    with pytest.raises(UnicodeDecodeError):
        files.write("/w/bin", b"\xff")
        files.read("/w/bin")


def test_directories_there_and_back(box, tmp_path):
    source = tmp_path / "repo"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / "file").write_bytes(os.urandom(100_000))
    (source / "link").symlink_to("sub/file")
    box.files.upload(source, "/up")
    assert box.run("/up/run.sh && test -L /up/link && test -d /up/sub/empty").stdout == "ran\n"
    box.files.upload(source / "run.sh", "/one")
    assert box.files.exists("/one/run.sh")
    box.files.download("/up", tmp_path / "down")
    back = tmp_path / "down" / "up"
    assert (back / "sub" / "file").read_bytes() == (source / "sub" / "file").read_bytes()
    assert os.readlink(back / "link") == "sub/file" and os.access(back / "run.sh", os.X_OK)


def test_a_hostile_tree_writes_nothing_outside(box, tmp_path):
    box.run(
        "mkdir -p /evil/d && cd /evil && ln -s /etc/passwd abs && ln -s ../../../up up && ln -s .. d/in"
        " && ln -s / root && mkfifo pipe && echo ok > d/file && ln d/file hard",
        check=True,
    )
    target = tmp_path / "here"
    # The download does not write through links that were in the target before, either.
    (target / "evil").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (target / "evil" / "d").symlink_to(tmp_path / "outside")
    box.files.download("/evil", target)
    names = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert names == ["evil", "evil/d", "evil/d/file", "evil/d/in", "evil/hard"]
    assert list((tmp_path / "outside").iterdir()) == []
    assert (target / "evil" / "hard").read_text() == "ok\n"
