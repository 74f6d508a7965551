"""Shared by the Python tests: sandboxes of the server in E2B_API_URL, deleted afterwards, and raw requests."""

import importlib.metadata
import json
import os
import time
import urllib.error
import urllib.request

import pytest
from e2b import AsyncSandbox, Sandbox

VERSION = tuple(int(part) for part in importlib.metadata.version("e2b").split(".")[:3])


def since(*version):
    """Marks a test of a feature that older clients do not have."""
    return pytest.mark.skipif(VERSION < version, reason=f"e2b {'.'.join(map(str, version))} and newer")


# Marks a test of a feature that behaves differently in virtual machines.
containers_only = pytest.mark.skipif("IMAGE" in os.environ, reason="containers only")


def raw(method, path, body=None, key=None, headers=None, root=None):
    """Sends a raw request; returns status, headers and body."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        (root or os.environ["E2B_API_URL"]) + path,
        method=method,
        data=data,
        headers={"X-API-Key": key or os.environ["E2B_API_KEY"], "Content-Type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def call(method, path, body=None, **more):
    """The same, with a JSON body and answer."""
    status, _, text = raw(method, path, body, **more)
    return status, json.loads(text) if text else None


def data_plane(sandbox, method, path, body=None, port=49983, headers=None):
    """A request to the data plane, as the client would send it, with `headers` added."""
    named = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": str(port), **(headers or {})}
    return raw(method, path, body, headers=named, root=os.environ["E2B_SANDBOX_URL"])


def until(what, seconds=30):
    """Waits until `what` returns true."""
    end = time.monotonic() + seconds
    while True:
        got = what()
        if got or time.monotonic() > end:
            assert got, "it did not come to be"
            return got
        time.sleep(0.05)


@pytest.fixture(scope="module")
def box():
    """A sandbox that the module's tests share. They do not disturb each other."""
    sandbox = Sandbox.create(timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def own():
    """A sandbox for one test alone."""
    sandbox = Sandbox.create(timeout=300, metadata={"for": "one test"})
    yield sandbox
    sandbox.kill()


@pytest.fixture
async def abox():
    """The same, with the asynchronous client."""
    sandbox = await AsyncSandbox.create(timeout=300)
    yield sandbox
    await sandbox.kill()
