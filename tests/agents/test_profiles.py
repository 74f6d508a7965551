"""Limits of an agent's shell: its profile keeps it from the agent's program, the model's key and the model's host."""

import json

from conftest import KEY, KNOWN, RECIPES, api, atoll, is_done, say
from script import RUN

PYTHON = KNOWN["python"]
# The agent's own program comes from the layer; every program that it starts gets the profile `tool`.
AGENT = {"on_exec": {"*": "tool"}, "read_only": ["/opt/agents"]}
PROFILES = {"default": "agent", "named": {"agent": AGENT, "tool": {"hide": ["/opt/agents"]}}}
FROM = {"profile": "agent"}
EGRESS = {
    "internet": "rules",
    "rules": [{"action": "allow", "domain": PYTHON.host, "from": FROM}],
    "inject": [{"name": "model", "hosts": [PYTHON.host], "bearer": "{secret:%s}" % PYTHON.variable, "from": FROM}],
}
LOOK = "; ".join([
    "cat /opt/agents/apart/agent.py && echo READ",
    # The parent of this shell is the agent.
    "cat /proc/$PPID/environ && echo KNOWN",
    f"curl -sS -m 20 https://{PYTHON.host}/v1/models && echo REACHED",
    "echo LOOKED",
])


def test_the_shell_of_an_agent_reaches_neither_its_model_nor_its_program():
    atoll("secret", "set", PYTHON.variable, "--host", PYTHON.host, input=KEY)
    atoll("agent", "build", "apart", str(RECIPES / "python"))
    sandbox = api("POST", "/v1/sandboxes", {"name": "apart", "profiles": PROFILES, "egress": EGRESS, "env": {PYTHON.variable: "none"}})["id"]
    try:
        argv = ["/usr/bin/python3", "/opt/agents/apart/agent.py"]
        api("POST", "/v1/agents", {"name": "apart", "sandbox": sandbox, "layer": "apart", "argv": argv, "cwd": "/"})
        told = say("apart", RUN + LOOK)
        assert is_done(told), told
        output = next(event["data"]["output"] for event in told if event["kind"] == "tool")
        assert "LOOKED" in output
        assert not {"READ", "KNOWN", "REACHED"} & set(output.split()), output
        # The journal has entries about the host.
        lines = [json.loads(line) for line in atoll("trace", "--json", sandbox).splitlines()]
        went = [line for line in lines if PYTHON.host in json.dumps(line)]
        assert went, lines
    finally:
        atoll("agent", "rm", "apart", check=False)
        atoll("rm", "apart", check=False)
