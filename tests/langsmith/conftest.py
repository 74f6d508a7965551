"""What the Python tests share: clients of the server in LANGSMITH_ENDPOINT, and sandboxes that go away."""

import importlib.metadata
import os
import uuid

import pytest

VERSION = tuple(int(part) for part in importlib.metadata.version("langsmith").split(".")[:3] if part.isdigit())


def since(*version):
    """Marks a test of something that older clients do not have."""
    return pytest.mark.skipif(VERSION < version, reason=f"langsmith {'.'.join(map(str, version))} and newer")


def endpoint():
    return os.environ["LANGSMITH_ENDPOINT"]


@pytest.fixture(scope="session")
def client():
    from langsmith.sandbox import SandboxClient

    client = SandboxClient()
    yield client
    client.close()


@pytest.fixture(scope="module")
def box(client):
    """A sandbox of the module's tests. They do not disturb each other."""
    box = client.create_sandbox()
    yield box
    client.delete_sandbox(box.name)


@pytest.fixture
def name():
    return "t-" + uuid.uuid4().hex[:12]
