"""Files: in every form that the clients send them, and watching them."""

import gzip
import io
import json
import os
import urllib.parse

import pytest
from conftest import VERSION, data_plane, raw, since, until
from e2b import FileType, FilesystemEventType, Sandbox
from e2b.exceptions import AuthenticationException, InvalidArgumentException, NotFoundException

try:
    from e2b.exceptions import FileNotFoundException
except ImportError:
    FileNotFoundException = NotFoundException


def test_write_and_read(box):
    written = box.files.write("a/b/c.txt", "text ü")
    assert (written.path, written.name) == ("/home/user/a/b/c.txt", "c.txt")
    assert box.files.read("a/b/c.txt") == "text ü"
    assert box.files.read("~/a/b/c.txt", format="bytes") == "text ü".encode()
    assert b"".join(box.files.read("/home/user/a/b/c.txt", format="stream")) == "text ü".encode()
    box.files.write("a/b/c.txt", b"")
    assert box.files.read("a/b/c.txt") == ""
    assert box.commands.run("stat -c '%U %G %a' a a/b a/b/c.txt").stdout == "user user 755\nuser user 755\nuser user 644\n"
    box.files.write("/root/x", "r", user="root")
    assert box.commands.run("stat -c %U /root/x", user="root").stdout == "root\n"


def test_large(box):
    content = os.urandom(1 << 20) * 20
    box.files.write("large", io.BytesIO(content))
    assert bytes(box.files.read("large", format="bytes")) == content


def test_several_at_once(box):
    box.files.write_files([{"path": "m/one", "data": "1"}, {"path": "/tmp/m two", "data": b"2"}])
    assert (box.files.read("m/one"), box.files.read("/tmp/m two")) == ("1", "2")
    assert box.files.write_files([]) == []


def test_a_file_in_a_directory_of_everybody_is_written_again(box):
    # In directories like /tmp the host's kernel may protect files of other users, from root as well.
    for user in ("user", "root"):
        for text in ("first", "second"):
            box.files.write(f"/tmp/again-{user}", text, user=user)
            assert box.files.read(f"/tmp/again-{user}") == text
    box.commands.run("echo mine > /tmp/of-a-command")
    box.files.write("/tmp/of-a-command", "written")
    assert box.commands.run("cat /tmp/of-a-command; stat -c %U /tmp/of-a-command").stdout == "writtenuser\n"


def test_what_is_not_there(box):
    with pytest.raises(NotFoundException):
        box.files.read("no/such")
    with pytest.raises(InvalidArgumentException):
        box.files.read("/tmp")
    with pytest.raises(InvalidArgumentException):
        box.files.write("/tmp", "x")
    with pytest.raises(AuthenticationException):
        box.files.read("x", user="nobody-at-all")
    assert box.files.exists("no/such") is False
    with pytest.raises(NotFoundException):
        box.files.list("no/such")
    with pytest.raises(NotFoundException):
        box.files.rename("no/such", "x")


@since(2, 40)
def test_compressed(box):
    content = b"pack me " * 100_000
    box.files.write("packed", content, gzip=True)
    assert bytes(box.files.read("packed", format="bytes", gzip=True)) == content
    status, headers, body = data_plane(
        box.sandbox_id, "GET", "/files?path=packed",
        headers={"X-Access-Token": box._envd_access_token, "Accept-Encoding": "gzip"},
    )
    assert status == 200 and headers["content-encoding"] == "gzip" and gzip.decompress(body) == content


def test_ranges(box):
    box.files.write("digits", "0123456789")
    token = {"X-Access-Token": box._envd_access_token}
    part = lambda text: data_plane(box.sandbox_id, "GET", "/files?path=digits", headers={**token, "Range": text})
    assert (part("bytes=2-4")[0], part("bytes=2-4")[2]) == (206, b"234")
    assert part("bytes=-3")[2] == b"789"
    assert part("bytes=10-")[0] == 416


@since(2, 45)
def test_metadata(box):
    box.files.write("with", "x", metadata={"Author": "me", "kind": "a b"})
    assert box.files.get_info("with").metadata == {"author": "me", "kind": "a b"}
    box.files.write("with", "y")
    assert not box.files.get_info("with").metadata


def test_entries(box):
    box.files.make_dir("e/d/deep")
    box.files.write("e/f", "12345")
    box.commands.run("ln -s f e/link; ln -s nowhere e/broken; ln -s d e/dirlink")
    entry = box.files.get_info("e/f")
    assert (entry.name, entry.path, entry.size, entry.mode) == ("f", "/home/user/e/f", 5, 0o644)
    assert (entry.permissions, entry.owner, entry.group, entry.type) == ("-rw-r--r--", "user", "user", FileType.FILE)
    assert entry.symlink_target is None and entry.modified_time is not None
    assert box.files.get_info("e/d").permissions == "drwxr-xr-x"
    link = box.files.get_info("e/link")
    assert (link.symlink_target, link.mode, link.permissions) == ("/home/user/e/f", 0o644, "Lrwxrwxrwx")
    # The newest client has a type for links; the others give the type of the target.
    assert link.type in (FileType.FILE, getattr(FileType, "SYMLINK", None))
    assert box.files.get_info("e/broken").symlink_target == "/home/user/e/broken"
    # Older clients leave out entries whose type they do not know.
    assert [entry.name for entry in box.files.list("e") if entry.name != "broken"] == ["d", "dirlink", "f", "link"]
    names = [entry.path.removeprefix("/home/user/e/") for entry in box.files.list("e", depth=2)]
    assert "d/deep" in names and "f" in names
    with pytest.raises(InvalidArgumentException):
        box.files.list("e/f")


def test_directories_moves_and_removals(box):
    assert box.files.make_dir("new/er") is True
    assert box.files.make_dir("new/er") is False
    box.files.write("new/file", "x")
    with pytest.raises(InvalidArgumentException):
        box.files.make_dir("new/file")
    moved = box.files.rename("new/file", "other/place/file")
    assert (moved.name, moved.path) == ("file", "/home/user/other/place/file")
    assert box.files.read("other/place/file") == "x" and not box.files.exists("new/file")
    box.files.remove("new")
    assert not box.files.exists("new")
    box.files.remove("new")


@pytest.mark.parametrize("recursive", [False, True])
def test_watching_by_asking(box, recursive):
    place = f"watched-{recursive}"
    box.files.make_dir(place)
    watch = box.files.watch_dir(place, recursive=recursive)
    assert watch.get_new_events() == []
    box.files.write(f"{place}/f", "x")
    seen = [(event.name, event.type) for event in watch.get_new_events()]
    assert seen[0] == ("f", FilesystemEventType.CREATE)
    assert {kind for _, kind in seen} == {FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE}
    box.files.rename(f"{place}/f", f"{place}/g")
    seen = {(event.name, event.type) for event in watch.get_new_events()}
    assert {("f", FilesystemEventType.RENAME), ("g", FilesystemEventType.CREATE)} <= seen
    box.files.remove(f"{place}/g")
    assert ("g", FilesystemEventType.REMOVE) in {(event.name, event.type) for event in watch.get_new_events()}
    box.files.make_dir(f"{place}/sub")
    watch.get_new_events()
    box.files.write(f"{place}/sub/deep", "x")
    names = {event.name for event in watch.get_new_events()}
    assert ("sub/deep" in names) is recursive
    watch.stop()
    with pytest.raises(Exception):
        watch.get_new_events()
    with pytest.raises(NotFoundException):
        box.files.watch_dir("no/such")


async def test_watching_as_it_happens(abox):
    events = []
    await abox.files.make_dir("w")
    watch = await abox.files.watch_dir("w", on_event=events.append)
    await abox.files.write("w/f", "x")
    import asyncio

    for _ in range(200):
        if any(event.type == FilesystemEventType.WRITE for event in events):
            break
        await asyncio.sleep(0.05)
    assert [event.name for event in events][:1] == ["f"]
    await watch.stop()


def test_signed_addresses(box):
    import urllib.request

    box.files.write("signed.txt", "signed")

    def fetch(url, body=None):
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "multipart/form-data; boundary=b"} if body else {})
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    assert fetch(box.download_url("signed.txt")) == (200, b"signed")
    assert fetch(box.download_url("signed.txt", user="root"))[0] == 404
    assert fetch(box.download_url("signed.txt", use_signature_expiration=120)) == (200, b"signed")
    status, text = fetch(box.download_url("signed.txt", use_signature_expiration=-120))
    assert status == 401 and json.loads(text) == {"code": 401, "message": "signature is already expired"}
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nup\r\n--b--\r\n'
    assert fetch(box.upload_url("up.txt"), form)[0] == 200
    assert box.files.read("up.txt") == "up"
    url = urllib.parse.urlsplit(box.download_url("signed.txt"))
    get = lambda query: data_plane(box.sandbox_id, "GET", "/files?" + query)
    assert json.loads(get("path=signed.txt")[2])["message"] == "missing signature query parameter"
    assert json.loads(get("path=signed.txt&signature=v1_x")[2])["message"] == "invalid signature"
    assert get(url.query.replace("signed.txt", "up.txt"))[0] == 401, "a signature is for one file"


def test_parts_become_one(box):
    """`/files/compose`, which no client calls yet. The version of envd that the server reports has it."""
    def compose(sources, destination, **more):
        body = {"source_paths": sources, "destination": destination, **more}
        headers = {"X-Access-Token": box._envd_access_token}
        status, _, text = data_plane(box.sandbox_id, "POST", "/files/compose", body, headers=headers)
        return status, json.loads(text)

    box.commands.run("rm -rf parts && mkdir parts && seq 100000 > parts/a && echo b > parts/b && echo old > parts/whole")
    expected = box.files.read("parts/a") + "b\n"
    assert compose(["parts/a", "/home/user/parts/b"], "parts/whole") == (
        200, {"name": "whole", "type": "file", "path": "/home/user/parts/whole"},
    )
    assert box.files.read("parts/whole") == expected
    assert [entry.name for entry in box.files.list("parts")] == ["whole"]
    assert box.commands.run("stat -c %U parts/whole").stdout == "user\n"
    # Requests that fail change nothing.
    for sources, destination, status in [
        ([], "parts/x", 400), (["parts/whole"], "", 400), (["parts/whole"], "parts/../parts/whole", 400),
        (["parts/whole", "parts/none"], "parts/x", 404), (["parts"], "parts/x", 400), (["parts/whole"], "parts/whole/x", 400),
        (["parts/whole"], "/tmp", 400),
    ]:
        answer = compose(sources, destination)
        assert answer[0] == status and answer[1]["code"] == status, (sources, destination, answer)
    assert compose(["parts/whole"], "x", username="nobody-at-all")[0] == 401
    assert [entry.name for entry in box.files.list("parts")] == ["whole"]
    assert compose(["/home/user/parts/whole"], "deep/er/copy", username="root")[0] == 200
    assert box.commands.run("stat -c %U ~root/deep/er/copy", user="root").stdout == "root\n"
