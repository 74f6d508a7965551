"""Files: up, down, and everything between."""

import io
import urllib.error
import urllib.request

import pytest
from conftest import call, raw, since, toolbox
from daytona import DaytonaError, DaytonaNotFoundError, FileDownloadRequest, FileUpload


def test_up_and_down(box, tmp_path):
    content = bytes(range(256)) * 5000
    box.fs.upload_file(content, "/tmp/up/down.bin")
    assert box.fs.download_file("/tmp/up/down.bin") == content
    local = tmp_path / "local"
    box.fs.download_file("/tmp/up/down.bin", str(local))
    assert local.read_bytes() == content


def test_an_empty_file(box):
    box.fs.upload_file(b"", "/tmp/empty")
    assert box.fs.download_file("/tmp/empty") == b""


def test_relative_paths_begin_where_commands_run(box):
    box.fs.upload_file(b"here", "relative.txt")
    assert box.process.exec("cat relative.txt").result == "here"
    assert box.fs.get_file_info("relative.txt").name == "relative.txt"
    assert box.get_work_dir() == box.process.exec("pwd").result.strip()


def test_many_at_once(box):
    box.fs.upload_files([FileUpload(source=f"{n}".encode(), destination=f"/tmp/many/{n} ü.txt") for n in range(20)])
    paths = [f"/tmp/many/{n} ü.txt" for n in range(20)] + ["/tmp/many/none"]
    answers = box.fs.download_files([FileDownloadRequest(source=path) for path in paths])
    assert [answer.result for answer in answers[:-1]] == [f"{n}".encode() for n in range(20)]
    assert answers[-1].error


def test_what_cannot_be_written_is_told(box):
    with pytest.raises(DaytonaError):
        box.fs.upload_file(b"x", "/proc/none/x")


def test_what_is_not_there(box):
    with pytest.raises(DaytonaNotFoundError):
        box.fs.download_file("/tmp/none")
    with pytest.raises(DaytonaNotFoundError):
        box.fs.get_file_info("/tmp/none")
    with pytest.raises(DaytonaNotFoundError):
        box.fs.list_files("/tmp/none")
    with pytest.raises(DaytonaNotFoundError):
        box.fs.delete_file("/tmp/none")


def test_directories(box):
    box.fs.create_folder("/tmp/dirs/a/b", "750")
    info = box.fs.get_file_info("/tmp/dirs/a/b")
    assert (info.is_dir, info.permissions, info.mode) == (True, "0750", "drwxr-x---")
    box.fs.upload_file(b"12345", "/tmp/dirs/a/file")
    listed = box.fs.list_files("/tmp/dirs/a")
    assert [(f.name, f.is_dir, f.size) for f in listed if not f.is_dir] == [("file", False, 5)]
    with pytest.raises(DaytonaError):
        box.fs.delete_file("/tmp/dirs")
    box.fs.delete_file("/tmp/dirs", recursive=True)
    assert box.process.exec("ls -d /tmp/dirs").exit_code != 0


def test_moving(box):
    box.fs.upload_file(b"1", "/tmp/moved/a")
    box.fs.move_files("/tmp/moved/a", "/tmp/moved/b")
    assert box.fs.download_file("/tmp/moved/b") == b"1"
    box.fs.upload_file(b"2", "/tmp/moved/a")
    with pytest.raises(DaytonaError):
        box.fs.move_files("/tmp/moved/a", "/tmp/moved/b")
    assert box.fs.download_file("/tmp/moved/b") == b"1"


def test_permissions(box):
    box.fs.upload_file(b"#!/bin/sh\necho ran", "/tmp/script")
    box.fs.set_file_permissions("/tmp/script", mode="755")
    assert box.process.exec("/tmp/script").result == "ran\n"
    assert box.fs.get_file_info("/tmp/script").permissions == "0755"


def test_searching(box):
    box.fs.upload_files(
        [
            FileUpload(source=b"one\nneedle here\n", destination="/tmp/hay/a.txt"),
            FileUpload(source=b"no\n", destination="/tmp/hay/sub/b.txt"),
            FileUpload(source=b"a needle\n", destination="/tmp/hay/sub/c.md"),
        ]
    )
    found = sorted(box.fs.search_files("/tmp/hay", "*.txt").files)
    assert found == ["/tmp/hay/a.txt", "/tmp/hay/sub/b.txt"]
    matches = sorted((m.file, m.line, m.content) for m in box.fs.find_files("/tmp/hay", "needle"))
    assert matches == [("/tmp/hay/a.txt", 2, "needle here"), ("/tmp/hay/sub/c.md", 1, "a needle")]
    one = box.fs.find_files("/tmp/hay/a.txt", "needle")
    assert [(m.file, m.line) for m in one] == [("/tmp/hay/a.txt", 2)]


def test_replacing(box):
    box.fs.upload_file("für alle, für immer".encode(), "/tmp/replaced")
    results = box.fs.replace_in_files(["/tmp/replaced", "/tmp/none"], "für", "for")
    assert [result.success for result in results] == [True, False]
    assert box.fs.download_file("/tmp/replaced") == b"for alle, for immer"


@since(0, 210)
def test_streams(box):
    content = b"0123456789abcdef" * 300_000
    box.fs.upload_file_stream(io.BytesIO(content), "/tmp/streamed")
    assert b"".join(box.fs.download_file_stream("/tmp/streamed")) == content


@since(0, 220)
def test_signed_addresses(box):
    def fetch(url, data=None):
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=30) as response:
            return response.read()

    fetch(box.upload_url("/tmp/signed file"), b"by address")
    down = box.download_url("/tmp/signed file")
    assert fetch(down) == b"by address"
    assert fetch(box.download_url("/tmp/signed file", 0)) == b"by address"
    box.rotate_signing_key()
    with pytest.raises(urllib.error.HTTPError) as old:
        fetch(down)
    assert old.value.code == 401
    assert fetch(box.download_url("/tmp/signed file")) == b"by address"


def test_a_signature_must_be_right(box):
    status, _, _ = raw(
        "GET", f"/{box.id}/files/download?path=/etc/passwd&expires=0&signature=v1_{'A' * 43}", key="", root=toolbox()
    )
    assert status == 401
    status, _, _ = raw("GET", f"/{box.id}/files/download?path=/etc/passwd", key="", root=toolbox())
    assert status == 401


def test_ranges(box):
    box.fs.upload_file(b"0123456789", "/tmp/ranged")
    status, headers, body = raw(
        "GET", f"/{box.id}/files/download?path=/tmp/ranged", headers={"Range": "bytes=2-4"}, root=toolbox()
    )
    assert (status, body, headers["content-range"]) == (206, b"234", "bytes 2-4/10")


def test_large_files(box):
    content = b"x" * (24 << 20)
    box.fs.upload_file(content, "/tmp/large")
    assert box.fs.get_file_info("/tmp/large").size == len(content)
    assert box.fs.download_file("/tmp/large") == content


def test_forms_in_any_order(box):
    parts = [("files[1].path", "/tmp/form/b"), ("files[0].path", "/tmp/form/a")]
    body = b"".join(f'--B\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'.encode() for n, v in parts)
    files = [("files[0].file", b"A"), ("files[1].file", b"B\r\n--"), ("files[2].file", b"C")]
    for name, content in files:
        head = f'--B\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    body += b"--B--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    status, answer = call("POST", f"/{box.id}/files/bulk-upload", body, headers=headers, root=toolbox())
    assert (status, len(answer["errors"])) == (400, 1)
    assert [file["bytes"] for file in answer["files"]] == [1, 5]
    assert box.fs.download_file("/tmp/form/b") == b"B\r\n--"


async def test_asynchronously(abox):
    await abox.fs.upload_file(b"async", "/tmp/a")
    assert await abox.fs.download_file("/tmp/a") == b"async"
