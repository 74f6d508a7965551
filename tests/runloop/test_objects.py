"""Objects: files that are uploaded once, and used as files of devboxes and as contexts of blueprints."""

import io
import os
import tarfile
import urllib.error
import urllib.request

import pytest
from conftest import call, new_key, newer, raw
from runloop_api_client import BadRequestError, NotFoundError


def put(url, data):
    """Uploads content to a signed address, which needs no key."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", data=data), timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def archive(files, mode="w:gz"):
    """A tar archive of text files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def test_content_is_sent_closed_and_read(sdk, client):
    object = sdk.storage_object.create(name="notes.txt", content_type="text", metadata={"a": "b c"})
    assert object.id.startswith("obj_")
    with pytest.raises(BadRequestError, match="not sent yet"):
        object.complete()
    with pytest.raises(BadRequestError, match="not completed"):
        object.download_as_text()
    object.upload_content("first")
    object.upload_content("second, and ä")
    told = object.complete()
    assert (told.state, told.size_bytes, told.metadata) == ("READ_ONLY", 14, {"a": "b c"})
    assert object.download_as_text() == "second, and ä"
    listed = client.objects.list(name="notes")
    assert [item.id for item in listed.objects] == [object.id]
    assert client.objects.list(state="UPLOADING", search=object.id).objects == []
    object.delete()
    assert client.objects.retrieve(object.id).state == "DELETED"
    with pytest.raises(NotFoundError):
        client.objects.download(object.id)


def test_pages(client):
    made = [client.objects.create(name=f"page-{n}", content_type="binary").id for n in range(3)]
    page = client.objects.list(name="page-", limit=2)
    rest = page.get_next_page()
    assert sorted(item.id for item in page.objects + rest.objects) == sorted(made)
    assert not rest.has_more
    for id in made:
        client.objects.delete(id)


def test_only_an_address_that_was_given_is_good(sdk, client):
    status, made = call("POST", "/v1/objects", {"name": "mine", "content_type": "binary"})
    assert status == 200
    url = made["upload_url"]
    signature = url.rsplit("signature=", 1)[1]
    other = "0" * 64 if signature[0] != "0" else "1" * 64
    assert put(url.replace(signature, other), b"theirs") == 403
    assert put(url.replace(made["id"], "obj_" + "0" * 24), b"theirs") == 403
    assert put(url + "&until=99999999999999", b"theirs") == 403
    assert put(url, b"mine") == 200
    client.objects.complete(made["id"])
    assert put(url, b"late") == 400
    read = client.objects.download(made["id"], duration_seconds=60).download_url
    assert urllib.request.urlopen(read, timeout=60).read() == b"mine"
    for bad in (read.replace("until=", "until=9"), read.replace(made["id"], "obj_..%2f..%2fetc")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(bad, timeout=60)
        assert refused.value.code == 403
    # Another key does not find the object. Addresses stop working when the key that made the object is deleted.
    key = new_key("manage")
    for method, path in (("GET", ""), ("GET", "/download"), ("POST", "/complete"), ("POST", "/delete")):
        assert raw(method, f"/v1/objects/{made['id']}{path}", key=key)[0] == 404
    assert made["id"] not in str(call("GET", "/v1/objects", key=key))
    client.objects.delete(made["id"])


def test_what_is_wrong_is_said(client):
    for body in ({"name": "", "content_type": "text"}, {"name": "x", "content_type": "zip"}, {"name": "x" * 300, "content_type": "text"}):
        status, told = call("POST", "/v1/objects", body)
        assert status == 400 and told["message"], body
    with pytest.raises(NotFoundError):
        client.objects.retrieve("obj_../../../etc/passwd")


@newer
def test_a_devbox_has_its_files(sdk):
    text = sdk.storage_object.upload_from_text("hello\n", name="hello.txt")
    bytes = archive({"bin/greet": "#!/bin/sh\necho greetings\n", "data/x": "1"})
    tools = sdk.storage_object.upload_from_bytes(bytes, name="tools.tgz", content_type="tgz")
    mounts = [
        {"type": "object_mount", "object_id": text.id, "object_path": "/home/user/in/hello.txt"},
        {"type": "object_mount", "object_id": tools.id, "object_path": "/home/user/tools"},
    ]
    with sdk.devbox.create(mounts=mounts) as devbox:
        assert devbox.file.read(file_path="in/hello.txt") == "hello\n"
        assert devbox.cmd.exec("tools/bin/greet; cat tools/data/x").stdout() == "greetings\n1"
        assert devbox.cmd.exec("stat -c %U tools/bin/greet; ls -A /tmp | grep obj_").stdout() == "user\n"
    with pytest.raises(NotFoundError):
        sdk.devbox.create(mounts=[{"type": "object_mount", "object_id": "obj_none", "object_path": "/x"}])
    for object in (text, tools):
        object.delete()


@newer
def test_a_blueprint_copies_from_one(sdk, client, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.sh").write_text("echo from the context\n")
    context = sdk.storage_object.upload_from_dir(tmp_path, name="context")
    dockerfile = f"FROM {os.environ.get('RUNLOOP_TEST_IMAGE', 'host')}\nCOPY app /opt/app\n"
    blueprint = sdk.blueprint.create(name="with-files", dockerfile=dockerfile, build_context=context.as_build_context())
    with sdk.devbox.create_from_blueprint_id(blueprint.id) as devbox:
        assert devbox.cmd.exec("sh /opt/app/main.sh").stdout() == "from the context\n"
    blueprint.delete()
    with pytest.raises(BadRequestError, match="build_context"):
        client.blueprints.create(name="without-files", dockerfile=dockerfile)
    context.delete()
