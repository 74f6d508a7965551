"""Hugging Face's smolagents: a CodeAgent whose model is a script, with the executor for E2B that it ships."""

import pytest
from recipes import recipes
from smolagents import Model, Tool
from smolagents.models import ChatMessage, MessageRole


class Script(Model):
    """A model that gives the next scripted step, and keeps the messages that it got."""

    def __init__(self, *steps):
        super().__init__(model_id="script")
        self.steps, self.told = list(steps), []

    def generate(self, messages, **_):
        self.told.append(str(messages[-1].content))
        code = self.steps.pop(0)
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on\n<code>\n{code}\n</code>")


class Twice(Tool):
    """A tool whose code the executor sends into the sandbox."""

    name = "twice"
    description = "doubles a number"
    inputs = {"number": {"type": "integer", "description": "the number"}}
    output_type = "integer"

    def forward(self, number: int) -> int:
        return 2 * number


@pytest.fixture
def agent_of():
    [recipe] = recipes("docs/frameworks.md", "smolagents")
    made = []

    def make(model, tools):
        exec(compile(recipe, "frameworks.md", "exec"), names := {"model": model, "tools": tools})
        made.append(names["agent"])
        return names["agent"]

    yield make
    for one in made:
        one.cleanup()


def test_cells_remember_and_tools_run_inside(agent_of):
    model = Script(
        "import platform\nkept = twice(number=20)\nprint('kept', kept)",
        "open('/home/user/a.txt', 'w').write(str(kept))\nprint('went on', kept + 2)",
        "final_answer(open('/home/user/a.txt').read() + ' of the sandbox')",
    )
    agent = agent_of(model, [Twice()])
    assert agent.run("go") == "40 of the sandbox"
    assert "kept 40" in model.told[1] and "went on 42" in model.told[2], model.told


def test_an_error_of_a_cell_is_what_the_model_sees(agent_of):
    model = Script("1 / 0", "final_answer('seen')")
    assert agent_of(model, []).run("go") == "seen"
    assert "ZeroDivisionError" in model.told[1], model.told
