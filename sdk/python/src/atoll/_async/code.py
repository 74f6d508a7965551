"""The code interpreter of a sandbox: contexts that remember, and cells."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping

from .. import params as p
from .. import types as t
from .._units import Duration, duration_ms
from ..cells import CellCollector, CodeResult
from . import _io
from ._io import OnEvent
from .transport import WAIT_S, AsyncTransport, Query, new_key, segment


class AsyncCell:
    """A cell that runs, or ran. It goes on without this object."""

    def __init__(self, transport: AsyncTransport, context_path: str, id: str) -> None:
        self._transport = transport
        self.id = id
        self._path = f"{context_path}/cells/{segment(id)}"

    def __repr__(self) -> str:
        return f"AsyncCell({self.id!r})"

    async def info(self) -> t.Cell:
        """Asks the server how it is."""
        return t.Cell.from_json(await self._transport.json("GET", self._path))

    async def events(self, since: int = 0) -> AsyncIterator[t.CellEvent]:
        """What it says after the event of a number, up to its end, whatever happens to connections."""
        after = since
        while True:
            query: Query = [("after", after), ("wait_ms", int(WAIT_S * 1000))]
            page = await self._transport.json("GET", f"{self._path}/events", query=query, wait=WAIT_S)
            for event in page["items"]:
                yield t.CellEvent.from_json(event)
            if page["ended"]:
                return
            after = page["next_after"]

    async def result(self, *, on_event: OnEvent | None = None) -> CodeResult:
        """Waits for its end and gives all that it said. `on_event` is called with each event as it comes."""
        collector = CellCollector(self.id)
        end: Mapping[str, object] = {"state": "failed"}
        async for event in self.events():
            collector.add(event)
            if on_event is not None:
                await _io.called(on_event(event))
            if event.kind == "end":
                end = event.data
        return collector.result(end)

    async def interrupt(self) -> None:
        """Interrupts it: its code is told, and what its context remembers stays. Does nothing to one that has ended."""
        await self._transport.json("POST", f"{self._path}/interrupt", again="always")


class AsyncContext:
    """A context: a kernel that remembers what its cells did."""

    def __init__(self, transport: AsyncTransport, sandbox_path: str, id: str, info: t.Context | None = None) -> None:
        self._transport = transport
        self.id = id
        """Its id, or its name if it was asked for by that."""
        self.info = info
        """What the server said of it, if it was asked."""
        self._path = f"{sandbox_path}/contexts/{segment(id)}"

    def __repr__(self) -> str:
        return f"AsyncContext({self.id!r})"

    async def run(
        self,
        code: str,
        *,
        env: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        on_event: OnEvent | None = None,
        check: bool = False,
        idempotency_key: str | None = None,
    ) -> CodeResult:
        """Runs code to its end, after the cells before it. It runs once, whatever happens to connections meanwhile.

        Args:
            code: The code.
            env: Variables on top of the context's, for this cell.
            timeout: Interrupt it after this long; the result's `state` is then `timed_out`.
            on_event: Called with each event as it comes.
            check: Raise `CodeFailed` when it does not run to its end.
            idempotency_key: A call with the same key gets the first one's result. Made up when absent.
        """
        body = _body(code, env, timeout, idempotency_key)
        if on_event is None:
            body["wait_ms"] = int(WAIT_S * 1000)
        wait = 0 if on_event is not None else WAIT_S
        answer = await self._transport.json("POST", f"{self._path}/cells", body=body, again="always", wait=wait)
        cell = t.Cell.from_json(answer["cell"])
        events = answer.get("events")
        if events and on_event is None:
            collector = CellCollector(cell.id)
            for event in events:
                collector.add(t.CellEvent.from_json(event))
            result = collector.result(events[-1]["data"])
        else:
            result = await self.cell(cell.id).result(on_event=on_event)
        return result.check() if check else result

    async def start(
        self,
        code: str,
        *,
        env: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncCell:
        """Runs code and does not wait for it. It goes on by itself; as `run` otherwise."""
        body = _body(code, env, timeout, idempotency_key)
        answer = await self._transport.json("POST", f"{self._path}/cells", body=body, again="always")
        return self.cell(answer["cell"]["id"])

    def cell(self, id: str) -> AsyncCell:
        """A cell that was started before, here or elsewhere, by its id. Asks the server nothing."""
        return AsyncCell(self._transport, self._path, id)

    async def interrupt(self) -> None:
        """Interrupts its cells that run or wait. What it remembers stays."""
        await self._transport.json("POST", f"{self._path}/interrupt", again="always")

    async def restart(self) -> None:
        """Gives it a new kernel, which remembers nothing. Cells that run end."""
        await self._transport.json("POST", f"{self._path}/restart", again="always")

    async def remove(self) -> None:
        """Ends it."""
        await self._transport.send("DELETE", self._path)


class AsyncCode:
    """The code interpreter of one sandbox, such as one of the template `code-interpreter-v1`."""

    def __init__(self, transport: AsyncTransport, sandbox_path: str) -> None:
        self._transport, self._base = transport, sandbox_path
        self._defaults: dict[str, AsyncContext] = {}

    async def create_context(
        self,
        name: str | None = None,
        *,
        language: str = "python",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncContext:
        """Makes a context; comes back when its kernel has started.

        Args:
            name: A name, unique in the sandbox. The same context with this name that is there already is the answer.
            language: `python`, `javascript`, `typescript`, `bash`, or what else the interpreter knows.
            cwd: Where its cells begin.
            env: Variables of each of its cells.
            idempotency_key: A call with the same key gets the first one's context. Made up when absent.
        """
        body: p.CreateContext = {"language": language}
        if name is not None:
            body["name"] = name
        if cwd is not None:
            body["cwd"] = cwd
        if env:
            body["env"] = dict(env)
        key = idempotency_key or new_key()
        answer = await self._transport.json("POST", f"{self._base}/contexts", body=body, key=key, wait=WAIT_S)
        info = t.Context.from_json(answer)
        return AsyncContext(self._transport, self._base, info.id, info)

    def context(self, id_or_name: str) -> AsyncContext:
        """A context that there is. Asks the server nothing."""
        return AsyncContext(self._transport, self._base, id_or_name)

    async def contexts(self) -> builtins.list[AsyncContext]:
        """The contexts that there are, the oldest first."""
        found = t.ContextList.from_json(await self._transport.json("GET", f"{self._base}/contexts")).items
        return [AsyncContext(self._transport, self._base, info.id, info) for info in found]

    async def run(
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
        """Runs code in the context that is named after its language, which is made with the first. As `AsyncContext.run`."""
        if language not in self._defaults:
            self._defaults[language] = await self.create_context(language, language=language)
        return await self._defaults[language].run(
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
