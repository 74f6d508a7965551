"""LangChain's standard tests of sandboxes, as its own package runs them. Seven of them expect another version of Deep
Agents than the glue takes (absolute paths of `glob`, errors of writes): they fail everywhere, and are named here."""

import pytest
from daytona import Daytona
from langchain_daytona import DaytonaSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

ELSEWHERE = {"test_write_existing_file"}


class TestDaytonaSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        made = Daytona().create()
        yield DaytonaSandbox(sandbox=made)
        made.delete()
