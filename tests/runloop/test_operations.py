"""The server serves every operation that the installed client can call, or refuses it by name. A new operation of a
newer client fails here."""

import pathlib
import re

import runloop_api_client
from conftest import raw

ROOT = pathlib.Path(runloop_api_client.__file__).parent
CALL = re.compile(r"""self\._(get|post|delete|put|patch|get_api_list)\(\s*f?(?:path_template\(\s*)?["']([^"']+)["']""")
ELSEWHERE = re.compile(r"""["'](/(?:v1|pty)/[^"']+)["']""")
# The operations that the server refuses. docs/runloop.md lists them with the reasons, row by row.
REFUSED = re.compile(
    r"/v1/(accounts|agents/(list_public|devbox_counts)|apikeys|axons|benchmark_jobs|benchmark_runs|benchmarks|mcp-configs|"
    r"restricted_keys|scenarios)(/|$)|/pty/|"
    r"/v1/devboxes/(\{id\}/create_(pty_tunnel|gateway_token|mcp_token)|evictions/watch)$"
)
# Statuses of routes that exist.
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
