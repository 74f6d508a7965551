"""All of LangChain's standard tests of sandboxes. Tests that are known to fail on every server are marked."""

import importlib.metadata

import pytest
from deepagents.backends import LangSmithSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

NEW = tuple(map(int, importlib.metadata.version("deepagents").split(".")[:3])) >= (0, 7, 32)

# Deep Agents 0.7 overwrites an existing file; from 0.7.32 on its glob gives absolute paths. The tests expect the
# earlier behavior.
KNOWN = {"test_write_existing_file_fails"}
if NEW:
    KNOWN |= {
        "test_glob",
        "test_glob_basic_pattern",
        "test_glob_with_directories",
        "test_glob_hidden_files_explicitly",
        "test_glob_with_character_class",
        "test_glob_with_question_mark",
    }


class TestStandard(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, client):
        # Images for Python agents have a program `python`; this machine's /usr may have only `python3`.
        path = "/opt/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        box = client.create_sandbox(run_config={"env_vars": {"PATH": path}})
        box.run("mkdir -p /opt/bin && ln -s /usr/bin/python3 /opt/bin/python")
        yield LangSmithSandbox(box)
        client.delete_sandbox(box.name)

    @pytest.fixture(autouse=True)
    def known(self, request):
        if request.node.originalname in KNOWN:
            request.node.add_marker(pytest.mark.xfail(reason="expects an older Deep Agents", strict=True))
