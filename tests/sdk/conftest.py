"""Shared by the Python tests: sandboxes of the server in ATOLL_URL, deleted afterwards."""

import time

import pytest
from atoll import AsyncAtoll, Atoll


@pytest.fixture(scope="session")
def client():
    with Atoll() as client:
        yield client


@pytest.fixture(scope="module")
def box(client):
    """A sandbox that the module's tests share. They do not disturb each other."""
    with client.sandboxes.create(labels={"for": "a module"}) as sandbox:
        yield sandbox


@pytest.fixture
def own(client):
    """A sandbox for one test alone."""
    with client.sandboxes.create() as sandbox:
        yield sandbox


@pytest.fixture
async def aclient():
    async with AsyncAtoll() as client:
        yield client


@pytest.fixture
async def abox(aclient):
    async with await aclient.sandboxes.create() as sandbox:
        yield sandbox


def until(what, seconds=60):
    """Waits until `what` returns true."""
    end = time.monotonic() + seconds
    while not (got := what()):
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)
    return got
