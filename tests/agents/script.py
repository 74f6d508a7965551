"""The scripted model: it reads the conversation that an agent sent, and answers with the next step of a fixed plan.

The plan mends the project of `project/`: look at what fails, edit, run the tests, answer. It is the same for every
agent: the tools that the agent offers tell the model which of them runs commands, and what its arguments are called.
The mend changes the length of the file: Python reuses a compiled module if the file has the same second and length.
"""

import json

PLAN = [
    ("I run the tests first.", "cd /work/project && python3 -m unittest 2>&1 | tail -n 5"),
    ("add() forgets b. I mend that.", "cd /work/project && sed -i 's/return a$/return a + b/' calc.py && cat calc.py"),
    ("Now the tests again.", "cd /work/project && python3 -m unittest 2>&1 | tail -n 3"),
]
ANSWER = "The tests pass: add() forgot a number, and adds now."
# A message that begins with this names a command; that one command is then the whole plan.
RUN = "Run this: "
# The text that mini-swe-agent wants a command to print at the end, instead of an answer.
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# Names of tools that run a command, in the order in which they are preferred.
SHELLS = ["bash", "execute", "shell_command", "exec_command", "shell", "run_shell_command"]


class Step:
    """The next step of the model: words, and at most one call of a tool."""

    def __init__(self, text, tool=None, arguments=None):
        self.text, self.tool, self.arguments = text, tool, arguments


def next_step(conversation, tools, results):
    """`tools` is a list of name and JSON schema; `results` counts what tools have answered so far."""
    shell = next(((name, schema) for wanted in SHELLS for name, schema in tools if name.lower() == wanted), None)
    if not tools:
        # The agent asks for a title or a summary on the side.
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
    """The texts of a conversation, whether its messages are texts or have parts."""
    for message in conversation:
        content = message.get("content") or []
        for part in [content] if isinstance(content, str) else content:
            text = part if isinstance(part, str) else part.get("text")
            if text:
                yield text


def arguments(schema, command):
    """The arguments of a tool: the command in its parameter, and filler values for other required parameters."""
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
    """The usage that the model reports: input and output tokens."""
    return 1000 + 100 * results, 10 + len(step.text)
