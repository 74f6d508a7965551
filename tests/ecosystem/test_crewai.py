"""CrewAI: an agent whose model is a script, with the tools for E2B and Daytona of crewai-tools."""

import json

from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from recipes import recipes


class Script(BaseLLM):
    """A model that calls the given tools one after another, keeps the messages that it got, and then answers "done"."""

    steps: list = []
    told: list = []

    def call(self, messages, *args, **kwargs):
        # The framework adds a message after the output of a tool.
        self.told.append(str(messages[-2:]))
        if not self.steps:
            return "Thought: I now know the final answer\nFinal Answer: done"
        name, arguments = self.steps.pop(0)
        return f"Thought: go on\nAction: {name}\nAction Input: {json.dumps(arguments)}"

    def supports_function_calling(self):
        return False


def recipe(number):
    exec(compile(recipes("docs/frameworks.md", "CrewAI")[number], "frameworks.md", "exec"), names := {})
    return names


def work(tools, *steps):
    """Runs an agent with these steps; returns the messages that the model got after each."""
    model = Script(model="script", steps=list(steps))
    agent = Agent(role="worker", goal="work", backstory="none", llm=model, tools=tools)
    task = Task(description="go", expected_output="done", agent=agent)
    assert str(Crew(agents=[agent], tasks=[task]).kickoff()) == "done"
    return model.told[1:]


def test_tools_for_e2b_keep_their_sandboxes():
    tools = recipe(0)["tools"]
    shell, files = tools
    try:
        ran, _, seen, read = work(
            tools,
            (shell.name, {"command": "echo $((6*7)) | tee a.txt"}),
            (files.name, {"action": "write", "path": "/home/user/sub/b.txt", "content": "written"}),
            (shell.name, {"command": "cat a.txt"}),
            (files.name, {"action": "read", "path": "/home/user/sub/b.txt"}),
        )
        assert "42" in ran and "42" in seen and "written" in read, (ran, seen, read)
    finally:
        shell.close()
        files.close()


def test_tools_for_daytona_in_one_sandbox():
    names = recipe(1)
    shell, files = names["tools"]
    try:
        ran, _, seen, read = work(
            names["tools"],
            (shell.name, {"command": "mkdir -p /home/daytona/sub && echo $((6*7)) && exit 3"}),
            (files.name, {"action": "write", "path": "/home/daytona/sub/a.txt", "content": "written"}),
            (shell.name, {"command": "cat /home/daytona/sub/a.txt"}),
            (files.name, {"action": "read", "path": "/home/daytona/sub/a.txt"}),
        )
        assert "42" in ran and "3" in ran, ran
        assert "written" in seen and "written" in read, (seen, read)
    finally:
        names["sandbox"].delete()
