"""Shared by the Python tests: sandboxes of the server in MODAL_SERVER_URL, deleted afterwards, and raw calls."""

import importlib.metadata
import json
import os
import subprocess
import time
import urllib.request

import modal
import pytest

VERSION = tuple(int(part) for part in importlib.metadata.version("modal").split(".")[:2])


def since(*version):
    """Marks a test of a feature that older clients do not have."""
    return pytest.mark.skipif(VERSION < version, reason=f"modal {'.'.join(map(str, version))} and newer")


def before(*version):
    """Marks a test of a feature that newer clients do not have any more."""
    return pytest.mark.skipif(VERSION >= version, reason=f"before modal {'.'.join(map(str, version))}")


def until(what, seconds=30):
    """Waits until `what` returns true."""
    end = time.monotonic() + seconds
    while True:
        got = what()
        if got or time.monotonic() > end:
            assert got, "it did not come to be"
            return got
        time.sleep(0.05)


def native(path):
    """Gets the answer of the native API for a path."""
    request = urllib.request.Request(
        os.environ["ATOLL_URL"] + path, headers={"Authorization": "Bearer " + os.environ["ATOLL_API_KEY"]}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def atoll(*arguments):
    """Runs Atoll's own program."""
    done = subprocess.run([os.environ["ATOLL_BIN"], *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def set_secret(name, value, *arguments):
    """Sets a secret of the server."""
    command = [os.environ["ATOLL_BIN"], "secret", "set", name, *arguments]
    subprocess.run(command, input=value + "\n", capture_output=True, text=True, timeout=60, check=True)


def native_id(sandbox):
    """The sandbox's id in the native API."""
    return "sb" + sandbox.object_id.removeprefix("sb-").removeprefix("V1")


def run(sandbox, *command, **more):
    """Runs a command to its end: exit code and output."""
    process = sandbox.exec(*command, **more)
    output = process.stdout.read()
    return process.wait(), output


@pytest.fixture(scope="session")
def app():
    return modal.App.lookup("tests", create_if_missing=True)


@pytest.fixture(scope="module")
def box(app):
    """A sandbox that the module's tests share. They do not disturb each other."""
    sandbox = modal.Sandbox.create(app=app, timeout=600)
    yield sandbox
    sandbox.terminate()


@pytest.fixture
def make(app):
    """Makes sandboxes for one test alone."""
    made = []

    def make(*arguments, **more):
        made.append(modal.Sandbox.create(*arguments, **{"app": app, "timeout": 300, **more}))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.terminate()
