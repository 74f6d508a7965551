"""A page: its blocks, the script that they make, and the output that it shows for them."""

import re
from dataclasses import dataclass, field

from output import matches

# Languages of blocks that are not run here. Blocks in Python and TypeScript run in tests/sdk.
DATA = {"python", "ts", "rust", "json", "toml", "text"}
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
BACKGROUND = "<!-- run in the background -->"


class Wrong(Exception):
    """The page differs from the program's behaviour, or is not written in a form that the runner reads."""


@dataclass
class Block:
    language: str
    first: int  # the line of its opening fence, from 1
    lines: list = field(default_factory=list)
    not_run: str = ""
    background: bool = False


@dataclass
class Command:
    """A command of a console block, with the output that the page shows."""

    line: int
    text: list
    output: list = field(default_factory=list)

    def fails(self):
        return bool(self.output) and self.output[0].startswith("error:")


class Page:
    def __init__(self, path, repository):
        self.path, self.name = path, str(path.relative_to(repository))
        self.source = path.read_text().splitlines()
        self.blocks = list(self.read())

    def read(self):
        block, before = None, ""
        for number, line in enumerate(self.source, 1):
            if block is None and line.startswith("```"):
                reason = NOT_RUN.fullmatch(before)
                block = Block(line[3:].strip(), number, [], reason[1] if reason else "", before == BACKGROUND)
                if block.language not in {"sh", "console", *DATA}:
                    raise Wrong(f"  {self.name}:{number}: a block of language '{block.language}': say sh, console or text")
            elif block is not None and line == "```":
                yield block
                block = None
            elif block is not None:
                block.lines.append(line)
            before = line
        if block is not None:
            raise Wrong(f"  {self.name}:{block.first}: this block has no end")

    def runnable(self):
        return [block for block in self.blocks if block.language in {"sh", "console"} and not block.not_run]

    def left_out(self):
        return [(f"{self.name}:{block.first}", block.not_run) for block in self.blocks if block.not_run]

    def script(self, preamble, replace):
        """The page as a bash script in which every command stands on the line that it has on the page."""
        lines = [""] * len(self.source)
        lines[0] = preamble
        for block in self.runnable():
            body = console(block) if block.language == "console" else plain(block)
            for number, text in body:
                lines[number - 1] = replace(text)
        return "\n".join(lines) + "\n"

    def check(self, outputs):
        """Compares the output of the commands of console blocks, in files below `outputs`, with the page."""
        for block in self.runnable():
            for command in commands(block) if block.language == "console" else []:
                file = outputs / str(command.line)
                actual = file.read_text(errors="replace") if file.exists() else ""
                if command.output and not matches(command.output, actual.splitlines()):
                    shown = "\n".join(f"    {line}" for line in command.output)
                    came = "\n".join(f"    {line}" for line in actual.splitlines())
                    raise Wrong(f"  {self.name}:{command.line}: the page shows\n{shown}\n  and what came is\n{came}")


def plain(block):
    """The lines of an sh block with their numbers. A background block starts and ends on the lines of its fences."""
    if block.background:
        yield block.first, "{"
    yield from enumerate(block.lines, block.first + 1)
    if block.background:
        yield block.first + len(block.lines) + 1, "} &"


def commands(block):
    current = None
    for number, line in enumerate(block.lines, block.first + 1):
        if line.startswith(("$ ", "# ")):
            if current:
                yield current
            current = Command(number, [line[2:]])
        elif current is None:
            raise Wrong(f"  line {number}: a console block begins with a prompt, '$ ' or '# '")
        elif not current.output and current.text[-1].endswith("\\"):
            current.text.append(line)
        elif line or current.output:  # an empty line between commands is no output
            current.output.append(line)
    if current:
        yield current


def console(block):
    """The commands of a console block with their line numbers; each writes into a file named after its line."""
    lines = {}
    for command in commands(block):
        for offset, text in enumerate(command.text):
            lines[command.line + offset] = lines.get(command.line + offset, "") + (text if offset else opening(command) + text)
        # A comment may follow the command on its line, so its end goes to the next line, before the next command.
        lines[command.line + len(command.text)] = f'}} >"$OUTPUTS/{command.line}" 2>&1; '
    yield from lines.items()


def opening(command):
    return "{ ! " if command.fails() else "{ "
