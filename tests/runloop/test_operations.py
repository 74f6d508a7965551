"""Every operation that the installed client can ask for is served, or refused by name. What a newer client asks for
beyond that fails here, with what it sends and reads."""

import inspect
import pathlib
import re
import typing

import runloop_api_client
from conftest import VERSION, raw

ROOT = pathlib.Path(runloop_api_client.__file__).parent
CALL = re.compile(r"""self\._(get|post|delete|put|patch|get_api_list)\(\s*f?(?:path_template\(\s*)?["']([^"']+)["']""")
ELSEWHERE = re.compile(r"""["'](/(?:v1|pty)/[^"']+)["']""")
# What is refused, and why: docs/runloop.md has the same, row by row.
REFUSED = re.compile(
    r"/v1/(accounts|agents|apikeys|axons|benchmark_jobs|benchmark_runs|benchmarks|gateway-configs|mcp-configs|"
    r"network-policies|objects|restricted_keys|scenarios|secrets)(/|$)|/pty/|"
    r"/v1/devboxes/(\{id\}/create_(ssh_key|pty_tunnel|gateway_token|mcp_token)|evictions/watch)$"
)
# Answers that say more than that there is no such route.
KNOWN = {400, 401, 403, 404, 408, 200, 422}


def operations():
    """(method, path) of every call in the client's source."""
    found = set()
    for file in (ROOT / "resources").rglob("*.py"):
        text = file.read_text()
        for method, path in CALL.findall(text):
            method = "GET" if method.startswith("get") else method.upper()
            found.add((method, re.sub(r"\{[^}]*id\}", "{id}", path)))
        # Long polls and streams hand the path to helpers.
        for path in ELSEWHERE.findall(text):
            path = re.sub(r"\{[^}]*id\}", "{id}", path)
            if not any(path == known for _, known in found):
                found.add(("GET" if path.endswith("_updates") or "/sse" in path else "POST", path))
    return sorted(found)


def test_every_operation_is_known():
    found = operations()
    assert len(found) >= 60, found
    new = []
    for method, path in found:
        if REFUSED.match(path):
            expected = "not supported by this server"
        else:
            expected = None
        url = re.sub(r"\{[^}]*\}", "dbx_none", path)
        status, _, body = raw(method, url, None if method == "GET" else b"{}")
        text = body.decode(errors="replace")
        if "no route '" in text or status == 405 or status >= 500:
            new.append(f"{method} {path}: not served ({status})")
        elif expected and expected not in text:
            new.append(f"{method} {path}: is in the list of what is refused, and answers {status}")
        elif status not in KNOWN:
            new.append(f"{method} {path}: {status} {text[:100]}")
    assert not new, "\n".join(new)


# The models that answers are read into, and what must be in them.
READ = {
    "DevboxView": ("GET", "/v1/devboxes/{box}"),
    "DevboxListView": ("GET", "/v1/devboxes"),
    "DevboxSnapshotListView": ("GET", "/v1/devboxes/disk_snapshots"),
    "BlueprintListView": ("GET", "/v1/blueprints"),
    "BlueprintPreviewView": ("POST", "/v1/blueprints/preview", {"name": "a", "dockerfile": "FROM host"}),
    "DevboxAsyncExecutionDetailView": ("POST", "/v1/devboxes/{box}/execute_async", {"command": "true"}),
    "DevboxExecutionDetailView": ("POST", "/v1/devboxes/{box}/execute_sync", {"command": "true"}),
    "DevboxResourceUsageView": ("GET", "/v1/devboxes/{box}/usage"),
    "DevboxSnapshotView": ("POST", "/v1/devboxes/{box}/snapshot_disk", {}),
    "TunnelView": ("POST", "/v1/devboxes/{box}/enable_tunnel", {}),
}


def required(model):
    """Names and types of the fields that a model must have."""
    return {
        field.alias or name: field.annotation for name, field in model.model_fields.items() if field.is_required()
    }


def fits(value, kind):
    """Whether a JSON value has a type of the client's, as far as types go."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return value in args
    if origin in (list, tuple):
        return isinstance(value, list) and all(fits(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict)
    if origin is typing.Union:
        return any(fits(value, arg) for arg in args)
    if inspect.isclass(kind) and hasattr(kind, "model_fields"):
        return isinstance(value, dict) and all(name in value and fits(value[name], of) for name, of in required(kind).items())
    if kind in (str, int, float, bool, dict, list):
        return isinstance(value, (int, float) if kind is float else kind)
    return True


def test_answers_have_what_the_models_need(own):
    from runloop_api_client import types
    import json

    own.snapshot_disk_async()
    for name, (method, path, *body) in READ.items():
        status, _, text = raw(method, path.format(box=own.id), *body)
        assert status == 200, (name, text)
        answer, model = json.loads(text), getattr(types, name)
        for field, kind in required(model).items():
            assert field in answer, f"{name}.{field} is missing"
            assert fits(answer[field], kind), f"{name}.{field}: {answer[field]!r} is no {kind}"
