"""Deep Agents in a Daytona sandbox: a scripted model plans, writes a file, runs it, reads the result."""

from daytona import Daytona
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_daytona import DaytonaSandbox


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


def test_an_agent_works_in_a_sandbox():
    sandbox = Daytona().create()
    agent = create_deep_agent(model=script(), backend=DaytonaSandbox(sandbox=sandbox))
    check(agent.invoke({"messages": [{"role": "user", "content": "sum 1 to 100"}]}, {"recursion_limit": 100}))
    sandbox.stop()
    sandbox.delete()


async def test_the_same_asynchronously(box):
    agent = create_deep_agent(model=script(), backend=DaytonaSandbox(sandbox=box))
    check(await agent.ainvoke({"messages": [{"role": "user", "content": "sum 1 to 100"}]}, {"recursion_limit": 100}))


def test_a_command_that_takes_too_long(box):
    result = DaytonaSandbox(sandbox=box).execute("echo begun; sleep 60", timeout=1)
    assert result.exit_code == 124
