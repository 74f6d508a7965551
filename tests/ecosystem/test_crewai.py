"""CrewAI: an agent whose model is a script, with the tools for E2B and Daytona of crewai-tools."""

import json

import pytest
from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from recipes import recipes


class Script(BaseLLM):
    """Calls the tools that it was told to, one after another, and then says what it got."""

    steps: list = []
    told: list = []

    def call(self, messages, *args, **kwargs):
        # After what a tool said comes a word of the framework.
        self.told.append(str(messages[-2:]))
        if not self.steps:
            return "Thought: I now know the final answer\nFinal Answer: done"
        name, arguments = self.steps.pop(0)
        return f"Thought: go on\nAction: {name}\nAction Input: {json.dumps(arguments)}"

    def supports_function_calling(self):
        return False


def tools_of(number):
    exec(compile(recipes("docs/frameworks.md", "CrewAI")[number], "frameworks.md", "exec"), names := {})
    return names["sandbox"], names["tools"]


@pytest.mark.parametrize(("number", "home"), [(0, "/home/user"), (1, "/home/daytona")], ids=["e2b", "daytona"])
def test_an_agent_with_tools_in_one_sandbox(number, home):
    sandbox, tools = tools_of(number)
    shell, files = tools
    model = Script(
        model="script",
        steps=[
            (shell.name, {"command": f"mkdir -p {home}/sub && echo $((6*7)) && exit 3"}),
            (files.name, {"action": "write", "path": f"{home}/sub/a.txt", "content": "written"}),
            (shell.name, {"command": f"cat {home}/sub/a.txt"}),
            (files.name, {"action": "read", "path": f"{home}/sub/a.txt"}),
        ],
    )
    agent = Agent(role="worker", goal="work", backstory="none", llm=model, tools=tools)
    task = Task(description="go", expected_output="done", agent=agent)
    try:
        said = Crew(agents=[agent], tasks=[task]).kickoff()
        assert str(said) == "done"
        ran, _, seen, read = model.told[1:5]
        assert "42" in ran and "3" in ran, ran
        assert "written" in seen and "written" in read, (seen, read)
    finally:
        sandbox.kill() if number == 0 else sandbox.delete()
