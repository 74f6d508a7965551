"""What an agent's shell may not: its profile hides the agent's program, and keeps the model's key and the way there for the agent."""

import json
from pathlib import Path

from conftest import KEY, KNOWN, RECIPES, api, atoll, is_done, say
from script import RUN

KNOWN_ = KNOWN["python"]
# Its own program is the layer's; what it starts is a tool, whatever that is.
AGENT = {"on_exec": {"*": "tool"}, "read_only": ["/opt/agents"]}
PROFILES = {"default": "agent", "named": {"agent": AGENT, "tool": {"hide": ["/opt/agents"]}}}
FROM = {"profile": "agent"}
EGRESS = {
    "internet": "rules",
    "rules": [{"action": "allow", "domain": KNOWN_.host, "from": FROM}],
    "inject": [{"name": "model", "hosts": [KNOWN_.host], "bearer": "{secret:%s}" % KNOWN_.variable, "from": FROM}],
}
LOOK = "; ".join([
    "ls /opt/agents/apart && echo SEEN",
    "cat /opt/agents/apart/agent.py && echo READ",
    "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep ATOLL_AGENT=apart && echo KNOWN",
    f"curl -sS -m 20 https://{KNOWN_.host}/v1/models && echo REACHED",
    "echo LOOKED",
])


def test_the_shell_of_an_agent_reaches_neither_its_model_nor_its_program():
    atoll("secret", "set", KNOWN_.variable, "--host", KNOWN_.host, input=KEY)
    atoll("agent", "build", "apart", str(RECIPES / "python"))
    sandbox = api("POST", "/v1/sandboxes", {"name": "apart", "profiles": PROFILES, "egress": EGRESS, "env": {KNOWN_.variable: "none"}})["id"]
    try:
        argv = ["/usr/bin/python3", "/opt/agents/apart/agent.py"]
        api("POST", "/v1/agents", {"name": "apart", "sandbox": sandbox, "layer": "apart", "argv": argv, "cwd": "/"})
        told = say("apart", RUN + LOOK)
        assert is_done(told), told
        output = next(event["data"]["output"] for event in told if event["kind"] == "tool")
        assert "LOOKED" in output
        assert not {"SEEN", "READ", "KNOWN", "REACHED"} & set(output.split()), output
        assert "ask(messages)" in Path(RECIPES / "python" / "agent.py").read_text() and "ask(messages)" not in output
        # Who did what: the agent went to the model, and its shell was refused.
        lines = [json.loads(line) for line in atoll("trace", "--json", sandbox).splitlines()]
        went = [line for line in lines if KNOWN_.host in json.dumps(line)]
        assert went, lines
        for line in went:
            print(json.dumps(line))
    finally:
        atoll("agent", "rm", "apart", check=False)
        atoll("rm", "apart", check=False)
