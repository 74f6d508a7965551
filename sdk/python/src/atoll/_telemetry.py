"""OpenTelemetry, where it is installed: one `execute_tool` span for each run, and `traceparent` on every request."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from .results import Result

try:
    from opentelemetry import propagate, trace
except ImportError:
    propagate = trace = None

_NAME = "atoll"


class ToolSpan:
    """The span of one `run`. It does nothing when OpenTelemetry is not installed."""

    def __init__(self, span: Span | None) -> None:
        self._span = span

    def ended(self, result: Result) -> None:
        """Puts the exec's id and how it ended into the span.

        The command and its output stay out of the span: they are the caller's own.
        """
        if self._span is None:
            return
        self._span.set_attribute("gen_ai.tool.call.id", result.exec.id)
        self._span.set_attribute("atoll.exec.end", result.end)
        if result.exit_code is not None:
            self._span.set_attribute("process.exit.code", result.exit_code)


@contextlib.contextmanager
def tool_span(sandbox: str) -> Generator[ToolSpan]:
    """Makes a span around one `run`. Its attributes follow OpenTelemetry's conventions for generative AI."""
    if trace is None:
        yield ToolSpan(None)
        return
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "atoll.run",
        "gen_ai.tool.type": "extension",
        "atoll.sandbox.id": sandbox,
    }
    tracer = trace.get_tracer(_NAME)
    with tracer.start_as_current_span("execute_tool atoll.run", attributes=attributes) as span:
        yield ToolSpan(span)


def inject(headers: dict[str, str]) -> None:
    """Adds the headers of the current trace to a request's headers, if there is a trace."""
    if propagate is not None and trace is not None and trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)
