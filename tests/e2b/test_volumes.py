"""Volumes, their files, and secrets, with the newest client: E2B_VOLUME_API_URL is the address of the files."""

import asyncio
import http.client
import io
import json
import os
import socket
import urllib.parse
import uuid

import pytest
from conftest import call, raw, until
from e2b import (
    AsyncSandbox,
    AsyncSecret,
    AsyncVolume,
    Sandbox,
    Secret,
    SecretNotFoundException,
    Volume,
    VolumeException,
    VolumeFileType,
    VolumeNotFoundException,
    VolumePathNotFoundException,
)
from e2b.exceptions import AuthenticationException, SandboxException

NATIVE = os.environ["ATOLL_URL"]


def name(kind="vol"):
    return f"{kind}_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def vol():
    volume = Volume.create(name())
    yield volume
    Volume.destroy(volume.volume_id)


@pytest.fixture
def small():
    """A small volume, which is soon full."""
    status, made = call("POST", "/v1/volumes", {"name": name(), "size_bytes": 40 << 20}, root=NATIVE)
    assert status == 201
    yield Volume.connect(made["id"])
    Volume.destroy(made["id"])


def key(scope, **more):
    """Makes a key; returns its id and the key."""
    status, made = call("POST", "/v1/keys", {"name": "volumes", "scope": scope, "format": "e2b", **more}, root=NATIVE)
    assert status == 201, made
    return made["key"]["id"], made["secret"]


def content(method, volume, what, token, body=None, **query):
    """Sends a raw request about the files of a volume."""
    path = f"/volumecontent/{volume}/{what}?{urllib.parse.urlencode(query)}"
    headers = {"Authorization": f"Bearer {token}", "X-API-Key": ""}
    return raw(method, path, body, headers=headers, root=os.environ["E2B_VOLUME_API_URL"])


def test_a_volume_s_life():
    called = name("Data-Set")
    volume = Volume.create(called)
    assert volume.name == called and volume.token
    assert any((one.volume_id, one.name) == (volume.volume_id, called) for one in Volume.list())
    info = Volume.get_info(volume.volume_id)
    assert (info.name, info.token, info.domain) == (called, volume.token, None)
    assert Volume.connect(volume.volume_id).name == called
    with pytest.raises(VolumeException, match="400"):
        Volume.create(called)
    for bad in ["", "a b", "a/b", "-x", "ü", "x" * 64]:
        with pytest.raises(VolumeException, match="400"):
            Volume.create(bad)
    assert Volume.destroy(volume.volume_id) is True
    assert Volume.destroy(volume.volume_id) is False
    # The client finds no volume by the deleted id, by its name, or by an unknown id.
    for gone in [volume.volume_id, called, "x"]:
        with pytest.raises(VolumeNotFoundException):
            Volume.get_info(gone)
    status, headers, _ = raw("GET", "/volumes/x")
    assert (status, headers["should-retry"]) == (404, "false")


def test_files(vol):
    made = vol.write_file("/a.txt", "text ü", uid=7, gid=8, mode=0o640)
    assert (made.name, made.path, made.type, made.size) == ("a.txt", "/a.txt", VolumeFileType.FILE, 7)
    assert (made.uid, made.gid, made.mode) == (7, 8, 0o640)
    assert vol.get_info("a.txt") == made and made.mtime.year > 2000
    assert vol.read_file("/a.txt") == "text ü"
    assert vol.read_file("/a.txt", format="bytes") == "text ü".encode()
    vol.write_file("b", io.BytesIO(b"of a stream"))
    vol.write_file("c", io.StringIO("of text"))
    vol.write_file("empty", b"")
    assert [vol.read_file(file) for file in ("b", "c", "empty")] == ["of a stream", "of text", ""]
    # `force` replaces an existing file in one step.
    with pytest.raises(VolumeException, match="409"):
        vol.write_file("b", "again")
    assert vol.write_file("b", "again", force=True).size == 5
    assert vol.read_file("b") == "again"
    with pytest.raises(VolumePathNotFoundException):
        vol.write_file("no/such/dir", "x")
    vol.write_file("with/its/dirs", "x", force=True)
    assert vol.get_info("with/its").type == VolumeFileType.DIRECTORY
    assert vol.exists("with/its/dirs") and not vol.exists("none")
    for call_of in [vol.get_info, vol.read_file, vol.remove, vol.list, lambda path: vol.update_metadata(path, mode=0o600)]:
        with pytest.raises(VolumePathNotFoundException):
            call_of("none")
    with pytest.raises(VolumePathNotFoundException):
        list(vol.read_file("none", format="stream"))
    changed = vol.update_metadata("a.txt", mode=0o600)
    assert (changed.mode, changed.uid, changed.gid) == (0o600, 7, 8)
    changed = vol.update_metadata("a.txt", uid=9)
    assert (changed.mode, changed.uid, changed.gid) == (0o600, 9, 8)
    for bad in [{"mode": 0o10000}, {"uid": 65536}, {"gid": -1}]:
        with pytest.raises(VolumeException, match="400"):
            vol.update_metadata("a.txt", **bad)
    vol.remove("a.txt")
    assert not vol.exists("a.txt")


def test_directories(vol):
    made = vol.make_dir("/d", uid=1, gid=2, mode=0o750)
    assert (made.type, made.path, made.uid, made.gid, made.mode) == (VolumeFileType.DIRECTORY, "/d", 1, 2, 0o750)
    with pytest.raises(VolumeException, match="409"):
        vol.make_dir("/d")
    assert vol.make_dir("/d", force=True, mode=0o700).mode == 0o750
    with pytest.raises(VolumePathNotFoundException):
        vol.make_dir("/e/f/g")
    vol.make_dir("/e/f/g", force=True)
    vol.write_file("/e/f/h.txt", "h")
    with pytest.raises(VolumeException, match="409"):
        vol.make_dir("/e/f/h.txt", force=True)
    paths = lambda *args, **more: [entry.path for entry in vol.list(*args, **more)]
    assert paths("/") == ["/d", "/e"] and paths("e") == ["/e/f"]
    assert paths("/", depth=2) == ["/d", "/e", "/e/f"]
    assert paths("/", depth=10) == ["/d", "/e", "/e/f", "/e/f/g", "/e/f/h.txt"]
    assert paths("/e/f/g") == []
    for bad in [lambda: vol.list("/", depth=11), lambda: vol.list("/e/f/h.txt"), lambda: vol.remove("/")]:
        with pytest.raises(VolumeException, match="400"):
            bad()
    assert vol.get_info("/").name == "/"
    vol.remove("/e")
    assert paths("/") == ["/d"]


def test_in_sandboxes(vol):
    vol.write_file("from-outside", "outside\n")
    sandbox = Sandbox.create(timeout=120, volume_mounts={"/mnt/v": vol})
    try:
        assert sandbox.commands.run("cat /mnt/v/from-outside").stdout == "outside\n"
        # The sandbox's user may do everything with files that the client wrote from outside.
        sandbox.commands.run("echo more >> /mnt/v/from-outside && mkdir /mnt/v/made && echo in > /mnt/v/made/inside")
        sandbox.commands.run("echo x >> /mnt/v/made/inside && rm /mnt/v/made/inside && echo in > /mnt/v/made/inside", user="root")
        vol.write_file("another", "x")
        sandbox.commands.run("rm /mnt/v/another")
        assert vol.read_file("from-outside") == "outside\nmore\n"
        assert vol.read_file("made/inside") == "in\n"
        assert [(mount["name"], mount["path"]) for mount in sandbox.get_info().volume_mounts] == [(vol.name, "/mnt/v")]
        other = Sandbox.create(timeout=120, volume_mounts={"/data": vol.name})
        assert other.files.read("/data/made/inside") == "in\n"
        other.kill()
        with pytest.raises(VolumeException, match="409"):
            Volume.destroy(vol.volume_id)
    finally:
        sandbox.kill()


async def test_the_asynchronous_client():
    volume = await AsyncVolume.create(name())
    try:
        await volume.write_file("/big", io.BytesIO(os.urandom(3 << 20)))
        pieces = [len(piece) async for piece in await volume.read_file("/big", format="stream")]
        assert sum(pieces) == 3 << 20
        await volume.make_dir("/x/y", force=True)
        assert [entry.path for entry in await volume.list("/", depth=2)] == ["/big", "/x", "/x/y"]
        assert (await volume.update_metadata("/big", mode=0o400)).mode == 0o400
        await asyncio.gather(*(volume.write_file(f"/x/{number}", str(number)) for number in range(30)))
        texts = await asyncio.gather(*(volume.read_file(f"/x/{number}") for number in range(30)))
        assert texts == [str(number) for number in range(30)]
        await volume.remove("/x")
        assert not await volume.exists("/x/y")
        assert any(one.volume_id == volume.volume_id for one in await AsyncVolume.list())
        assert (await AsyncVolume.connect(volume.volume_id)).name == volume.name
        sandbox = await AsyncSandbox.create(timeout=60, volume_mounts={"/v": volume})
        assert (await sandbox.commands.run("stat -c %s /v/big")).stdout == f"{3 << 20}\n"
        await sandbox.kill()
    finally:
        assert await AsyncVolume.destroy(volume.volume_id) is True
    assert await AsyncVolume.destroy(volume.volume_id) is False


def test_more_than_memory_wants(vol):
    piece = os.urandom(1 << 20)

    class Endless(io.RawIOBase):
        left = 200

        def readable(self):
            return True

        def read(self, size=-1):
            self.left -= 1
            return piece if self.left >= 0 else b""

    assert vol.write_file("/big", Endless()).size == 200 << 20
    assert sum(len(part) for part in vol.read_file("/big", format="stream")) == 200 << 20


def test_a_token_is_for_one_volume_and_as_good_as_its_key(vol):
    other = Volume.create(name())
    try:
        vol.write_file("secret", "of this volume")
        made_up = vol.token[:-1] + ("0" if vol.token[-1] != "0" else "1")
        for wrong in [other.token, made_up, os.environ["E2B_API_KEY"], "ev_", "x", ""]:
            for method, what in [("GET", "path"), ("GET", "file"), ("GET", "dir"), ("PUT", "file"), ("POST", "dir"),
                                 ("PATCH", "path"), ("DELETE", "path")]:
                status, _, text = content(method, vol.volume_id, what, wrong, b"{}" if method[0] == "P" else None, path="/secret")
                assert status == 401 and json.loads(text)["code"] == "unauthorized", (wrong, method, what)
        with pytest.raises(AuthenticationException):
            vol.read_file("secret", token=other.token)
        assert vol.read_file("secret") == "of this volume"
    finally:
        Volume.destroy(other.volume_id)
    # The volume is deleted, so its token leads to nothing.
    with pytest.raises(VolumePathNotFoundException):
        other.read_file("secret")


def test_a_weak_key_has_a_weak_token(vol):
    vol.write_file("a", "a")
    _, reads = key("read")
    weak = Volume.connect(vol.volume_id, api_key=reads)
    assert weak.token != vol.token
    assert weak.read_file("a") == "a" and len(weak.list("/")) == 1 and weak.exists("a")
    for call_of in [
        lambda: weak.write_file("b", "b"),
        lambda: weak.make_dir("b"),
        lambda: weak.remove("a"),
        lambda: weak.update_metadata("a", mode=0o777),
        lambda: Volume.create(name(), api_key=reads),
        lambda: Volume.destroy(vol.volume_id, api_key=reads),
    ]:
        with pytest.raises(VolumeException, match="403"):
            call_of()
    assert [entry.path for entry in vol.list("/")] == ["/a"]


def test_a_token_ends_with_its_key(vol):
    vol.write_file("a", "a")
    made, secret = key("exec")
    mine = Volume.connect(vol.volume_id, api_key=secret)
    assert mine.read_file("a") == "a"
    assert call("DELETE", f"/v1/keys/{made}", root=NATIVE)[0] == 204
    with pytest.raises(AuthenticationException):
        mine.read_file("a")


def test_a_token_ends_when_its_key_does(vol):
    vol.write_file("a", "a")
    brief = Volume.connect(vol.volume_id, api_key=key("exec", ttl_ms=10_000)[1])

    def status():
        try:
            return content("GET", vol.volume_id, "file", brief.token, path="/a")[0]
        except http.client.IncompleteRead:
            return None  # its key ended while the answer was under way

    assert status() == 200
    until(lambda: status() == 401)


def begin_upload(volume, path, length, sent):
    """Begins to send a file, and leaves the connection open."""
    at = urllib.parse.urlsplit(os.environ["E2B_VOLUME_API_URL"])
    stream = socket.create_connection((at.hostname, at.port), timeout=30)
    head = (
        f"PUT {at.path}/volumecontent/{volume.volume_id}/file?path={path} HTTP/1.1\r\nHost: {at.netloc}\r\n"
        f"Authorization: Bearer {volume.token}\r\nContent-Length: {length}\r\n\r\n"
    )
    stream.sendall(head.encode() + sent)
    return stream


def inside(volume):
    return [entry.name for entry in volume.list("/")]


def test_what_is_cut_off_is_not_there(vol):
    stream = begin_upload(vol, "/cut", 1 << 20, b"x" * 1000)
    until(lambda: any(found.startswith(".atoll-") for found in inside(vol)))
    assert not vol.exists("/cut")
    stream.close()
    until(lambda: inside(vol) == [])


def test_a_key_that_is_deleted_in_the_middle_writes_nothing(vol):
    made, secret = key("exec")
    mine = Volume.connect(vol.volume_id, api_key=secret)
    with begin_upload(mine, "/late", 2000, b"x" * 1000) as stream:
        until(lambda: inside(vol) != [])
        assert call("DELETE", f"/v1/keys/{made}", root=NATIVE)[0] == 204
        until(lambda: inside(vol) == [])
        try:
            stream.sendall(b"x" * 1000)
            assert not stream.recv(100).startswith(b"HTTP/1.1 2")
        except OSError:
            pass
    assert inside(vol) == []


def test_a_full_volume(small):
    small.write_file("/kept", "kept")
    with pytest.raises(VolumeException, match="507"):
        small.write_file("/more", b"x" * (64 << 20))
    assert inside(small) == ["kept"] and small.read_file("/kept") == "kept"


def test_a_hostile_sandbox(vol):
    sandbox = Sandbox.create(timeout=120, volume_mounts={"/v": vol})
    try:
        trap = """cd /v && echo inside > file && ln -s /etc/passwd abs && ln -s ../../../../etc/passwd up && ln -s / root &&
        ln -s .. above && ln -s file link && ln -s loop loop && mkfifo pipe && mkdir -p deep && ln -s /proc/self/root proc &&
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")' &&
        python3 -c 'import os; open(b"bad\\xff", "w"); os.mkdir(b"dir\\xff"); open(b"dir\\xff/x", "w")'"""
        sandbox.commands.run(trap)
        assert vol.read_file("link") == "inside\n"
        listed = {entry.name: entry for entry in vol.list("/", depth=10)}
        assert (listed["abs"].type, listed["abs"].target) == (VolumeFileType.SYMLINK, "/etc/passwd")
        assert {listed["pipe"].type, listed["socket"].type} == {VolumeFileType.UNKNOWN}
        changes = [
            lambda path: vol.update_metadata(path, mode=0o777),
            lambda path: vol.update_metadata(path, uid=0),
        ]
        for path in ["abs", "up", "root/etc/passwd", "above/etc/passwd", "loop", "pipe", "socket", "proc/etc/passwd"]:
            for attempt in [vol.read_file, *changes]:
                with pytest.raises(VolumeException):
                    attempt(path)
        for path in ["../x", "/../../etc/passwd", "deep/../../x", "a\0b", "x/" * 2100]:
            for attempt in [vol.read_file, vol.get_info, vol.list, vol.remove, vol.make_dir, *changes,
                            lambda path: vol.write_file(path, "x", force=True)]:
                with pytest.raises(VolumeException, match="400"):
                    attempt(path)
        for path in ["root/tmp/atoll-escaped", "above/atoll-escaped", "proc/tmp/atoll-escaped"]:
            for attempt in [vol.make_dir, lambda path: vol.write_file(path, "x")]:
                with pytest.raises(VolumeException):
                    attempt(path)
            for attempt in [vol.make_dir, lambda path, **force: vol.write_file(path, "x", **force)]:
                with pytest.raises(VolumeException):
                    attempt(path, force=True)
        assert not os.path.exists("/tmp/atoll-escaped")
        # Writing and removing replace the link itself, not its target.
        vol.write_file("link", "new", force=True)
        assert (vol.read_file("file"), vol.get_info("link").type) == ("inside\n", VolumeFileType.FILE)
        vol.remove("abs")
        vol.remove("root")
        assert os.path.exists("/etc/passwd")
        # The volume API can list a directory of root's that no other user may read, and change its mode.
        sandbox.commands.run("mkdir -m 0 /v/shut", user="root")
        assert vol.list("shut") == [] and vol.update_metadata("shut", mode=0o755).mode == 0o755
    finally:
        sandbox.kill()


def test_who_asks_too_much(vol):
    assert content("GET", vol.volume_id, "path", vol.token)[0] == 400
    assert content("PATCH", vol.volume_id, "path", vol.token, b"5", path="/")[0] == 400
    assert content("PATCH", vol.volume_id, "path", vol.token, b" " * (2 << 20), path="/")[0] == 413
    assert content("PUT", vol.volume_id, "path", vol.token, b"x", path="/")[0] == 405
    assert content("GET", vol.volume_id, "none", vol.token, path="/")[0] == 404
    # Errors about files of a volume have a word as their code, as the model of the volume client has it.
    for method, what, code in [("GET", "file", "not_found"), ("PUT", "path", "method_not_allowed"), ("GET", "dir", "not_found")]:
        assert json.loads(content(method, vol.volume_id, what, vol.token, path="/none")[2])["code"] == code
    assert json.loads(content("GET", vol.volume_id, "file", "wrong", path="/a")[2])["code"] == "unauthorized"
    status, _, text = raw("POST", "/volumes", {})
    assert status == 400 and json.loads(text)["code"] == 400


def test_secrets():
    called = name("Key")
    made = Secret.create(called, "sesame-open", metadata={"team": "a"})
    try:
        assert (made.name, made.version, made.metadata) == (called.lower(), 1, {"team": "a"})
        assert made.secret_id.startswith("sec_") and made.created_at == made.updated_at
        assert Secret.get_info(made.secret_id) == Secret.get_info(called) == made
        with pytest.raises(Exception, match="409"):
            Secret.create(called, "another")
        changed = Secret.update(made.secret_id, "sesame-two")
        assert (changed.version, changed.metadata) == (2, {"team": "a"})
        assert Secret.update(called, "sesame-three", metadata={}).metadata == {}
        pages, found = Secret.list(limit=1), []
        while pages.has_next:
            found += pages.next_items()
        assert [one.name for one in found if one.name == called.lower()] == [called.lower()]
        # No answer contains the secret's value.
        for path in ["/secrets", f"/secrets/{called}", f"/secrets/{made.secret_id}"]:
            status, _, text = raw("GET", path)
            assert status == 200 and b"sesame" not in text
        for bad in [{"name": "a b", "value": "12345"}, {"name": "sec_x", "value": "12345"}, {"name": "x", "value": ""}, {}]:
            assert call("POST", "/secrets", bad)[0] == 400, bad
        _, weak = key("manage")
        assert call("GET", "/secrets", key=weak)[0] == 200
        for method, path in [("POST", "/secrets"), ("POST", f"/secrets/{called}"), ("DELETE", f"/secrets/{called}")]:
            status, answer = call(method, path, {"name": "x", "value": "12345"}, key=weak)
            assert (status, answer["code"]) == (403, 403)
    finally:
        assert Secret.destroy(called) is True
    assert Secret.destroy(called) is False and not Secret.exists(made.secret_id)
    with pytest.raises(SecretNotFoundException):
        Secret.update(called, "sesame")


def test_rules_that_name_secrets():
    called = name("Key")
    Secret.create(called, "sesame-open")
    rules = lambda value: {"rules": {"api.example.com": [{"transform": {"headers": {"Authorization": value}}}]}}
    try:
        sandbox = Sandbox.create(timeout=60, network=rules(f"Bearer {Secret.fill(called)}"))
        path = f"/v1/sandboxes/{sandbox.sandbox_id}"
        injected = lambda: call("GET", path, root=NATIVE)[1]["egress"]["inject"]
        try:
            assert injected()[0]["headers"] == {"Authorization": f"Bearer {{secret:{called.lower()}}}"}
            assert injected()[0]["hosts"] == ["api.example.com"]
            sandbox.update_network(rules(f"token {Secret.fill(called)}"))
            assert injected()[0]["headers"] == {"Authorization": f"token {{secret:{called.lower()}}}"}
            for text in [json.dumps(call("GET", path, root=NATIVE)[1]), raw("GET", f"/sandboxes/{sandbox.sandbox_id}")[2].decode()]:
                assert "sesame" not in text
            for bad in [Secret.fill("none"), "${e2b.iam.tokens.aws}", "${e2b.secrets.", f"{Secret.fill(called)}{{secret:x}}"]:
                with pytest.raises(SandboxException, match="400"):
                    sandbox.update_network(rules(bad))
        finally:
            sandbox.kill()
    finally:
        Secret.destroy(called)


async def test_secrets_of_the_asynchronous_client():
    called = name("key")
    made = await AsyncSecret.create(called, "sesame-open")
    try:
        assert (await AsyncSecret.update(called, "sesame-two")).version == 2
        assert await AsyncSecret.exists(made.secret_id)
    finally:
        assert await AsyncSecret.destroy(called) is True
