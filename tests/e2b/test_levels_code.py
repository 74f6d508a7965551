"""Cells of the code interpreter at the isolation levels in TEST_LEVELS.

A template belongs to the level that it was built at, and building it in an emulated machine takes an hour. So the test
makes an image, which has no level, from the files that the build installed in a container and Debian's root file system
in TREE.
"""

import json
import os
import subprocess

import pytest
from e2b_code_interpreter import Sandbox

# Virtual machines may be emulated.
SLOW = {"request_timeout": 900}
# Directories that the template's steps wrote to.
INSTALLED = ("etc", "home", "opt", "root")


def atoll(*args):
    return subprocess.run([os.environ["ATOLL_BIN"], *args], stdout=subprocess.PIPE, text=True, timeout=300, check=True).stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """An image with the files of the template."""
    name, tree = "interpreter-of-levels", tmp_path_factory.mktemp("tree")
    subprocess.run(["cp", "-a", os.environ["TREE"] + "/.", tree], check=True)
    with Sandbox.create(timeout=1800, **SLOW) as box:
        pack = ["exec", "--user", "root", box.sandbox_id, "--", "tar", "-C", "/", "-c", *INSTALLED]
        packing = subprocess.Popen([os.environ["ATOLL_BIN"], *pack], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-C", tree, "-x"], stdin=packing.stdout, timeout=900, check=True)
        assert packing.wait(60) == 0
    packing = subprocess.Popen(["tar", "-C", tree, "-c", "."], stdout=subprocess.PIPE)
    subprocess.run([os.environ["ATOLL_BIN"], "image", "import", "-", name], stdin=packing.stdout, timeout=900, check=True)
    assert packing.wait(60) == 0
    yield name
    atoll("image", "rm", name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", os.environ["TEST_LEVELS"].split())
def test_cells_remember(level, image):
    built = json.loads(atoll("template", "show", "code-interpreter-v1"))
    name = f"code-interpreter-{level}"
    # The template's readiness check uses curl, which the image does not have.
    ready = ["--ready-port", "49999", "--ready-timeout", "10m"]
    env = [f"--env={key}={value}" for key, value in built["env"].items()]
    as_built = ["--image", image, "--user", built["user"], "--workdir", built["workdir"], *env]
    atoll("template", "create", name, "--isolation", level, *as_built, "--start-cmd", built["start"], "--restart", built["restart"], *ready)
    box = None
    try:
        box = Sandbox.create(name, timeout=3600, request_timeout=1500)
        assert box.run_code("x = 20; x + 1", timeout=900, **SLOW).text == "21"
        context = box.create_code_context(**SLOW)
        assert box.run_code("x", context=context, timeout=900, **SLOW).error.name == "NameError"
        assert box.run_code("1/0", timeout=900, **SLOW).error.name == "ZeroDivisionError"
        assert "".join(box.run_code("echo $((6 * 7))", language="bash", timeout=900, **SLOW).logs.stdout).strip() == "42"
        assert box.run_code("x + 2", timeout=900, **SLOW).text == "22"
    finally:
        if box is not None:
            box.kill(**SLOW)
        atoll("template", "rm", name)
