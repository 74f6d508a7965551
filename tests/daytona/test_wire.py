"""Calls every operation of the installed client's generated packages, by method and path, and checks that the server
knows it. Operations that are new in a newer client show here first."""

import os
import re
import urllib.error
import urllib.request

import daytona_api_client.api
import daytona_toolbox_api_client.api
from strict import operations

# Operations of the vendor's own dashboard, administration and runners: no client of users calls these.
NOT_FOR_USERS = re.compile(
    r"^/(organizations|users|runners|webhooks|audit|jobs|docker-registry|regions|shared-regions|api-keys|admin|preview"
    r"|sandbox/for-runner|workspace|toolbox|snapshots/can-cleanup-image|devcontainer)"
)
# Operations that this server does not serve. It answers with 404, as for unknown routes.
UNSERVED = {
    ("DELETE", "/sandbox/{sandboxIdOrName}/backup"),
    ("POST", "/sandbox/{sandboxIdOrName}/backup"),
    ("GET", "/sandbox/{sandboxIdOrName}/build-logs"),
    ("GET", "/sandbox/{sandboxIdOrName}/build-logs-url"),
    ("GET", "/sandbox/{sandboxIdOrName}/ancestors"),
    ("GET", "/sandbox/{sandboxIdOrName}/forks"),
    ("GET", "/sandbox/{sandboxIdOrName}/parent"),
    ("GET", "/sandbox/{sandboxId}/organization"),
    ("GET", "/sandbox/{sandboxId}/region-quota"),
    ("PUT", "/sandbox/{sandboxId}/state"),
    ("POST", "/snapshots/{id}/deactivate"),
    ("POST", "/init"),
    # Runners call this one, for the values.
    ("GET", "/sandbox/{sandboxId}/secrets"),
}
# Operations that the server refuses with 501 and a sentence.
REFUSED = re.compile(r"^/computeruse/|/telemetry(/|$)")


def status(root, method, path):
    filled = re.sub(r"\{[^}]*\}", "none", path)
    request = urllib.request.Request(
        root + filled,
        method=method,
        data=b"{}" if method != "GET" else None,
        headers={"Authorization": f"Bearer {os.environ['DAYTONA_API_KEY']}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def unserved(root, all_of_them):
    found = set()
    for method, path in sorted(one.split() for one in all_of_them):
        code, body = status(root, method, path)
        if code == 405 or (code == 404 and "this server has no route" in body):
            found.add((method, path))
        elif REFUSED.search(path):
            # The server checks the request first; the image has no desktop.
            assert code in (400, 404, 501), (method, path, code, body)
        else:
            assert code != 501 and code < 500, (method, path, code, body)
    return found


def test_the_control_plane():
    asked = {one for one in operations(daytona_api_client.api) if not NOT_FOR_USERS.search(one.split()[1])}
    assert len(asked) > 40
    missing = unserved(os.environ["DAYTONA_API_URL"], asked)
    assert missing <= UNSERVED, sorted(missing - UNSERVED)


def test_the_toolbox(box):
    asked = operations(daytona_toolbox_api_client.api)
    assert len(asked) > 80
    missing = unserved(f"{os.environ['ATOLL_URL']}/daytona/toolbox/{box.id}", asked)
    assert missing <= UNSERVED, sorted(missing - UNSERVED)
