"""Shared by the Python tests: clients of the server in LANGSMITH_ENDPOINT, and sandboxes, deleted afterwards."""

import importlib.metadata
import json
import os
import time
import urllib.error
import urllib.request
import uuid

import pytest

VERSION = tuple(int(part) for part in importlib.metadata.version("langsmith").split(".")[:3] if part.isdigit())


def since(*version):
    """Marks a test of a feature that older clients do not have."""
    return pytest.mark.skipif(VERSION < version, reason=f"langsmith {'.'.join(map(str, version))} and newer")


# Marks a test of a feature that virtual machines do not have.
containers_only = pytest.mark.skipif("IMAGE" in os.environ, reason="containers only")


def endpoint():
    return os.environ["LANGSMITH_ENDPOINT"]


def raw(method, path, body=None, key=None, header="X-Api-Key", root=None):
    """Sends a raw request; returns status and JSON."""
    request = urllib.request.Request(
        (root or endpoint()) + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={header: key or os.environ["LANGSMITH_API_KEY"], "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
            return response.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def native(method, path, body=None):
    """The same with Atoll's own API, whose answers must agree."""
    status, answer = raw(method, path, body, root=os.environ["ATOLL_URL"])
    assert status < 300, answer
    return answer


def until(what, check, seconds=60):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="session")
def client():
    from langsmith.sandbox import SandboxClient

    client = SandboxClient()
    yield client
    client.close()


@pytest.fixture(scope="module")
def box(client):
    """A sandbox that the module's tests share. They do not disturb each other."""
    box = client.create_sandbox()
    yield box
    client.delete_sandbox(box.name)


@pytest.fixture
def name():
    return "t-" + uuid.uuid4().hex[:12]
