"""Language servers of the image, asked through the toolbox."""

import io
import os
import tarfile

import pytest
from conftest import call, toolbox
from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaError

SERVER = os.path.join(os.getcwd(), "lsp")
pytestmark = pytest.mark.skipif("py-newest" not in os.getcwd(), reason="one language server is enough for all clients")
PROGRAM = b"""class Greeter:
    def greet(self):
        return "hello"

Greeter().gr
"""


@pytest.fixture(scope="module")
def coder():
    """A sandbox with a language server for Python and a project."""
    sandbox = Daytona().create(CreateSandboxFromSnapshotParams(env_vars={"PYTHONPATH": "/tmp/lsp"}))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.add(SERVER, "lsp")
    sandbox.fs.upload_file(packed.getvalue(), "/tmp/lsp.tar.gz")
    assert sandbox.process.exec("tar -C /tmp -xzf /tmp/lsp.tar.gz && mkdir -p /tmp/project").exit_code == 0
    sandbox.fs.upload_file(PROGRAM, "/tmp/project/main.py")
    yield sandbox
    sandbox.delete()


def test_symbols_and_completions(coder):
    server = coder.create_lsp_server("python", "/tmp/project")
    with pytest.raises(DaytonaError, match="not initialized"):
        server.document_symbols("/tmp/project/main.py")
    server.start()
    server.start()
    server.did_open("/tmp/project/main.py")
    symbols = [symbol.name for symbol in server.document_symbols("/tmp/project/main.py")]
    assert "Greeter" in symbols and "greet" in symbols
    assert [symbol.name for symbol in server.sandbox_symbols("Greeter")][:1] == ["Greeter"]
    from daytona.common.lsp_server import LspCompletionPosition

    found = server.completions("/tmp/project/main.py", LspCompletionPosition(line=4, character=12))
    assert any(item.label.startswith("greet") for item in found.items)
    server.did_close("/tmp/project/main.py")
    with pytest.raises(DaytonaError, match="No such file"):
        server.did_open("/tmp/project/none.py")
    server.stop()
    with pytest.raises(DaytonaError, match="not initialized"):
        server.document_symbols("/tmp/project/main.py")


def test_what_cannot_be_had(coder):
    with pytest.raises(DaytonaError, match="no language server for typescript"):
        coder.create_lsp_server("typescript", "/tmp/project").start()
    with pytest.raises(DaytonaError, match="not a directory"):
        coder.create_lsp_server("python", "/tmp/nowhere").start()
    status, answer = call("POST", f"/{coder.id}/lsp/start", {"languageId": "cobol", "pathToProject": "/tmp"}, root=toolbox())
    assert status == 400 and "languageId" in answer["message"]
