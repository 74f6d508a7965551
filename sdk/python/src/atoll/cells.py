"""Results of the cells of a code interpreter."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import types as t
from .errors import CodeFailed


@dataclass(frozen=True)
class CodeOutput:
    """The value of a cell, or an output that the cell displayed, in one or more formats."""

    main: bool
    """Whether it is the value of the cell itself."""
    data: Mapping[str, Any]
    """By MIME type: text as it is, pictures in base64, JSON as objects."""

    def __getitem__(self, kind: str) -> Any:
        return self.data[kind]

    def get(self, kind: str) -> Any:
        """The data of a MIME type, or None."""
        return self.data.get(kind)

    @property
    def text(self) -> str | None:
        """As plain text."""
        return self.get("text/plain")

    @property
    def html(self) -> str | None:
        """As HTML."""
        return self.get("text/html")

    @property
    def markdown(self) -> str | None:
        """As Markdown."""
        return self.get("text/markdown")

    @property
    def latex(self) -> str | None:
        """As LaTeX."""
        return self.get("text/latex")

    @property
    def svg(self) -> str | None:
        """As an SVG picture."""
        return self.get("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """As a PNG picture."""
        return self._bytes("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """As a JPEG picture."""
        return self._bytes("image/jpeg")

    @property
    def json(self) -> Any:
        """As JSON."""
        return self.get("application/json")

    @property
    def chart(self) -> Any:
        """The data that a matplotlib figure shows."""
        return self.get("application/vnd.atoll.chart+json")

    @property
    def table(self) -> Any:
        """A pandas table, as columns."""
        return self.get("application/vnd.atoll.table+json")

    def _bytes(self, kind: str) -> bytes | None:
        data = self.get(kind)
        return base64.b64decode(data) if isinstance(data, str) else None


@dataclass(frozen=True)
class CodeError:
    """The error with which a cell failed."""

    name: str
    """Such as `ValueError`."""
    value: str
    traceback: str


@dataclass(frozen=True)
class CodeResult:
    """How a cell ended, and its output."""

    id: str
    """The cell."""
    state: t.CellState
    """How it ended: `done`, `error`, `interrupted`, `timed_out`, or `failed` for the reason."""
    reason: str | None
    execution_count: int | None
    stdout: str
    stderr: str
    results: list[CodeOutput]
    error: CodeError | None
    problems: list[str]
    """What of it is not here, and why."""

    @property
    def text(self) -> str | None:
        """The value of the cell as text, if it has one."""
        return next((one.text for one in self.results if one.main), None)

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end."""
        return self.state == "done"

    def check(self) -> CodeResult:
        """Returns this result when the cell ran to its end.

        Raises:
            CodeFailed: The cell did not run to its end.
        """
        if not self.ok:
            raise CodeFailed(self)
        return self


class CellCollector:
    """Makes a `CodeResult` from the events of a cell."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._text: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._results: list[CodeOutput] = []
        self._error: CodeError | None = None
        self._problems: list[str] = []

    def add(self, event: t.CellEvent) -> None:
        data: Mapping[str, Any] = event.data
        if event.kind in self._text:
            self._text[event.kind].append(data["text"])
        elif event.kind == "result":
            self._results.append(CodeOutput(data["main"], data["data"]))
        elif event.kind == "error":
            self._error = CodeError(data["name"], data["value"], data["traceback"])
        elif event.kind == "problem":
            self._problems.append(data["text"])

    def result(self, end: Mapping[str, Any]) -> CodeResult:
        return CodeResult(
            id=self._id,
            state=end["state"],
            reason=end.get("reason"),
            execution_count=end.get("execution_count"),
            stdout="".join(self._text["stdout"]),
            stderr="".join(self._text["stderr"]),
            results=self._results,
            error=self._error,
            problems=self._problems,
        )
