"""What differs between languages: the kernel, and how variables of the environment are set in it."""

import json
import re
import shlex
from dataclasses import dataclass
from typing import Callable, Sequence

SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Language:
    """A language that has contexts."""

    name: str
    # Name of the Jupyter kernel.
    kernel: str
    # What its kernel is started with, beyond what its description says.
    arguments: Sequence[str]
    # Code that sets variables, and code that makes them what they were before.
    enter: Callable[[dict], str]
    leave: Callable[[dict], str]


def python_enter(variables):
    return f"__import__('code_interpreter.kernel').kernel.enter({variables!r})"


def python_leave(_variables):
    return "__import__('code_interpreter.kernel').kernel.leave()"


def script_enter(variables):
    text = json.dumps(variables)
    return (
        "globalThis[Symbol.for('code_interpreter')] = Object.fromEntries("
        f"Object.keys({text}).map((name) => [name, process.env[name]])); Object.assign(process.env, {text}); undefined"
    )


def script_leave(_variables):
    return (
        "for (const [name, value] of Object.entries(globalThis[Symbol.for('code_interpreter')]))"
        " { if (value === undefined) delete process.env[name]; else process.env[name] = value; }"
    )


def shell_enter(variables):
    lines = []
    for name, value in variables.items():
        if SHELL_NAME.match(name):
            lines.append(f'[ -z "${{{name}+x}}" ] || _interpreter_{name}="${name}"; export {name}={shlex.quote(value)}')
    return "\n".join(lines)


def shell_leave(variables):
    lines = []
    for name in variables:
        if SHELL_NAME.match(name):
            old = f"_interpreter_{name}"
            lines.append(f'if [ -n "${{{old}+x}}" ]; then export {name}="${old}"; unset {old}; else unset {name}; fi')
    return "\n".join(lines)


PYTHON = Language(
    "python",
    "python3",
    ("--IPKernelApp.extensions=code_interpreter.kernel", "--HistoryManager.hist_file=:memory:"),
    python_enter,
    python_leave,
)
LANGUAGES = {
    language.name: language
    for language in (
        PYTHON,
        Language("javascript", "deno", (), script_enter, script_leave),
        Language("typescript", "deno", (), script_enter, script_leave),
        Language("bash", "bash", (), shell_enter, shell_leave),
        Language("r", "ir", (), lambda _: "", lambda _: ""),
        Language("java", "java", (), lambda _: "", lambda _: ""),
    )
}
SHORT = {"js": "javascript", "ts": "typescript", "py": "python", "sh": "bash"}


def named(name):
    """The language of that name, or None."""
    name = name.strip().lower()
    return LANGUAGES.get(SHORT.get(name, name))
