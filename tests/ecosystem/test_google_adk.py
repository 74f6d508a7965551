"""Google's Agent Development Kit: an agent whose model is a script, with the environments for E2B and Daytona that it ships."""

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from recipes import recipes


class Script(BaseLlm):
    """A model that gives the next scripted step, and keeps the answers of the tools."""

    model: str = "script"
    steps: list = []
    answers: list = []

    async def generate_content_async(self, llm_request, stream=False):
        for part in llm_request.contents[-1].parts:
            if part.function_response is not None:
                self.answers.append(part.function_response.response)
        step = self.steps[len(self.answers)]
        if isinstance(step, str):
            part = types.Part(text=step)
        else:
            part = types.Part(function_call=types.FunctionCall(name=step[0], args=step[1]))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def environments():
    return recipes("docs/frameworks.md", "Google ADK")


# Daytona's environment runs commands in the user's home, but resolves relative file paths below another directory.
@pytest.mark.parametrize(("number", "home"), [(0, "/home/user"), (1, "/workspaces")], ids=["e2b", "daytona"])
async def test_an_agent_with_an_environment(number, home):
    exec(compile(environments()[number], "frameworks.md", "exec"), names := {})
    model = Script(
        steps=[
            ("WriteFile", {"path": "sub/a.txt", "content": "one\ntwo\n"}),
            ("EditFile", {"path": "sub/a.txt", "old_string": "one", "new_string": "ONE"}),
            ("Execute", {"command": f"cd {home}; cat sub/a.txt; echo $((6*7)); exit 3"}),
            ("ReadFile", {"path": "sub/a.txt"}),
            "done",
        ]
    )
    agent = LlmAgent(name="worker", model=model, instruction="work", tools=[names["toolset"]])
    runner = InMemoryRunner(agent=agent, app_name="tests")
    session = await runner.session_service.create_session(app_name="tests", user_id="me")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    said = [
        part.text
        async for event in runner.run_async(user_id="me", session_id=session.id, new_message=message)
        for part in (event.content.parts if event.content else [])
        if part.text
    ]
    await names["toolset"].close()
    assert said[-1] == "done"
    _, _, executed, read = [str(one) for one in model.answers]
    assert "ONE\\ntwo\\n42" in executed and "3" in executed, executed
    assert "ONE" in read and "two" in read, read
