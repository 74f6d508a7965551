"""Sessions over streamable HTTP, each with its own key."""

import contextlib
import http.client
import json
import os
import subprocess
import urllib.error
import urllib.request

import httpx2
import pytest
from conftest import ENV, atoll, call, refused, sandboxes, until
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


SERVER = os.environ["ATOLL_URL"] + "/mcp"


@pytest.fixture(scope="module", params=["server", "program"])
def address(request):
    """The address of MCP: the server's own port, or that of `atoll mcp --listen`, whose wrong key it must not use."""
    if request.param == "server":
        yield SERVER
        return
    program = subprocess.Popen(
        [os.environ["ATOLL_BIN"], "mcp", "--listen", "127.0.0.1:0"],
        env={**ENV, "ATOLL_API_KEY": "wrong"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = program.stderr.readline()
        assert line.startswith("serving http://127.0.0.1:"), line
        yield line.split()[1]
    finally:
        program.terminate()
        program.wait(60)


@contextlib.asynccontextmanager
async def session(address, key):
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        async with Client(streamable_http_client(address, http_client=http)) as client:
            yield client


def post(address, body, **headers):
    """Sends a raw request; returns status, headers and body."""
    request = urllib.request.Request(
        address,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


async def test_a_session(address):
    async with session(address, os.environ["ATOLL_API_KEY"]) as client:
        ran = await call(client, "run", command="echo over http")
        assert ran["stdout"] == "over http\n" and sandboxes() == [ran["sandbox"]]
        # Another session of the same key has another sandbox, and cannot name this one.
        async with session(address, os.environ["ATOLL_API_KEY"]) as other:
            assert (await refused(other, "run", command="id", sandbox=ran["sandbox"]))["code"] == "sandbox_not_found"
            assert (await call(other, "run", command="true"))["sandbox"] != ran["sandbox"]
    until(lambda: sandboxes() == [])


def test_keys(address):
    mine = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"}
    assert post(address, INITIALIZE)[0] == 401
    status, headers, _ = post(address, INITIALIZE, Authorization="Bearer wrong")
    assert status == 401 and headers["WWW-Authenticate"] == "Bearer"
    status, headers, _ = post(address, INITIALIZE, **mine)
    assert status == 200
    # A session belongs to the key that opened it.
    of_session = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "Mcp-Protocol-Version": "2025-06-18"}
    tools = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert post(address, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **of_session, **mine)[0] == 202
    assert post(address, tools, **of_session, **mine)[0] == 200
    other = atoll("key", "create", "other", "--scope", "admin")
    assert post(address, tools, **of_session, Authorization=f"Bearer {other}")[0] == 404
    assert post(address, tools, **of_session)[0] == 401


def test_pages_in_a_browser(address):
    mine = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"}
    assert post(address, INITIALIZE, Origin="https://evil.example", **mine)[0] == 403
    if address != SERVER:
        assert post(address, INITIALIZE, Host="evil.example", **mine)[0] == 403


async def test_the_address_says_what_sandboxes_are_made_of():
    key = os.environ["ATOLL_API_KEY"]
    async with session(f"{SERVER}?internet=off&max_sandboxes=1", key) as client:
        ran = await call(client, "run", command="cat /etc/resolv.conf; ls /sys/class/net")
        made = json.loads(atoll("inspect", ran["sandbox"], "--json"))
        assert made["egress"]["internet"] == "off" and made["idle_timeout_ms"] == 3600000, made
        assert (await refused(client, "create_sandbox"))["code"] == "limit_exceeded"
        # A session with another address cannot use the first session's sandbox.
        async with session(f"{SERVER}?max_sandboxes=2", key) as other:
            assert (await refused(other, "run", command="id", sandbox=ran["sandbox"]))["code"] == "sandbox_not_found"
    until(lambda: sandboxes() == [])
    mine = {"Authorization": f"Bearer {key}"}
    for query in ("tempate=x", "internet=rules", "max_sandboxes=0", "x=" + "y" * 2000):
        status, _, body = post(f"{SERVER}?{query}", INITIALIZE, **mine)
        assert (status, json.loads(body)["code"]) == (400, "invalid_argument"), body


def test_a_key_that_is_revoked_ends_what_it_has_open():
    made = json.loads(atoll("key", "create", "passing", "--scope", "manage", "--json"))
    mine = {"Authorization": f"Bearer {made['secret']}", "Mcp-Protocol-Version": "2025-06-18"}
    _, headers, _ = post(SERVER, INITIALIZE, **mine)
    mine["Mcp-Session-Id"] = headers["Mcp-Session-Id"]
    assert post(SERVER, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **mine)[0] == 202
    listening = urllib.request.Request(SERVER, headers={"Accept": "text/event-stream", **mine})
    with urllib.request.urlopen(listening, timeout=60) as stream:
        atoll("key", "rm", made["key"]["id"])
        # The stream must end or the connection must break, within the timeout of a minute.
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
            stream.read()
    assert post(SERVER, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, **mine)[0] == 401
