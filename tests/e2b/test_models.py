"""Calls each operation that the server serves as the installed client would: each answer must have the fields that
the client's generated models need, of the right types. A new operation of a newer client fails here by its name."""

import importlib
import inspect
import json
import os
import pkgutil
import re
import types
import typing
import urllib.parse
import urllib.request
import uuid

import attrs
import e2b.api.client.api
import e2b.volume.client.api
import httpx
from conftest import call, raw, until

ASKS = re.compile(r'"method": "(\w+)",\s+"url": f?"([^"]+)"')

def operations(package):
    """Every operation of a generated package, `METHOD /path`, with the module that reads its answers."""
    found = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.ispkg:
            there = importlib.import_module(module.name)
            method, path = ASKS.search(inspect.getsource(there)).groups()
            found[f"{method.upper()} {path}"] = there
    return found


def faults(value, kind, names, where):
    """Yields why a value that the client parsed is not of its model's type. The client itself checks no types."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        each = [list(faults(value, arg, names, where)) for arg in args]
        if all(each):
            yield from max(each, key=len)
    elif kind is typing.Any or isinstance(kind, typing.TypeVar):
        pass
    elif origin is list:
        if isinstance(value, list):
            for number, item in enumerate(value):
                yield from faults(item, args[0], names, f"{where}[{number}]")
        else:
            yield f"{where}: {value!r} is no list"
    elif origin is dict:
        for name, item in value.items() if isinstance(value, dict) else ():
            yield from faults(item, args[1], names, f"{where}.{name}")
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no object"
    elif kind is typing.BinaryIO:
        if not hasattr(value, "read"):
            yield f"{where}: {value!r} is no file"
    elif type(value) is bool and kind is not bool or not isinstance(value, (int, float) if kind is float else kind):
        yield f"{where}: {value!r} is no {getattr(kind, '__name__', kind)}"
    elif attrs.has(kind):
        hints = typing.get_type_hints(kind, names)
        for field in attrs.fields(kind):
            yield from faults(getattr(value, field.name), hints[field.name], names, f"{where}.{field.name}")


class Client:
    """Sends the requests of a generated package, and notes the answers that its models would reject."""

    def __init__(self, package, root, token=None):
        self.operations, self.root, self.token = operations(package), root, token
        base = package.__name__.removesuffix(".api")
        self.names = vars(importlib.import_module(f"{base}.models")) | {"Unset": importlib.import_module(f"{base}.types").Unset}
        self.strict = importlib.import_module(f"{base}.client").Client(base_url="", raise_on_unexpected_status=True)
        self.asked, self.faults = set(), []

    def __call__(self, operation, *path, body=None, wants=range(200, 300), **query):
        """Calls one operation; `path` fills the parameters of its path. Returns the answer."""
        assert operation in self.operations, f"the client does not ask {operation} any more"
        self.asked.add(operation)
        method, url = operation.split()
        path = iter(path)
        url = re.sub(r"\{[^}]*\}", lambda _: urllib.parse.quote(str(next(path)), safe=""), url)
        url += f"?{urllib.parse.urlencode(query)}" if query else ""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        status, _, text = raw(method, url, body, headers=headers, root=self.root)
        assert status in wants, f"{operation}: {status} {text[:300]}"
        try:
            read = self.operations[operation]._parse_response(client=self.strict, response=httpx.Response(status, content=text))
        except Exception as error:  # noqa: BLE001 - generated parsers raise exceptions of many types
            self.faults.append(f"{operation} {status}: the client cannot read it: {error!r} in {text[:200]}")
            return json.loads(text)
        for one in read if isinstance(read, list) else [read]:
            if attrs.has(type(one)):
                self.faults += faults(one, type(one), self.names, f"{operation} {status}")
        # Files are not JSON.
        return json.loads(text) if attrs.has(type(read)) and not hasattr(read, "payload") or isinstance(read, list) else text

    def complete(self):
        """Checks that the client's models would accept every answer, and that every operation was called."""
        assert not self.faults, "\n".join(self.faults)
        new = set(self.operations) - self.asked
        assert not new, "not asked here: a newer client asks for more\n" + "\n".join(sorted(new))


def name(what):
    return f"e2b-test-{what}-{uuid.uuid4().hex[:8]}"


def sandboxes(ask):
    given = {"timeout": 300, "metadata": {"a": "b"}, "envVars": {"C": "d"}}
    old = ask("POST /sandboxes", body={"templateID": "base", **given})["sandboxID"]
    ask("DELETE /sandboxes/{sandbox_id}", old)
    volume = ask("POST /volumes", body={"name": name("vol")})
    mounts = [{"name": volume["name"], "path": "/mnt/vol"}]
    network = {"denyOut": ["8.8.8.8"]}
    box = ask("POST /v2/sandboxes", body={"templateID": "base", "volumeMounts": mounts, "network": network, **given})["sandboxID"]
    ask("GET /sandboxes/{sandbox_id}", box)
    ask("GET /sandboxes/{sandbox_id}", "none", wants=[404])
    ask("GET /sandboxes")
    ask("GET /v2/sandboxes", limit=10)
    ask("GET /sandboxes/metrics", sandbox_ids=box)
    ask("GET /sandboxes/{sandbox_id}/metrics", box)
    ask("GET /sandboxes/{sandbox_id}/logs", box)
    ask("GET /v2/sandboxes/{sandbox_id}/logs", box)
    ask("PUT /sandboxes/{sandbox_id}/network", box, body={"denyOut": ["1.1.1.1"]})
    ask("POST /sandboxes/{sandbox_id}/timeout", box, body={"timeout": 200})
    ask("POST /sandboxes/{sandbox_id}/refreshes", box, body={"duration": 200})
    ask("POST /sandboxes/{sandbox_id}/connect", box, body={"timeout": 300})
    ask("POST /v2/sandboxes/{sandbox_id}/connect", box, body={"timeout": 300})
    for child in ask("POST /sandboxes/{sandbox_id}/fork", box, body={"count": 2, "timeout": 60}):
        ask("DELETE /sandboxes/{sandbox_id}", child["sandbox"]["sandboxID"])
    taken = ask("POST /sandboxes/{sandbox_id}/snapshots", box, body={"name": name("snap")})["snapshotID"]
    ask("GET /snapshots", sandboxID=box)
    ask("DELETE /templates/{template_id}", taken)
    ask("POST /sandboxes/{sandbox_id}/pause", box, body={})
    ask("POST /sandboxes/{sandbox_id}/pause", box, body={}, wants=[409])
    ask("GET /sandboxes/{sandbox_id}", box)
    ask("GET /v2/sandboxes", state="paused")
    ask("POST /sandboxes/{sandbox_id}/resume", box, body={"timeout": 300})
    ask("DELETE /sandboxes/{sandbox_id}", box)
    ask("GET /volumes")
    ask("GET /volumes/{volume_id}", volume["volumeID"])
    ask("DELETE /volumes/{volume_id}", volume["volumeID"])


def secrets(ask):
    made = ask("POST /secrets", body={"name": name("secret"), "value": "a value", "metadata": {"a": "b"}})
    secret = made["secretID"]
    ask("GET /secrets")
    ask("GET /secrets/{secret_id}", secret)
    ask("POST /secrets/{secret_id}", secret, body={"value": "another"})
    ask("DELETE /secrets/{secret_id}", secret)
    ask("GET /secrets/{secret_id}", secret, wants=[404])


def templates(ask):
    wanted = name("template")
    order = ask("POST /v3/templates", body={"name": wanted, "tags": ["one"], "cpuCount": 1, "memoryMB": 512})
    template, build = order["templateID"], order["buildID"]
    ask("GET /templates/{template_id}/files/{hash_}", template, "0" * 64)
    steps = [{"type": "RUN", "args": ["echo built"]}]
    ask("POST /v2/templates/{template_id}/builds/{build_id}", template, build, body={"fromImage": "host", "steps": steps})
    state = lambda: ask("GET /templates/{template_id}/builds/{build_id}/status", template, build, logsOffset=0)
    until(lambda: state()["status"] == "ready")
    ask("GET /templates/{template_id}/builds/{build_id}/logs", template, build)
    ask("GET /templates/aliases/{alias}", wanted)
    ask("GET /templates/aliases/{alias}", "no-such-template", wants=[404])
    ask("GET /templates")
    ask("GET /v2/templates")
    ask("GET /default-templates")
    ask("GET /templates/{template_id}", template)
    ask("PATCH /templates/{template_id}", template, body={"public": False})
    ask("PATCH /v2/templates/{template_id}", template, body={"public": False})
    ask("POST /templates/tags", body={"target": f"{wanted}:one", "tags": ["two"]})
    ask("GET /templates/{template_id}/tags", template)
    ask("GET /templates/{template_id}/tags/count", template)
    ask("GET /templates/{template_id}/tags/exists", template, tag="two")
    ask("GET /templates/{template_id}/tags/groups", template)
    ask("GET /templates/{template_id}/tags/{tag}/assignments", template, "two")
    ask("DELETE /templates/tags", body={"name": wanted, "tags": ["two"]})
    ask("DELETE /templates/{template_id}", template)


def test_the_control_plane():
    ask = Client(e2b.api.client.api, os.environ["E2B_API_URL"])
    for part in (sandboxes, secrets, templates):
        part(ask)
    ask.complete()


def test_volumes():
    status, made = call("POST", "/volumes", {"name": name("content")})
    assert status == 201
    volume = made["volumeID"]
    ask = Client(e2b.volume.client.api, os.environ["E2B_VOLUME_API_URL"], made["token"])
    ask("POST /volumecontent/{volume_id}/dir", volume, path="/deep")
    ask("PUT /volumecontent/{volume_id}/file", volume, path="/deep/file", body=b"content")
    assert ask("GET /volumecontent/{volume_id}/file", volume, path="/deep/file") == b"content"
    ask("GET /volumecontent/{volume_id}/dir", volume, path="/")
    ask("GET /volumecontent/{volume_id}/path", volume, path="/deep/file")
    ask("PATCH /volumecontent/{volume_id}/path", volume, path="/deep/file", body={"mode": 0o600})
    ask("DELETE /volumecontent/{volume_id}/path", volume, path="/deep")
    ask.complete()
    assert call("DELETE", f"/volumes/{volume}")[0] == 204
