"""Language servers of the image, asked through the toolbox."""

import os

import pytest
from conftest import call, toolbox
from daytona import DaytonaError

pytestmark = pytest.mark.skipif("py-newest" not in os.getcwd(), reason="one language server is enough for all clients")


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
