"""Deep Agents with its LangSmith backend: a scripted model plans, writes a file, runs it, reads the result.

Run by hand in one of the `deepagents-*` sets; the standard tests are in suite_deepagents.py.
"""

import pytest

pytest.importorskip("deepagents")

from deepagents import create_deep_agent
from deepagents.backends import LangSmithSandbox
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage


class Scripted(GenericFakeChatModel):
    """A model that gives its scripted answers, with or without tools."""

    def bind_tools(self, tools, **kwargs):
        return self


def call(n, name, **args):
    return AIMessage(content="", tool_calls=[{"id": f"call-{n}", "name": name, "args": args}])


def script():
    return Scripted(
        messages=iter(
            [
                call(1, "write_todos", todos=[{"content": "write and run it", "status": "in_progress"}]),
                call(2, "write_file", file_path="/workspace/sum.py", content="print(sum(range(101)))\n"),
                call(3, "execute", command="python3 /workspace/sum.py > /workspace/out && cat /workspace/out"),
                call(4, "read_file", file_path="/workspace/out"),
                call(5, "edit_file", file_path="/workspace/sum.py", old_string="101", new_string="11"),
                call(6, "grep", pattern="range(11)", path="/workspace"),
                call(7, "execute", command="python3 /workspace/sum.py"),
                AIMessage(content="The sum is 5050, then 55."),
            ]
        )
    )


def check(result):
    tools = {message.name: str(message.content) for message in result["messages"] if isinstance(message, ToolMessage)}
    texts = [str(message.content) for message in result["messages"] if isinstance(message, ToolMessage)]
    assert "5050" in texts[2] and "5050" in texts[3] and "sum.py" in tools["grep"]
    assert "55" in texts[6] and result["messages"][-1].content.startswith("The sum is 5050")


def test_an_agent_works_in_a_sandbox(box):
    agent = create_deep_agent(model=script(), backend=LangSmithSandbox(box))
    check(agent.invoke({"messages": [{"role": "user", "content": "sum 1 to 100"}]}, {"recursion_limit": 100}))


async def test_the_same_asynchronously(box):
    agent = create_deep_agent(model=script(), backend=LangSmithSandbox(box))
    check(await agent.ainvoke({"messages": [{"role": "user", "content": "sum 1 to 100"}]}, {"recursion_limit": 100}))


def test_a_thread_gets_its_sandbox_again(client, name):
    """Get or create a sandbox by a label, like agents that keep one sandbox for each thread."""

    def of_thread():
        for box in client.list_sandboxes():
            if (getattr(box, "labels", None) or {}).get("thread") == name:
                return box
        return client.create_sandbox(labels={"thread": name}) if "labels" in client.create_sandbox.__code__.co_varnames else None

    first = of_thread()
    if first is None:
        pytest.skip("this client has no labels")
    try:
        first.write("/tmp/state", b"kept")
        again = of_thread()
        assert again.id == first.id and again.read("/tmp/state") == b"kept"
    finally:
        client.delete_sandbox(first.name)
