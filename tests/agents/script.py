"""What the scripted model does: it reads the conversation that it was sent, and says the next thing of a fixed plan.

The plan mends the project of `project/`: look at what fails, edit, run the tests, answer. It is one for every agent: which
tool runs commands, and what its arguments are called, stands in the tools that the agent offers. The mend changes the
length of the file: Python takes a module that it compiled in the same second, from a file as long, for the same one.
"""

import json

PLAN = [
    ("I run the tests first.", "cd /work/project && python3 -m unittest 2>&1 | tail -n 5"),
    ("add() forgets b. I mend that.", "cd /work/project && sed -i 's/return a$/return a + b/' calc.py && cat calc.py"),
    ("Now the tests again.", "cd /work/project && python3 -m unittest 2>&1 | tail -n 3"),
]
ANSWER = "The tests pass: add() forgot a number, and adds now."
# A message that begins so names the one command of the plan.
RUN = "Run this: "
# What mini-swe-agent wants to be run at the end instead of an answer.
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# Names of tools that run a command, in the order in which they are preferred.
SHELLS = ["bash", "execute", "shell_command", "exec_command", "shell", "run_shell_command"]


class Step:
    """The next thing that is said: words, and a call of a tool or none."""

    def __init__(self, text, tool=None, arguments=None):
        self.text, self.tool, self.arguments = text, tool, arguments


def next_step(conversation, tools, results):
    """`tools` is a list of name and JSON schema; `results` counts what tools have answered so far."""
    shell = next(((name, schema) for wanted in SHELLS for name, schema in tools if name.lower() == wanted), None)
    if not tools:
        # A title or a summary, asked for on the side.
        return Step("Mend the sum")
    if shell is None:
        return Step("I find no tool that runs commands among " + ", ".join(name for name, _ in tools))
    wanted = [line[len(RUN):] for text in texts(conversation) for line in text.splitlines() if line.startswith(RUN)]
    plan = [("I run it.", wanted[0])] if wanted else PLAN
    if results < len(plan):
        text, command = plan[results]
        return Step(text, shell[0], arguments(shell[1], command))
    if SUBMIT in json.dumps(conversation):
        return Step(ANSWER, shell[0], arguments(shell[1], f"echo {SUBMIT}; echo '{ANSWER}'"))
    return Step(ANSWER)


def texts(conversation):
    """What was said in a conversation, whether its messages are texts or have parts."""
    for message in conversation:
        content = message.get("content") or []
        for part in [content] if isinstance(content, str) else content:
            text = part if isinstance(part, str) else part.get("text")
            if text:
                yield text


def arguments(schema, command):
    """The command where the tool wants it, and words for whatever else it insists on."""
    filled = {}
    properties = schema.get("properties", {})
    for name in dict.fromkeys([*schema.get("required", []), *(name for name in ("command", "cmd") if name in properties)]):
        kind = properties.get(name, {}).get("type", "string")
        if name in ("command", "cmd"):
            filled[name] = ["bash", "-c", command] if kind == "array" else command
        else:
            filled[name] = {"boolean": False, "number": 60000, "integer": 60000, "array": []}.get(kind, "a command")
    return filled


def tokens(step, results):
    """What the model says that it used: input and output tokens."""
    return 1000 + 100 * results, 10 + len(step.text)
