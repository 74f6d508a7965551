"""All of LangChain's standard tests of sandboxes, on langchain-atoll."""

import pathlib
import re

import pytest
from atoll import Atoll
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_atoll import AtollSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestStandard(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        # Images for Python agents have a program `python`; this machine's /usr may have only `python3`.
        path = "/opt/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        with Atoll() as client, client.sandboxes.create(env={"PATH": path}) as box:
            box.run("mkdir -p /opt/bin && ln -s /usr/bin/python3 /opt/bin/python", check=True)
            yield AtollSandbox(sandbox=box)


@pytest.fixture
def backend():
    with Atoll() as client, client.sandboxes.create() as box:
        yield AtollSandbox(sandbox=box)


def test_commands(backend):
    assert isinstance(backend, SandboxBackendProtocol)
    done = backend.execute("echo out; echo err >&2; exit 3")
    assert (done.output, done.exit_code, done.truncated) == ("out\nerr\n", 3, False)
    late = backend.execute("echo before; sleep 1000", timeout=1)
    assert late.output.startswith("before\n") and "killed after 1 seconds" in late.output and late.exit_code == 137


def test_files_fail_by_themselves(backend):
    up = backend.upload_files([("relative", b"x"), ("/w/a", b"\xff"), ("/etc", b"x")])
    assert [one.error for one in up] == ["invalid_path", None, "is_directory"]
    down = backend.download_files(["/w/a", "/none", "/etc", "relative"])
    assert [(one.content, one.error) for one in down] == [
        (b"\xff", None),
        (None, "file_not_found"),
        (None, "is_directory"),
        (None, "invalid_path"),
    ]


def test_the_readmes_example(capsys):
    readme = pathlib.Path(__file__).resolve().parents[2] / "integrations" / "langchain" / "README.md"
    [code] = re.findall(r"^```python\n(.*?)^```$", readme.read_text(), re.S | re.M)
    exec(compile(code, "README.md", "exec"), {})
    assert "hello" in capsys.readouterr().out
