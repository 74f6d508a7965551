"""Files up and down."""

import os
import uuid

import pytest
from conftest import call, raw
from runloop_api_client import BadRequestError, NotFoundError


def test_texts(box):
    written = box.file.write(file_path="/tmp/é/deep/file", contents="text\nmore €")
    assert written.exit_status == 0
    assert box.file.read(file_path="/tmp/é/deep/file") == "text\nmore €"
    box.file.write(file_path="relative", contents="x")
    assert box.cmd.exec("cat ~/relative; stat -c %U ~/relative").stdout() == "xuser\n"
    box.file.write(file_path="relative", contents="")
    assert box.file.read(file_path="relative") == ""


def test_bytes(box, tmp_path):
    content = os.urandom(1 << 20)
    local = tmp_path / "data"
    local.write_bytes(content)
    box.file.upload(path="/tmp/data", file=local)
    assert box.file.download(path="/tmp/data") == content
    box.file.upload(path="/tmp/other", file=("name", b"\0\1\r\n--x"))
    assert box.file.download(path="/tmp/other") == b"\0\1\r\n--x"


def test_ten_mebibytes(box):
    content = os.urandom(10 << 20)
    box.file.upload(path="big", file=content)
    assert box.file.download(path="big") == content


def form(parts):
    boundary = uuid.uuid4().hex
    body = b""
    for name, file, content in parts:
        kind = f'; filename="{file}"' if file else ""
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{kind}\r\n\r\n'.encode() + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def upload(box, parts):
    body, headers = form(parts)
    return raw("POST", f"/v1/devboxes/{box.id}/upload_file", body, headers=headers)[0]


def test_forms(own):
    assert upload(own, [("file", "a", b"first"), ("path", None, b"late/path")]) == 200
    assert own.file.read(file_path="late/path") == "first"
    assert upload(own, [("file", "a", b"first")]) == 400
    assert upload(own, [("path", None, b"x")]) == 400
    assert upload(own, [("path", None, b"")]) == 400
    assert upload(own, [("path", None, b"x"), ("file", "a", b"1"), ("file", "b", b"2")]) == 400
    assert upload(own, [("file", "a", b"1"), ("path", None, b"a\0b")]) == 400
    # The refused uploads left no files.
    assert own.cmd.exec("ls -A | grep upload").stdout() == ""
    assert raw("POST", f"/v1/devboxes/{own.id}/upload_file", b"no form")[0] == 400


def test_what_is_not_there(box):
    with pytest.raises(NotFoundError):
        box.file.read(file_path="/tmp/none")
    with pytest.raises(NotFoundError):
        box.file.download(path="none")
    with pytest.raises(BadRequestError):
        box.file.download(path="/tmp")
    with pytest.raises(BadRequestError):
        box.file.write(file_path="/etc/passwd/x", contents="x")
    assert call("POST", f"/v1/devboxes/{box.id}/read_file_contents", {"file_path": "a\0"})[0] == 400
    assert call("POST", f"/v1/devboxes/{box.id}/read_file_contents", {})[0] == 400
