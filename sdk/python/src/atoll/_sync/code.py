# Made by sdk/generate from ../_async: change that.
"""The code interpreter of a sandbox: its contexts, which keep state, and their cells."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping

from .. import params as p
from .. import types as t
from .._units import Duration, duration_ms
from ..cells import CellCollector, CodeResult
from . import _io
from ._io import OnEvent
from .transport import WAIT_S, Transport, Query, new_key, segment


class Cell:
    """A cell that runs, or ran. The cell does not need this object to go on."""

    def __init__(self, transport: Transport, context_path: str, id: str) -> None:
        self._transport = transport
        self.id = id
        self._path = f"{context_path}/cells/{segment(id)}"

    def __repr__(self) -> str:
        return f"Cell({self.id!r})"

    def info(self) -> t.Cell:
        """Asks the server for the cell's state."""
        return t.Cell.from_json(self._transport.json("GET", self._path))

    def events(self, since: int = 0) -> Iterator[t.CellEvent]:
        """Gives the cell's events after event number `since`, up to its end. Broken connections lose no event."""
        after = since
        while True:
            query: Query = [("after", after), ("wait_ms", int(WAIT_S * 1000))]
            page = self._transport.json("GET", f"{self._path}/events", query=query, wait=WAIT_S)
            for event in page["items"]:
                yield t.CellEvent.from_json(event)
            if page["ended"]:
                return
            after = page["next_after"]

    def result(self, *, on_event: OnEvent | None = None) -> CodeResult:
        """Waits for the cell's end and returns all its output. Calls `on_event` with each event as it comes."""
        collector = CellCollector(self.id)
        end: Mapping[str, object] = {"state": "failed"}
        for event in self.events():
            collector.add(event)
            if on_event is not None:
                _io.called(on_event(event))
            if event.kind == "end":
                end = event.data
        return collector.result(end)

    def interrupt(self) -> None:
        """Interrupts the cell's code. The context keeps its state. Does nothing when the cell has ended."""
        self._transport.json("POST", f"{self._path}/interrupt", again="always")


class Context:
    """A context: a kernel that keeps the state that its cells made."""

    def __init__(self, transport: Transport, sandbox_path: str, id: str, info: t.Context | None = None) -> None:
        self._transport = transport
        self.id = id
        """Its id, or its name if it was asked for by that."""
        self.info = info
        """What the server said of it, if it was asked."""
        self._path = f"{sandbox_path}/contexts/{segment(id)}"

    def __repr__(self) -> str:
        return f"Context({self.id!r})"

    def run(
        self,
        code: str,
        *,
        env: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        on_event: OnEvent | None = None,
        check: bool = False,
        idempotency_key: str | None = None,
    ) -> CodeResult:
        """Runs code to its end, after the earlier cells of the context. Broken connections never make it run twice.

        Args:
            code: The code.
            env: Variables for this cell, in addition to the context's.
            timeout: Interrupt the cell after this long; the result's `state` is then `timed_out`.
            on_event: Called with each event as it comes.
            check: Raise `CodeFailed` when the cell does not run to its end.
            idempotency_key: A later call with the same key gets the result of the first. A random key when absent.
        """
        body = _body(code, env, timeout, idempotency_key)
        if on_event is None:
            body["wait_ms"] = int(WAIT_S * 1000)
        wait = 0 if on_event is not None else WAIT_S
        answer = self._transport.json("POST", f"{self._path}/cells", body=body, again="always", wait=wait)
        cell = t.Cell.from_json(answer["cell"])
        events = answer.get("events")
        if events and on_event is None:
            collector = CellCollector(cell.id)
            for event in events:
                collector.add(t.CellEvent.from_json(event))
            result = collector.result(events[-1]["data"])
        else:
            result = self.cell(cell.id).result(on_event=on_event)
        return result.check() if check else result

    def start(
        self,
        code: str,
        *,
        env: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> Cell:
        """Starts code as a cell and does not wait for its end. The arguments are those of `run`."""
        body = _body(code, env, timeout, idempotency_key)
        answer = self._transport.json("POST", f"{self._path}/cells", body=body, again="always")
        return self.cell(answer["cell"]["id"])

    def cell(self, id: str) -> Cell:
        """Gives a cell by its id, also one that another client started. Sends no request."""
        return Cell(self._transport, self._path, id)

    def interrupt(self) -> None:
        """Interrupts the context's cells that run or wait. The context keeps its state."""
        self._transport.json("POST", f"{self._path}/interrupt", again="always")

    def restart(self) -> None:
        """Gives the context a new kernel, without the old state. Cells that run end."""
        self._transport.json("POST", f"{self._path}/restart", again="always")

    def remove(self) -> None:
        """Ends the context and its kernel."""
        self._transport.send("DELETE", self._path)


class Code:
    """The code interpreter of one sandbox, such as one of the template `code-interpreter-v1`."""

    def __init__(self, transport: Transport, sandbox_path: str) -> None:
        self._transport, self._base = transport, sandbox_path
        self._defaults: dict[str, Context] = {}

    def create_context(
        self,
        name: str | None = None,
        *,
        language: str = "python",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Context:
        """Makes a context. Returns when its kernel has started.

        Args:
            name: A name, unique in the sandbox. If the same context with this name exists already, it is returned.
            language: `python`, `javascript`, `typescript`, `bash`, or another language of the interpreter.
            cwd: The working directory of its cells.
            env: Environment variables of each of its cells.
            idempotency_key: A later call with the same key gets the context of the first. A random key when absent.
        """
        body: p.CreateContext = {"language": language}
        if name is not None:
            body["name"] = name
        if cwd is not None:
            body["cwd"] = cwd
        if env:
            body["env"] = dict(env)
        key = idempotency_key or new_key()
        answer = self._transport.json("POST", f"{self._base}/contexts", body=body, key=key, wait=WAIT_S)
        info = t.Context.from_json(answer)
        return Context(self._transport, self._base, info.id, info)

    def context(self, id_or_name: str) -> Context:
        """Gives an existing context by its id or name. Sends no request."""
        return Context(self._transport, self._base, id_or_name)

    def contexts(self) -> builtins.list[Context]:
        """Lists the contexts of the sandbox, oldest first."""
        found = t.ContextList.from_json(self._transport.json("GET", f"{self._base}/contexts")).items
        return [Context(self._transport, self._base, info.id, info) for info in found]

    def run(
        self,
        code: str,
        *,
        language: str = "python",
        env: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        on_event: OnEvent | None = None,
        check: bool = False,
        idempotency_key: str | None = None,
    ) -> CodeResult:
        """Runs code in the context named after `language`, as `Context.run`. The first call makes that context."""
        if language not in self._defaults:
            self._defaults[language] = self.create_context(language, language=language)
        return self._defaults[language].run(
            code, env=env, timeout=timeout, on_event=on_event, check=check, idempotency_key=idempotency_key
        )


def _body(
    code: str, env: Mapping[str, str] | None, timeout: Duration | None, idempotency_key: str | None
) -> p.RunCell:
    body: p.RunCell = {"code": code, "idempotency_key": idempotency_key or new_key()}
    if env:
        body["env"] = dict(env)
    if timeout is not None:
        body["timeout_ms"] = duration_ms(timeout)
    return body
