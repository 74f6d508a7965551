"""A whole evaluation with Inspect AI: a model that is a script, its tools, and a scorer, each in real sandboxes."""

import os
import pathlib
import subprocess
import sys

import pytest
from atoll import Atoll
from recipes import recipes
from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

DOCKERFILE = "FROM host\nCOPY given.txt /given.txt\nRUN tr a-z A-Z </given.txt >/made.txt\nWORKDIR /work\n"


class Bytes:
    """Counts a token for each byte. The real tokenizer would fetch its tables from the internet."""

    def encode(self, text, **_):
        return list(text.encode())


@pytest.fixture(autouse=True)
def no_tables(monkeypatch):
    monkeypatch.setattr("tiktoken.get_encoding", lambda name: Bytes())
    monkeypatch.setattr("tiktoken.encoding_for_model", lambda name: Bytes())


def scripted():
    return get_model(
        "mockllm/model",
        custom_outputs=[
            ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat /made.txt input.txt; pwd; id -u"}),
            ModelOutput.for_tool_call("mockllm/model", "python", {"code": "open('answer','w').write(str(6*7))"}),
            ModelOutput.from_content("mockllm/model", "done"),
        ],
    )


@scorer(metrics=[accuracy()])
def looks_into_the_sandbox():
    async def score(state, target):
        answer = await sandbox().read_file("answer")
        tools = [message.text for message in state.messages if message.role == "tool"]
        right = answer == target.text and tools[0] == "GIVEN\nfrom the sample\n/work\n0\n"
        return Score(value=CORRECT if right else INCORRECT, explanation=f"{answer!r} {tools!r}")

    return score


@pytest.mark.parametrize("config", ["Dockerfile", "compose.yaml"])
def test_a_task_with_a_dockerfile(tmp_path, config):
    (tmp_path / "given.txt").write_text("given\n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "compose.yaml").write_text(
        "services:\n  default:\n    build: .\n    init: true\n    command: sleep 654321\n"
        "    network_mode: none\n    mem_limit: 512m\n    cpus: 1.0\n"
    )
    task = Task(
        dataset=[Sample(input="go", target="42", files={"input.txt": "from the sample\n"})],
        solver=[use_tools(bash(timeout=60), python(timeout=60)), generate()],
        scorer=looks_into_the_sandbox(),
        sandbox=("atoll", str(tmp_path / config)),
    )
    [log] = evaluate(task, model=scripted(), log_dir=str(tmp_path / "logs"), display="none")
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0, log.samples[0].scores
    with Atoll() as client:
        assert list(client.sandboxes.list(labels={"made-by": "inspect-ai"})) == []


def test_compose_files_that_ask_for_more_are_refused(tmp_path):
    from inspect_atoll.config import read_config

    (tmp_path / "compose.yaml").write_text("services:\n  a: {image: host}\n  b: {image: host}\n")
    with pytest.raises(ValueError, match="2 services"):
        read_config(str(tmp_path / "compose.yaml"))
    (tmp_path / "compose.yaml").write_text("services:\n  a: {image: host, privileged: true}\n")
    with pytest.raises(ValueError, match="privileged"):
        read_config(str(tmp_path / "compose.yaml"))
    (tmp_path / "compose.yaml").write_text("services:\n  a: {build: {context: ., args: {X: y}}}\n")
    with pytest.raises(ValueError, match="args"):
        read_config(str(tmp_path / "compose.yaml"))


def test_what_was_left_is_cleaned_up(tmp_path):
    with Atoll() as client:
        mine = client.sandboxes.create(labels={"made-by": "inspect-ai"})
        other = client.sandboxes.create()
        command = [str(pathlib.Path(sys.executable).parent / "inspect"), "sandbox", "cleanup", "atoll"]
        if not os.path.exists(command[0]):
            command[:1] = [sys.executable, "-c", "from inspect_ai._cli.main import main; main()"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert said.returncode == 0 and mine.id in said.stdout, said
        left = [one.id for one in client.sandboxes.list()]
        assert mine.id not in left and other.id in left
        other.delete()


def test_the_readmes_example():
    [code] = recipes("integrations/inspect-ai/README.md")
    exec(compile(code, "README.md", "exec"), names := {})
    assert names["spec"].type == "atoll" and names["spec"].config.network().allow == ["pypi.org:443"]
