"""The example: E2B's own quickstart. Only environment variables lead it to this server."""

import ast
import importlib.metadata
import os
import pathlib
import subprocess
import sys

from conftest import call

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "e2b_switch.py"
# Exactly the variables that the example names. It does not get the others that the tests have.
NEEDED = ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY")


def test_it_is_theirs():
    text = EXAMPLE.read_text()
    ours = text.split(ast.get_docstring(ast.parse(text), clean=False) + '"""', 1)[1].strip()
    theirs = importlib.metadata.metadata("e2b").get_payload()
    assert f"```py\n{ours}\n```" in theirs, "the package's quickstart is another now:\n" + theirs


def known():
    return {sandbox["sandboxID"] for sandbox in call("GET", "/v2/sandboxes")[1]}


def test_it_runs():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "ATOLL_")) or name in NEEDED}
    before = known()
    done = subprocess.run([sys.executable, EXAMPLE], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello from E2B!\n\n", "")
    assert known() <= before, "it leaves no sandbox"
