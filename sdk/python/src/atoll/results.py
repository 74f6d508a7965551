"""Results of commands: their output, and how they ended."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Union

from . import types as t
from .errors import CommandFailed

OUTPUT_MAX_BYTES = 64 << 20
"""Most output that a result holds, each stream; the oldest goes first."""


@dataclass(frozen=True)
class Output:
    """A piece of output. Offsets count both streams together."""

    offset: int
    stream: t.OutputStream
    data: bytes

    @property
    def text(self) -> str:
        """The bytes decoded as UTF-8. Bytes that are not UTF-8 are replaced by U+FFFD.

        The piece may begin or end within a character.
        """
        return self.data.decode("utf-8", "replace")

    @property
    def next_offset(self) -> int:
        """Offset of what follows."""
        return self.offset + len(self.data)


@dataclass(frozen=True)
class Gap:
    """Output that the server no longer keeps, because the exec wrote more than its log may hold."""

    start: int
    end: int

    @property
    def next_offset(self) -> int:
        """Offset of what follows."""
        return self.end


Piece = Union[Output, Gap]


def output(chunk: dict[str, Any]) -> Output:
    """Makes a piece of output from the API's JSON."""
    data: str = chunk["data"]
    return Output(
        chunk["offset"],
        chunk["stream"],
        base64.b64decode(data) if chunk["encoding"] == "base64" else data.encode(),
    )


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    end: t.ExitReason
    """Why: `exited`, or what ended it, such as `timed_out` or `out_of_memory`."""
    exit_code: int | None
    """As a shell has it: the command's own, 128 + signal, 127 or 126 when it could not be started. None when nobody
    knows: the sandbox died or was paused under it."""
    signal: int | None
    """The signal that ended it, if one did."""


@dataclass(frozen=True)
class Result(Ended):
    """How a command ended, and what it wrote."""

    exec: t.Exec
    """All that the server knows of it."""
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    """Whether output is missing: more was written than is kept."""

    @property
    def stdout(self) -> str:
        """Standard output decoded as UTF-8. Bytes that are not UTF-8 are replaced by U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error decoded as UTF-8. Bytes that are not UTF-8 are replaced by U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    def check(self) -> Result:
        """Returns this result when the command ended with 0.

        Raises:
            CommandFailed: The command did not end with 0.
        """
        if not self.ok:
            raise CommandFailed(self)
        return self


class Collector:
    """Collects output up to a limit for each stream. Above the limit it drops the oldest bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._pieces: dict[str, deque[bytes]] = {"stdout": deque(), "stderr": deque()}
        self._sizes = {"stdout": 0, "stderr": 0}
        self._truncated = False

    def add(self, piece: Piece) -> None:
        if isinstance(piece, Gap):
            self._truncated = True
            return
        pieces = self._pieces[piece.stream]
        pieces.append(piece.data)
        over = self._sizes[piece.stream] + len(piece.data) - self._max
        self._sizes[piece.stream] += len(piece.data)
        while over > 0:
            self._truncated = True
            first = pieces.popleft()
            if len(first) > over:
                pieces.appendleft(first[over:])
            dropped = min(over, len(first))
            self._sizes[piece.stream] -= dropped
            over -= dropped

    def add_all(self, pieces: Iterable[Piece]) -> Collector:
        for piece in pieces:
            self.add(piece)
        return self

    def result(self, exec: t.Exec) -> Result:
        exit = exec.exit or t.Exit("sandbox_died", None, None, None)
        return Result(
            end=exit.reason,
            exit_code=exit.code,
            signal=exit.signal,
            exec=exec,
            stdout_bytes=b"".join(self._pieces["stdout"]),
            stderr_bytes=b"".join(self._pieces["stderr"]),
            truncated=self._truncated,
        )
