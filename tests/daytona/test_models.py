"""Calls each operation that the server serves as the installed client would: each answer must have the fields that
the client's generated models need, of the right types. An operation that is served and not called here fails by its
name."""

import os
import uuid

import pytest
from conftest import since
from strict import Client
from test_wire import NOT_FOR_USERS, REFUSED, UNSERVED

pytestmark = since(0, 226)


def name(what):
    return f"{what}-{uuid.uuid4().hex[:10]}"


def sandboxes(ask):
    volume = ask("POST /volumes", body={"name": name("vol")})
    mounts = [{"volumeId": volume["id"], "mountPath": "/mnt/shared"}]
    told = {"name": name("box"), "labels": {"a": "b"}, "env": {"C": "d"}, "volumes": mounts}
    box = ask("POST /sandbox", body=told)["id"]
    ask("GET /sandbox/{sandboxIdOrName}", box)
    ask("GET /sandbox", limit=1)
    ask("PUT /sandbox/{sandboxIdOrName}/labels", box, body={"labels": {"e": "f"}})
    ask("POST /sandbox/{sandboxIdOrName}/resize", box, body={"cpu": 1, "memory": 1})
    ask("POST /sandbox/{sandboxIdOrName}/autostop/{interval}", box, 5)
    ask("POST /sandbox/{sandboxIdOrName}/autopause/{interval}", box, 5)
    ask("POST /sandbox/{sandboxIdOrName}/autoarchive/{interval}", box, 60)
    ask("POST /sandbox/{sandboxIdOrName}/autodelete/{interval}", box, 60)
    ask("POST /sandbox/{sandboxIdOrName}/ttl/{ttlMinutes}", box, 60)
    ask("POST /sandbox/{sandboxIdOrName}/network-settings", box, body={"networkAllowList": "8.8.8.0/24"})
    ask("POST /sandbox/{sandboxId}/last-activity", box)
    ports(ask, box)
    child = ask("POST /sandbox/{sandboxIdOrName}/fork", box, body={"name": name("fork")})["id"]
    ask("DELETE /sandbox/{sandboxIdOrName}", child)
    taken = name("snap")
    ask("POST /sandbox/{sandboxIdOrName}/snapshot", box, body={"name": taken})
    ask("GET /snapshots/{id}", taken)
    ask("DELETE /snapshots/{id}", taken)
    ask("POST /sandbox/{sandboxIdOrName}/pause", box)
    ask("POST /sandbox/{sandboxIdOrName}/start", box)
    ask("POST /sandbox/{sandboxIdOrName}/stop", box)
    ask("POST /sandbox/{sandboxIdOrName}/archive", box)
    ask("POST /sandbox/{sandboxIdOrName}/recover", box)
    ask("GET /volumes")
    ask("GET /volumes/{volumeId}", volume["id"])
    ask("GET /volumes/by-name/{name}", volume["name"])
    ask("DELETE /volumes/{volumeId}", volume["id"], wants=[409])
    ask("DELETE /sandbox/{sandboxIdOrName}", box)
    ask("DELETE /volumes/{volumeId}", volume["id"])


def ports(ask, box):
    ask("GET /sandbox/{sandboxId}/toolbox-proxy-url", box)
    ask("GET /sandbox/{sandboxId}/signing-key", box)
    ask("POST /sandbox/{sandboxId}/signing-key/rotate", box)
    ask("POST /sandbox/{sandboxIdOrName}/public/{isPublic}", box, "true")
    ask("GET /sandbox/{sandboxIdOrName}/ports/{port}/preview-url", box, 80)
    signed = ask("GET /sandbox/{sandboxIdOrName}/ports/{port}/signed-preview-url", box, 80, expiresInSeconds=60)
    ask("POST /sandbox/{sandboxIdOrName}/ports/{port}/signed-preview-url/{token}/expire", box, 80, signed["token"])
    token = ask("POST /sandbox/{sandboxIdOrName}/ssh-access", box, expiresInMinutes=5)["token"]
    ask("GET /sandbox/ssh-access/validate", token=token)
    ask("DELETE /sandbox/{sandboxIdOrName}/ssh-access", box, token=token)


def snapshots(ask):
    built = name("built")
    ask("POST /snapshots", body={"name": built, "imageName": "host"})
    ask("GET /snapshots", limit=10)
    ask("GET /snapshots/{id}/build-logs-url", built)
    ask("GET /snapshots/{id}/build-logs", built, follow="true")
    ask("GET /snapshots/{id}", built)
    ask("POST /snapshots/{id}/activate", built)
    ask("DELETE /snapshots/{id}", built)


def pools(ask):
    made = ask("POST /warm-pools", body={"snapshot": "daytona", "pool": 1})
    ask("GET /warm-pools")
    ask("PATCH /warm-pools/{id}", made["id"], body={"pool": 2})
    ask("DELETE /warm-pools/{id}", made["id"])


def around(ask):
    ask("GET /config")
    ask("GET /health")
    ask("GET /health/ready")
    if "POST /secret" in ask.operations:
        secrets(ask)
    if "POST /warm-pools" in ask.operations:
        pools(ask)


def secrets(ask):
    made = ask("POST /secret", body={"name": "of-the-models", "value": "a value of nobody", "hosts": ["a.com"]})
    ask("GET /secret")
    ask("GET /secret/paginated", limit=1)
    ask("GET /secret/{secretId}", made["id"])
    ask("PATCH /secret/{secretId}", made["id"], body={"description": "why"})
    sandbox = ask("POST /sandbox", body={"secrets": [{"TOKEN": "of-the-models"}]})
    ask("PUT /sandbox/{sandboxIdOrName}/secrets", sandbox["id"], body={"secrets": []})
    ask("DELETE /sandbox/{sandboxIdOrName}", sandbox["id"])
    ask("DELETE /secret/{secretId}", made["id"])


def processes(ask):
    ask("GET /user-home-dir")
    ask("GET /work-dir")
    ask("GET /version")
    ask("GET /system/metrics")
    ask("GET /port")
    ask("GET /port/{port}/in-use", 9)
    ask("POST /env", body={"set": {"A": "b"}})
    ask("POST /process/execute", body={"command": "echo out"})
    ask("POST /process/execute", body={}, wants=[400])
    ask("POST /process/code-run", body={"code": "print(6 * 7)", "language": "python"})
    ask("POST /process/session", body={"sessionId": "s"})
    ask("POST /process/session", body={"sessionId": "s"}, wants=[409])
    ask("POST /process/session/{sessionId}/exec", "s", body={"command": "echo out; echo err >&2"})
    waits = ask("POST /process/session/{sessionId}/exec", "s", body={"command": "read line", "runAsync": True})["cmdId"]
    ask("GET /process/session")
    ask("GET /process/session/{sessionId}", "s")
    ask("GET /process/session/{sessionId}/command/{commandId}", "s", waits)
    as_json = {"Accept": "application/json"}
    ask("GET /process/session/{sessionId}/command/{commandId}/logs", "s", waits, headers=as_json)
    ask("POST /process/session/{sessionId}/command/{commandId}/input", "s", waits, body={"data": "x\n"})
    ask("DELETE /process/session/{sessionId}", "s")
    ask("GET /process/session/{sessionId}", "s", wants=[404])
    ask("POST /process/pty", body={"id": "p", "cols": 80, "rows": 24})
    ask("GET /process/pty")
    ask("GET /process/pty/{sessionId}", "p")
    ask("POST /process/pty/{sessionId}/resize", "p", body={"cols": 100, "rows": 30})
    ask("DELETE /process/pty/{sessionId}", "p")
    context = ask("POST /process/interpreter/context", body={"cwd": "/tmp"})["id"]
    ask("GET /process/interpreter/context")
    ask("DELETE /process/interpreter/context/{id}", context)


def entrypoint(ask):
    ask("GET /process/session/entrypoint")
    ask("GET /process/session/entrypoint/logs", headers={"Accept": "application/json"})


def form(*parts):
    """A multipart body of named parts, and its header."""
    said = "".join(f'--B\r\nContent-Disposition: form-data; name="{field}"{more}\r\n\r\n{text}\r\n' for field, more, text in parts)
    return {"body": f"{said}--B--\r\n".encode(), "headers": {"Content-Type": "multipart/form-data; boundary=B"}}


def files(ask):
    a_file = '; filename="a"'
    ask("POST /files/folder", path="/tmp/m", mode="755")
    ask("POST /files/upload-v2", path="/tmp/m/a", **form(("file", a_file, "one two")))
    ask("POST /files/bulk-upload", **form(("files[0].path", "", "/tmp/m/b"), ("files[0].file", a_file, "one")))
    ask("GET /files", path="/tmp/m")
    ask("GET /files/info", path="/tmp/m/a")
    ask("GET /files/info", path="/tmp/m/none", wants=[404])
    ask("GET /files/find", path="/tmp/m", pattern="one")
    ask("GET /files/search", path="/tmp/m", pattern="*a*")
    ask("POST /files/replace", body={"files": ["/tmp/m/a"], "pattern": "two", "newValue": "2"})
    ask("POST /files/permissions", path="/tmp/m/a", mode="600")
    assert ask("GET /files/download", path="/tmp/m/a") == b"one 2"
    ask("POST /files/bulk-download", body={"paths": ["/tmp/m/a"]})
    ask("POST /files/move", source="/tmp/m/a", destination="/tmp/m/c")
    ask("DELETE /files", path="/tmp/m", recursive="true")


def git(ask):
    one, two = {"path": "/tmp/g/one"}, {"path": "/tmp/g/two"}
    ask("POST /files/folder", path="/tmp/g", mode="755")
    ask("POST /git/init", body={"path": "/tmp/g/bare", "bare": True, "initial_branch": "main"})
    ask("POST /git/init", body={**one, "initial_branch": "main"})
    ask("POST /git/config/user", body={**one, "name": "Ann", "email": "ann@example.com"})
    ask("POST /git/config", body={**one, "key": "push.default", "value": "current"})
    ask("GET /git/config", path="/tmp/g/one", key="user.name")
    ask("POST /files/upload-v2", path="/tmp/g/one/a", **form(("file", '; filename="a"', "one")))
    ask("GET /git/status", **one)
    ask("POST /git/add", body={**one, "files": ["a"]})
    ask("GET /git/status", **one)
    ask("POST /git/commit", body={**one, "message": "first", "author": "Ann", "email": "ann@example.com"})
    ask("POST /git/remotes", body={**one, "name": "origin", "url": "/tmp/g/bare"})
    ask("GET /git/remotes", **one)
    ask("POST /git/push", body=one)
    ask("POST /git/clone", body={"url": "/tmp/g/bare", **two})
    ask("POST /git/pull", body=two)
    ask("GET /git/status", **two)
    ask("GET /git/history", **two)
    ask("GET /git/history", path="/tmp", wants=[404])
    ask("POST /git/branches", body={**two, "name": "other"})
    ask("POST /git/checkout", body={**two, "branch": "main"})
    ask("GET /git/branches", **two)
    ask("DELETE /git/branches", body={**two, "name": "other"})
    ask("POST /git/restore", body={**two, "files": ["a"]})
    ask("POST /git/reset", body={**two, "mode": "hard"})
    ask("POST /git/credentials", body={"host": "git.example.com", "username": "me", "password": "secret"})


def language_server(ask):
    project = {"languageId": "python", "pathToProject": "/tmp/project"}
    document = {**project, "uri": "file:///tmp/project/main.py"}
    ask("POST /lsp/start", body=project)
    ask("POST /lsp/did-open", body=document)
    ask("GET /lsp/document-symbols", **document)
    ask("GET /lsp/workspacesymbols", **project, query="Greeter")
    ask("POST /lsp/completions", body={**document, "position": {"line": 4, "character": 12}})
    ask("POST /lsp/did-close", body=document)
    ask("POST /lsp/stop", body=project)


def complete(ask, left_out):
    """Checks that the client's models would accept every answer, and that every operation was called."""
    assert not ask.faults, "\n".join(ask.faults)
    # Operations that answer with a WebSocket have no model.
    plain = {one for one, answers in ask.operations.items() if any(200 <= status < 300 for status in answers)}
    new = {one for one in plain - ask.asked if not left_out(*one.split())}
    assert not new, "served, and not asked here: a newer client asks for more\n" + "\n".join(sorted(new))


def test_the_control_plane():
    ask = Client("daytona_api_client", os.environ["DAYTONA_API_URL"])
    for part in (sandboxes, snapshots, around):
        part(ask)
    # Over http the server refuses this one: see storage.py.
    ask("GET /object-storage/push-access", wants=[200, 400])
    complete(ask, lambda method, path: (method, path) in UNSERVED or NOT_FOR_USERS.search(path) or REFUSED.search(path))


@pytest.fixture
def started(daytona):
    """A sandbox of an image with an entrypoint."""
    from daytona import CreateSandboxFromImageParams, Image

    image = Image.base("host").entrypoint(["sh", "-c", "echo begun; sleep 3600"])
    sandbox = daytona.create(CreateSandboxFromImageParams(image=image), timeout=0)
    yield sandbox
    sandbox.delete()


def test_the_toolbox(coder, started):
    ask = Client("daytona_toolbox_api_client", "")
    root = f"{os.environ['ATOLL_URL']}/daytona/toolbox"
    ask.root = f"{root}/{started.id}"
    entrypoint(ask)
    ask.root = f"{root}/{coder.id}"
    for part in (processes, files, git, language_server):
        part(ask)
    complete(ask, lambda method, path: (method, path) in UNSERVED or REFUSED.search(path))
