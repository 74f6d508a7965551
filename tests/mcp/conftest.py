"""Shared by the tests: sessions of `atoll mcp` on standard input and output, and requests to the server itself."""

import contextlib
import json
import os
import subprocess
import time
import urllib.request

from mcp import Client, StdioServerParameters

ENV = {name: os.environ[name] for name in ("ATOLL_URL", "ATOLL_API_KEY", "PATH", "HOME") if name in os.environ}


@contextlib.asynccontextmanager
async def session(*flags, **more):
    server = StdioServerParameters(command=os.environ["ATOLL_BIN"], args=["mcp", *flags], env=ENV)
    async with Client(server, **more) as client:
        yield client


async def call(client, tool, **arguments):
    """The structured result of a tool that must not fail."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    # The text has the same content, for clients that do not read structured content.
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def refused(client, tool, **arguments):
    """The error of a tool that must fail."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    assert result.structured_content is None
    body = result.meta["atoll/error"]
    assert result.content[0].text.startswith(f"{body['code']}: ")
    return body


async def malformed(client, tool, arguments):
    """A call whose arguments do not fit the schema. The error is a result, so that models see it, too."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error and "failed to deserialize parameters" in result.content[0].text, result


def native(method, path):
    """A request to the server itself."""
    request = urllib.request.Request(
        os.environ["ATOLL_URL"] + path,
        method=method,
        headers={"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read()
        return json.loads(text) if text else None


def sandboxes():
    return [sandbox["id"] for sandbox in native("GET", "/v1/sandboxes")["items"]]


def atoll(*arguments):
    return subprocess.run([os.environ["ATOLL_BIN"], *arguments], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def until(what, seconds=60):
    """Waits until `what` returns true."""
    end = time.monotonic() + seconds
    while True:
        got = what()
        if got or time.monotonic() > end:
            assert got, "it did not come to be"
            return got
        time.sleep(0.05)
