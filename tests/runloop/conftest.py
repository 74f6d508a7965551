"""Shared by the Python tests: devboxes of the server in RUNLOOP_BASE_URL, deleted afterwards, and raw requests."""

import importlib.metadata
import json
import os
import subprocess
import time
import urllib.error
import urllib.request

import pytest

VERSION = tuple(int(part) for part in importlib.metadata.version("runloop_api_client").split(".")[:2])
# Newer clients have no named shells.
named_shells = pytest.mark.skipif(VERSION >= (2, 0), reason="runloop-api-client before 2")
newer = pytest.mark.skipif(VERSION < (2, 0), reason="runloop-api-client 2 and newer")


def raw(method, path, body=None, key=None, headers=None):
    """Sends a raw request; returns status, headers and body."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        os.environ["RUNLOOP_BASE_URL"] + path,
        method=method,
        data=data,
        headers={
            "Authorization": f"Bearer {key or os.environ['RUNLOOP_API_KEY']}",
            "Content-Type": "application/json",
            **(headers or {}),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def call(method, path, body=None, **more):
    """The same, with a JSON body and answer."""
    status, _, text = raw(method, path, body, **more)
    return status, json.loads(text) if text else None


def native(method, path, body=None):
    """A request to Atoll's own API."""
    request = urllib.request.Request(
        os.environ["ATOLL_URL"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read()
        return json.loads(text) if text else None


def new_key(scope):
    """Makes another API key."""
    command = [os.environ["ATOLL_BIN"], "key", "create", f"more-{time.monotonic_ns()}", "--scope", scope, "--for", "runloop"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def until(what, seconds=30):
    """Waits until `what` returns true."""
    end = time.monotonic() + seconds
    while True:
        got = what()
        if got or time.monotonic() > end:
            assert got, "it did not come to be"
            return got
        time.sleep(0.05)


@pytest.fixture(scope="session")
def client():
    from runloop_api_client import Runloop

    return Runloop()


@pytest.fixture(scope="session")
def sdk():
    from runloop_api_client.sdk import RunloopSDK

    return RunloopSDK()


@pytest.fixture(scope="module")
def box(sdk):
    """A devbox that the module's tests share. They do not disturb each other."""
    devbox = sdk.devbox.create(name="of the module")
    yield devbox
    devbox.shutdown()


@pytest.fixture
def own(sdk):
    """A devbox for one test alone."""
    devbox = sdk.devbox.create(metadata={"for": "one test"})
    yield devbox
    devbox.shutdown()
