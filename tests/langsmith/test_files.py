"""Files: writing, reading whole and in parts, and the errors."""

import http.client
import os
import urllib.parse

import pytest
from conftest import since
from langsmith.sandbox import ResourceNotFoundError, SandboxOperationError


def test_round_trip(box):
    content = bytes(range(256)) * 5000
    box.write("/tmp/deep/er/file", content)
    assert box.read("/tmp/deep/er/file") == content
    assert box.run("sha256sum < /tmp/deep/er/file").stdout.split()[0] == __import__("hashlib").sha256(content).hexdigest()
    box.write("/tmp/text", "grüße\n")
    assert box.read("/tmp/text") == "grüße\n".encode()
    box.write("/tmp/empty", b"")
    assert box.read("/tmp/empty") == b""


def test_a_file_that_is_there_keeps_its_mode(box):
    box.run("echo old > /tmp/script; chmod 755 /tmp/script")
    box.write("/tmp/script", "new")
    assert box.run("stat -c %a /tmp/script; cat /tmp/script").stdout == "755\nnew"


def test_names(box):
    for name in ["with space", "ünïcode", "a+b&c=d", "per%cent", "quote'\"", "new\nline"]:
        box.write(f"/tmp/names/{name}", name)
        assert box.read(f"/tmp/names/{name}") == name.encode()


def test_relative_paths_begin_at_home(box):
    box.write("notes.txt", "x")
    assert box.run("cat /home/user/notes.txt").stdout == "x"


def test_errors(box):
    with pytest.raises(ResourceNotFoundError) as caught:
        box.read("/tmp/nothing-there")
    assert caught.value.resource_type == "file"
    with pytest.raises(SandboxOperationError, match="is a directory"):
        box.read("/tmp")
    with pytest.raises(SandboxOperationError, match="is a directory"):
        box.write("/tmp", b"x")
    with pytest.raises(SandboxOperationError):
        box.write("/proc/nothing/here", b"x")


def test_a_large_file(box):
    content = b"0123456789abcdef" * (20 << 16)
    box.write("/tmp/large", content, timeout=120)
    assert box.read("/tmp/large", timeout=120) == content


@since(0, 13)
def test_parts(box):
    box.write("/tmp/part", "0123456789")
    stat = box.stat("/tmp/part")
    assert stat.size_bytes == 10 and stat.etag and stat.last_modified
    chunk = box.read_range("/tmp/part", start=2, end=4)
    assert (chunk.content, chunk.start, chunk.total_bytes, chunk.partial) == (b"234", 2, 10, True)
    assert box.read_range("/tmp/part", start=7).content == b"789"
    assert box.read_range("/tmp/part", suffix_bytes=3).content == b"789"
    assert box.read_range("/tmp/part", start=5, end=99).content == b"56789"
    with pytest.raises(SandboxOperationError, match=r"bytes \*/10"):
        box.read_range("/tmp/part", start=10)
    unchanged = box.read_range("/tmp/part", start=0, if_none_match=stat.etag)
    assert unchanged.unchanged and unchanged.content == b""
    box.write("/tmp/part", "another, longer")
    whole = box.read_range("/tmp/part", start=2, if_range=stat.etag)
    assert (whole.content, whole.partial, whole.start) == (b"another, longer", False, 0)
    with pytest.raises(ResourceNotFoundError):
        box.stat("/tmp/nothing-there")


# Files that the kernel makes up: without a size, and shorter than they say.
MADE_UP = ["/proc/version", "/proc/filesystems", "/sys/devices/system/cpu/online", "/sys/kernel/mm/transparent_hugepage/enabled"]


@pytest.mark.parametrize("path", MADE_UP)
def test_files_of_the_kernel_are_whole(box, path):
    if box.run(f"test -r {path}").exit_code != 0:
        pytest.skip(f"this kernel has no {path}")
    assert box.read(path).decode() == box.run(f"cat {path}").stdout


@since(0, 13)
@pytest.mark.parametrize("path", MADE_UP)
def test_files_of_the_kernel_have_parts(box, path):
    if box.run(f"test -r {path}").exit_code != 0:
        pytest.skip(f"this kernel has no {path}")
    whole = box.read(path)
    chunk = box.read_range(path, start=1, end=2)
    assert (chunk.content, chunk.total_bytes, chunk.partial) == (whole[1:3], len(whole), True)
    assert box.stat(path).size_bytes == len(whole)


def test_a_file_that_shrinks_while_it_is_sent_breaks_off(box):
    """Its size was announced: an answer that ended as if nothing were wrong would be a whole file to the client."""
    size = 256 << 20
    box.run(f"truncate -s {size} /tmp/shrinks")
    url = urllib.parse.urlsplit(box.dataplane_url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    try:
        headers = {"X-Api-Key": os.environ["LANGSMITH_API_KEY"]}
        connection.request("GET", f"{url.path}/download?path=/tmp/shrinks", headers=headers)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Length"]) == (200, str(size))
        assert answer.read(1) == b"\0"
        box.run("truncate -s 1 /tmp/shrinks")
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
    finally:
        connection.close()
    assert box.read("/tmp/shrinks") == b"\0"
