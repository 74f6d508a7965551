"""All of LangChain's standard tests for sandboxes, over langchain-modal with its adapter as it is.

Tests about which these packages disagree fail on every server, and are marked so. It is an error if one of them does
not fail any more.
"""

import importlib.metadata

import modal
import pytest
from langchain_modal import ModalSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

AGENTS = tuple(map(int, importlib.metadata.version("deepagents").split(".")[:3]))

OVERWRITES = "Deep Agents 0.7 overwrites a file that is there; the tests expect what was before, an error"
ABSOLUTE = "glob of Deep Agents 0.7.32 gives absolute paths; the tests expect what was before, relative ones"
KNOWN = {"test_write_existing_file_fails": OVERWRITES}
if AGENTS >= (0, 7, 32):
    KNOWN |= dict.fromkeys(
        (
            "test_glob",
            "test_glob_basic_pattern",
            "test_glob_with_directories",
            "test_glob_hidden_files_explicitly",
            "test_glob_with_character_class",
            "test_glob_with_question_mark",
        ),
        ABSOLUTE,
    )

# These tests put files into a directory that does not exist. Deep Agents expects the adapter to make it ("Upload files
# is responsible for ensuring that the parent path exists"). The adapter relies on `Sandbox.open`, which, like Python's
# `open`, makes no directories (`test_upload_makes_no_directory`). As these tests are about other things, this makes the
# directory for them.
WANT_A_DIRECTORY = {
    "test_read_binary_file",
    "test_read_binary_file_100_kib",
    "test_read_binary_file_1_mib_returns_error",
    "test_upload_single_file",
    "test_download_single_file",
    "test_upload_download_roundtrip",
    "test_upload_multiple_files_order_preserved",
    "test_download_multiple_files_order_preserved",
    "test_upload_binary_content_roundtrip",
    "test_upload_large_file_reports_expected_size",
    "test_aread_binary_image_file",
    "test_aread_binary_file_100_kib",
    "test_aread_binary_file_1_mib_returns_error",
    "test_aupload_adownload_large_file_roundtrip",
}


class TestModalSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        app = modal.App.lookup("langchain", create_if_missing=True)
        sandbox = modal.Sandbox.create(app=app, timeout=1200)
        yield ModalSandbox(sandbox=sandbox)
        sandbox.terminate()

    @pytest.fixture(autouse=True)
    def directory(self, request, sandbox_backend, sandbox_test_root):
        if request.node.originalname in WANT_A_DIRECTORY:
            assert sandbox_backend.execute(f"mkdir -p {sandbox_test_root}").exit_code == 0

    @pytest.fixture(autouse=True)
    def known(self, request):
        if why := KNOWN.get(request.node.originalname):
            request.node.add_marker(pytest.mark.xfail(reason=why, strict=True))

    def test_upload_makes_no_directory(self, sandbox_backend, sandbox_test_root):
        path = self.sandbox_path("file.txt", root_dir=sandbox_test_root)
        assert [done.error for done in sandbox_backend.upload_files([(path, b"x")])] == ["file_not_found"]
        assert sandbox_backend.execute(f"test -e {sandbox_test_root}").exit_code == 1

    def test_names_are_those_of_the_suite(self):
        assert [name for name in {*KNOWN, *WANT_A_DIRECTORY} if not hasattr(self, name)] == []
