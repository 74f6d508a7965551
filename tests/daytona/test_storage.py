"""The storage for files of builds: the requests and keys that it accepts, and those that it refuses."""

import hashlib
import os
import re
import socket
import subprocess
import urllib.parse
import uuid

import pytest
from conftest import call
from daytona import CreateSandboxFromImageParams, DaytonaError, Image
from storage import access, archive, ask, chunks, name_of


def a_hash():
    return uuid.uuid4().hex


def new_key(scope):
    made = [os.environ["ATOLL_BIN"], "key", "create", f"s-{uuid.uuid4().hex[:8]}", "--scope", scope, "--for", "daytona"]
    return subprocess.run(made, check=True, capture_output=True, text=True).stdout.split()[-1]


def send(shown, hash, body):
    status, _, text = ask(shown, "PUT", name_of(hash), body)
    assert status == 200, text


def build(dockerfile, hashes, key=None):
    """Makes a sandbox of a Dockerfile; returns the status and the answer."""
    info = {"dockerfileContent": dockerfile, "contextHashes": hashes}
    return call("POST", "/sandbox", {"buildInfo": info}, key=key)


def content_of(box, path, key=None):
    root = os.environ["ATOLL_URL"] + "/daytona/toolbox/" + box["id"]
    status, answer = call("POST", "/process/execute", {"command": f"cat {path}"}, key=key, root=root)
    assert status == 200, answer
    return answer["result"]


def test_an_object_comes_and_is_found():
    shown, hash = access(), a_hash()
    listing = {"list-type": "2", "prefix": f"atoll/{hash}/", "max-keys": "1"}
    assert ask(shown, "HEAD", name_of(hash))[0] == 404
    assert "<KeyCount>0</KeyCount>" in ask(shown, "GET", "/contexts", query=listing)[2]
    body = archive(a=b"first")
    send(shown, hash, body)
    status, headers, _ = ask(shown, "HEAD", name_of(hash))
    assert (status, headers["Content-Length"]) == (200, str(len(body)))
    listed = ask(shown, "GET", "/contexts", query=listing)[2]
    assert f"<Key>atoll/{hash}/context.tar</Key>" in listed and "<KeyCount>1</KeyCount>" in listed


def test_parts_come_in_any_order_and_again():
    shown, hash = access(), a_hash()
    body = archive(a=os.urandom(3000))
    pieces = {1: body[:4000], 2: body[4000:]}
    began = ask(shown, "POST", name_of(hash), query={"uploads": ""})[2]
    upload = re.search("<UploadId>(.*)</UploadId>", began)[1]
    tags = {}
    for number in (2, 1, 2):
        status, headers, text = ask(
            shown, "PUT", name_of(hash), pieces[number], query={"partNumber": str(number), "uploadId": upload}
        )
        assert status == 200, text
        tags[number] = headers["ETag"]
    part = "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>"
    whole = "<C>" + "".join(part.format(number, tags[number]) for number in (1, 2)) + "</C>"
    wrong = "<C>" + part.format(1, '"' + "0" * 64 + '"') + "</C>"
    for bad in (wrong, "<C></C>", "x"):
        assert ask(shown, "POST", name_of(hash), bad.encode(), query={"uploadId": upload})[0] == 400
    assert ask(shown, "HEAD", name_of(hash))[0] == 404
    # The second time succeeds like the first: the client may have lost the first answer.
    for _ in range(2):
        status, _, text = ask(shown, "POST", name_of(hash), whole.encode(), query={"uploadId": upload})
        assert status == 200, text
    assert ask(shown, "HEAD", name_of(hash))[1]["Content-Length"] == str(len(body))
    late = {"partNumber": "1", "uploadId": upload}
    assert ask(shown, "PUT", name_of(hash), b"x", query=late)[0] == 404
    began = ask(shown, "POST", name_of(hash), query={"uploads": ""})[2]
    upload = re.search("<UploadId>(.*)</UploadId>", began)[1]
    assert ask(shown, "DELETE", name_of(hash), query={"uploadId": upload})[0] == 204


def test_what_is_not_signed_is_refused():
    shown, hash = access(), a_hash()

    def refused(**more):
        status, _, text = ask({**shown, **more.pop("shown", {})}, "PUT", name_of(hash), b"x", **more)
        assert status in (400, 403), text
        assert "<Error><Code>" in text
        assert ask(shown, "HEAD", name_of(hash))[0] == 404
        return text

    assert "SignatureDoesNotMatch" in refused(shown={"secret": "x"})
    refused(change=lambda headers: headers.pop("authorization"))
    refused(change=lambda headers: headers.pop("x-amz-security-token"))
    refused(change=lambda headers: headers.update(authorization="AWS4-HMAC-SHA256 x"))
    until, token = shown["sessionToken"].split("-", 1)
    assert "AccessDenied" in refused(shown={"sessionToken": f"{int(until) + 3_600_000}-{token}"})
    refused(shown={"sessionToken": token})
    # An API key is no session token.
    refused(shown={"sessionToken": os.environ["DAYTONA_API_KEY"]})
    assert "Mismatch" in refused(content=hashlib.sha256(b"other").hexdigest())
    assert ask(shown, "PUT", name_of(hash), b"x", content="STREAMING-UNSIGNED-PAYLOAD-TRAILER")[0] == 501


def test_bodies_in_signed_chunks():
    shown, hash = access(), a_hash()
    said = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    pieces = [b"a" * 65536, b"b" * 100, b"c"]

    def sent(damage=lambda body: body, key=None):
        def body(headers):
            return damage(chunks({**shown, **(key or {})}, pieces, headers))

        return ask(shown, "PUT", name_of(hash), body, content=said)

    for damage in [
        lambda body: body.replace(b"aaaa", b"aaab", 1),
        lambda body: body[: body.rindex(b"0;chunk")],
        lambda body: body + b"x",
        lambda body: body.replace(b"64;", b"63;", 1),
        lambda body: b"".join(pieces),
        lambda body: b"ffffffffffffffff;chunk-signature=" + b"0" * 64 + b"\r\n",
        lambda body: b"\xff" * 300,
        lambda body: b"",
    ]:
        status, _, text = sent(damage)
        assert status == 403 and "SignatureDoesNotMatch" in text, text
    assert sent(key={"secret": "another"})[0] == 403
    assert ask(shown, "HEAD", name_of(hash))[0] == 404
    status, headers, text = sent()
    assert (status, headers["etag"]) == (200, f'"{hashlib.sha256(b"".join(pieces)).hexdigest()}"'), text
    assert ask(shown, "HEAD", name_of(hash))[1]["content-length"] == str(65536 + 101)


def test_names_and_operations_of_others():
    shown, hash = access(), a_hash()
    for bad in ["/contexts/x", f"/contexts/other/{hash}/context.tar", f"/contexts/atoll/{hash}/x", "/contexts/atoll/../../x"]:
        assert ask(shown, "PUT", bad, b"x")[0] == 400, bad
    assert ask(shown, "PUT", f"/other/atoll/{hash}/context.tar", b"x")[0] == 404
    for method in ("GET", "DELETE", "PATCH"):
        assert ask(shown, method, name_of(hash))[0] == 501, method
    bad_upload = {"partNumber": "1", "uploadId": "../../../x"}
    assert ask(shown, "PUT", name_of(hash), b"x", query=bad_upload)[0] == 404
    assert ask(shown, "PUT", name_of(hash), b"x", query={"partNumber": "0", "uploadId": a_hash()})[0] == 400
    assert ask(shown, "PUT", name_of(hash), b"x", query={"partNumber": "1", "uploadId": a_hash()})[0] == 404


def test_a_body_that_is_cut_or_too_large_leaves_nothing():
    shown, hash = access(), a_hash()
    assert "EntityTooLarge" in ask(shown, "PUT", name_of(hash), bytes((64 << 20) + 1))[2]
    sent = {}
    # This sends the head of a signed request, which announces more bytes than follow.
    ask(shown, "HEAD", name_of(hash))
    ask(shown, "PUT", name_of(hash), b"x", change=lambda headers: (sent.update(headers), headers.pop("authorization")))
    url = urllib.parse.urlsplit(shown["storageUrl"] + name_of(hash))
    with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
        lines = [f"PUT {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "content-length: 100"]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\npart of it").encode())
        connection.shutdown(socket.SHUT_WR)
        assert b" 200 " not in connection.recv(1000).split(b"\r\n")[0]
    assert ask(shown, "HEAD", name_of(hash))[0] == 404


def test_archives_are_of_one_key():
    other_key, hash = new_key("manage"), a_hash()
    own, other = access(), access(other_key)
    dockerfile = "FROM host\nCOPY a /opt/a\n"
    send(own, hash, archive(a=b"own"))
    assert ask(other, "HEAD", name_of(hash))[0] == 404
    assert "<KeyCount>0" in ask(other, "GET", "/contexts", query={"prefix": f"atoll/{hash}/"})[2]
    status, answer = build(dockerfile, [hash], key=other_key)
    assert (status, "were not uploaded" in answer["message"]) == (400, True), answer
    # The other key uses the same name and the same Dockerfile, but other files.
    send(other, hash, archive(a=b"other"))
    for key, content in ((None, "own"), (other_key, "other")):
        status, box = build(dockerfile, [hash], key=key)
        assert status == 200, box
        assert content_of(box, "/opt/a", key) == content
        call("DELETE", f"/sandbox/{box['id']}", key=key)


def test_who_may_store():
    assert call("GET", "/object-storage/push-access", key=new_key("exec"))[0] == 403
    key = new_key("manage")
    shown, hash = access(key), a_hash()
    send(shown, hash, b"x")
    records = subprocess.run(
        [os.environ["ATOLL_BIN"], "key", "rm", shown["accessKey"]], capture_output=True, text=True
    )
    assert records.returncode == 0, records.stderr
    status, _, text = ask(shown, "PUT", name_of(hash), b"x")
    assert (status, "AccessDenied" in text) == (403, True)


def test_several_archives_are_one_context():
    shown, hashes = access(), [a_hash(), a_hash()]
    send(shown, hashes[0], archive(one__a=b"first"))
    send(shown, hashes[1], archive(two__b=b"second"))
    status, box = build("FROM host\nCOPY one/a two/b /opt/\n", hashes)
    assert status == 200, box
    assert content_of(box, "/opt/a /opt/b") == "firstsecond"
    call("DELETE", f"/sandbox/{box['id']}")


@pytest.mark.parametrize(
    "body",
    [b"no archive", archive(a=b"x" * 600)[:700], archive(**{"..__..__x": b"x"})],
    ids=["no archive", "cut", "outside"],
)
def test_archives_that_are_none(body):
    shown, hash = access(), a_hash()
    send(shown, hash, body)
    status, answer = build("FROM host\nCOPY a /opt/a\n", [hash])
    assert status == 400, answer


def test_hashes_that_are_none():
    for bad in ["../../x", "x", a_hash().upper() + "G", a_hash()]:
        status, answer = build("FROM host\nCOPY a /opt/a\n", [bad])
        assert status == 400 and "contextHashes" in answer["message"], answer
    assert build("FROM host\nCOPY a /opt/a\n", [a_hash()] * 300)[0] == 400


def test_the_python_sdk_is_told_what_it_needs(daytona, tmp_path):
    (tmp_path / "a").write_text("a")
    image = Image.base("host").add_local_file(str(tmp_path / "a"), "/opt/a")
    with pytest.raises(DaytonaError, match="over https only"):
        daytona.create(CreateSandboxFromImageParams(image=image))


def test_a_template_of_somebody_else():
    """The server does not use a template that another key made under the name of a build."""
    victim = new_key("manage")
    key, dockerfile = access(victim)["accessKey"], f"FROM host\nRUN mkdir -p /opt && echo {a_hash()} >/opt/own\n"
    # The name as the server makes it: a hash of the parts with their lengths.
    hasher = hashlib.sha256()
    for part in (key.encode(), dockerfile.encode()):
        hasher.update(len(part).to_bytes(8, "little") + part)
    name = f"daytona-build-{hasher.hexdigest()[:32]}"
    plant = [os.environ["ATOLL_BIN"], "template", "create", name, "--image", "host"]
    for _ in range(2):
        subprocess.run(plant, check=True, capture_output=True)
        status, box = build(dockerfile, [], key=victim)
        assert status == 200, box
        assert content_of(box, "/opt/own", victim).strip() in dockerfile
        call("DELETE", f"/sandbox/{box['id']}", key=victim)
