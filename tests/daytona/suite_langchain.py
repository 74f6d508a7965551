"""LangChain's standard tests of sandboxes, as its own package runs them.

Seven of them expect another version of Deep Agents than langchain-daytona uses: names relative to the directory from
`glob`, an error when a file is written that exists. They fail on every server (`conftest.py` marks them).
"""

import pytest
from daytona import CreateSandboxFromImageParams, Daytona, Image
from langchain_daytona import DaytonaSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

# The tests need a program `python`, as the template `daytona` has it.
IMAGE = (
    Image.base("host")
    .run_commands("mkdir -p /opt/bin && ln -s $(command -v python3) /opt/bin/python")
    .env({"PATH": "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
)


class TestDaytonaSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        made = Daytona().create(CreateSandboxFromImageParams(image=IMAGE), timeout=0)
        yield DaytonaSandbox(sandbox=made)
        made.delete()
