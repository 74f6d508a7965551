"""What differs between languages: the kernel, and how variables of the environment are set in it."""

import json
import re
import shlex
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

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
    # Code that each new kernel runs first.
    begin: str = ""
    # For kernels whose output may come after their word that the cell has ended: code that writes a mark to every way
    # on which output comes.
    fence: Optional[Callable[[str], str]] = None


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


# What a cell makes of `console` does not concern the mark.
SCRIPT_BEGIN = (
    "globalThis[Symbol.for('code_interpreter.mark')] = ((out, err, show) => async (mark) => { out(mark); err(mark);"
    " await show('display_data', { data: { [mark]: '' }, metadata: {}, transient: {} }); })"
    "(console.log.bind(console), console.error.bind(console), Deno.jupyter.broadcast.bind(Deno.jupyter)); undefined"
)


def script_fence(mark):
    return f"await globalThis[Symbol.for('code_interpreter.mark')]({json.dumps(mark)}); undefined"


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


def r_enter(variables):
    names = ", ".join(_r_text(name) for name in variables)
    values = ", ".join(f"{_r_text(name)} = {_r_text(value)}" for name, value in variables.items())
    return f"options(code_interpreter = Sys.getenv(c({names}), unset = NA, names = TRUE)); Sys.setenv({values})"


def r_leave(_variables):
    return (
        "local({ old <- getOption('code_interpreter'); Sys.unsetenv(names(old)[is.na(old)]); old <- old[!is.na(old)];"
        " if (length(old)) do.call(Sys.setenv, as.list(old)) })"
    )


def _r_text(text):
    # R has no pairs of surrogates.
    return json.dumps(text, ensure_ascii=False)


def java_enter(variables):
    # A running JVM cannot change its environment: variables are system properties, as E2B has it.
    lines = ["var before = new java.util.HashMap<String, String>();"]
    for name, value in variables.items():
        name, value = json.dumps(name), json.dumps(value)
        lines.append(f"before.put({name}, System.getProperty({name})); System.setProperty({name}, {value});")
    lines.append('System.getProperties().put("code_interpreter", before);')
    return "{ " + " ".join(lines) + " }"


def java_leave(_variables):
    return (
        '{ var before = (java.util.HashMap<?, ?>) System.getProperties().remove("code_interpreter");'
        " before.forEach((name, value) -> { if (value == null) System.clearProperty((String) name);"
        " else System.setProperty((String) name, (String) value); }); }"
    )


JAVA_BEGIN = "System.getenv().forEach((name, value) -> System.getProperties().putIfAbsent(name, value));"

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
        Language("javascript", "deno", (), script_enter, script_leave, SCRIPT_BEGIN, script_fence),
        Language("typescript", "deno", (), script_enter, script_leave, SCRIPT_BEGIN, script_fence),
        Language("deno", "deno", (), script_enter, script_leave, SCRIPT_BEGIN, script_fence),
        Language("bash", "bash", (), shell_enter, shell_leave),
        Language("r", "ir", (), r_enter, r_leave),
        Language("java", "java", (), java_enter, java_leave, JAVA_BEGIN),
    )
}
SHORT = {"js": "javascript", "ts": "typescript", "py": "python", "sh": "bash"}


def named(name):
    """The language of that name, or None."""
    name = name.strip().lower()
    return LANGUAGES.get(SHORT.get(name, name))
