"""mini-SWE-agent: its own agent, a model that is a script, and a sandbox for each task."""

import pytest
from atoll import Atoll
from mini_swe_agent_atoll import AtollEnvironment
from minisweagent import Environment
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output
from recipes import recipes

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patched.py"


@pytest.fixture
def environment():
    # The same settings as in a configuration file.
    made = get_environment(
        {"environment_class": "mini_swe_agent_atoll.AtollEnvironment", "cwd": "/testbed", "timeout": 20, "env": {"PAGER": "cat"}}
    )
    yield made
    made.cleanup()


def commands(*texts):
    return [make_output(text, [{"command": text}], 0.0) for text in texts]


def test_an_agent_works_and_submits(environment):
    model = DeterministicModel(
        outputs=commands(
            "printf 'def f():\\n    return 1\\n' > broken.py; ls; pwd; echo $PAGER; echo to-stderr >&2; exit 4",
            "sed 's/return 1/return 2/' broken.py > patched.py && python3 -c 'import patched; print(patched.f())'",
            SUBMIT,
        )
    )
    agent = DefaultAgent(model, environment, system_template="You work.", instance_template="Do: {{task}} on {{system}}")
    info = agent.run("mend it")
    assert info["exit_status"] == "Submitted" and info["submission"] == "def f():\n    return 2\n"
    seen = [str(message["content"]) for message in agent.messages]
    assert any("broken.py\n/testbed\ncat\nto-stderr" in one and "4" in one for one in seen), seen
    assert any(one == "Do: mend it on Linux" for one in seen), seen


def test_what_an_environment_answers(environment):
    protocol = [name for name in vars(Environment) if not name.startswith("_")]
    assert "execute" in protocol and all(callable(getattr(environment, name)) for name in protocol)
    late = environment.execute({"command": "echo before; sleep 1000"}, timeout=1)
    assert late["returncode"] == -1 and late["output"] == "before\n" and "timed out after 1" in late["exception_info"]
    assert environment.execute({"command": "kill -9 $$"})["returncode"] == 137
    assert environment.execute({"command": "pwd"}, cwd="/tmp")["output"] == "/tmp\n"
    kept = environment.serialize()["info"]["config"]
    assert kept["environment_type"].endswith("AtollEnvironment") and kept["environment"]["cwd"] == "/testbed"


def test_the_sandbox_goes_with_the_environment():
    with Atoll() as client:
        environment = AtollEnvironment()
        id = environment.sandbox.id
        assert id in [one.id for one in client.sandboxes.list(labels={"made-by": "mini-swe-agent"})]
        del environment
        assert id not in [one.id for one in client.sandboxes.list()]


def test_the_readmes_example(capsys):
    [code] = recipes("integrations/mini-swe-agent/README.md")
    exec(compile(code, "README.md", "exec"), {})
    assert "hello from /work" in capsys.readouterr().out
