# Made by sdk/generate from ../_async: change that.
"""Commands in a sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from .. import errors
from .. import params as p
from .. import types as t
from .._units import Duration, duration_ms, maybe_ms
from ..results import OUTPUT_MAX_BYTES, Collector, Ended, Gap, Piece, Result, output
from . import _io
from ._io import OnOutput
from .terminal import Terminal
from .transport import WAIT_S, Transport, Query, new_key, segment

Command = Union[str, Sequence[str]]
"""A line for `/bin/sh -c`, or program and arguments, which no shell looks at."""

_STDIN_MAX_BYTES = 1 << 20
# When a connection breaks, the client asks for the whole page again, so pages are small.
_PAGE_MAX_BYTES = 256 << 10
_FINAL = frozenset({"exited", "lost"})


def command_body(
    command: Command,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    timeout: Duration | None = None,
    idle_timeout: Duration | None = None,
    stdin: bool = False,
    tty: tuple[int, int] | None = None,
    keep_output: int | None = None,
    idempotency_key: str | None = None,
) -> p.CreateExec:
    """Makes the body of a request that runs a command."""
    body: p.CreateExec = {"idempotency_key": idempotency_key or new_key(), "stdin": stdin}
    if isinstance(command, str):
        body["shell"] = command
    else:
        body["argv"] = list(command)
    if cwd is not None:
        body["cwd"] = cwd
    if env:
        body["env"] = dict(env)
    if user is not None:
        body["user"] = user
    if timeout is not None:
        body["timeout_ms"] = duration_ms(timeout)
    if idle_timeout is not None:
        body["idle_timeout_ms"] = duration_ms(idle_timeout)
    if tty is not None:
        size: p.TtySize = {"cols": tty[0], "rows": tty[1]}
        body["tty"] = size
    if keep_output is not None:
        body["keep_output_bytes"] = keep_output
    return body


class Process:
    """A command that runs, or ran, in a sandbox. It goes on without this object; `sandbox.exec(id)` finds it again."""

    def __init__(self, transport: Transport, sandbox: str, id: str, info: t.Exec | None = None) -> None:
        self._transport = transport
        self.sandbox_id = sandbox
        self.id = id
        self.info = info
        """What the server said of it last, if it was asked."""
        self._path = f"/v1/sandboxes/{segment(sandbox)}/execs/{segment(id)}"

    def __repr__(self) -> str:
        return f"Process({self.id!r})"

    def refresh(self) -> t.Exec:
        """Asks the server for the command's state."""
        self.info = t.Exec.from_json(self._transport.json("GET", self._path))
        return self.info

    def output(self, since: int = 0, *, follow: bool = True) -> Iterator[Piece]:
        """Gives the command's output from offset `since` on: `Output`, and `Gap` where the server kept it no longer.

        Goes on until the command has ended; broken connections lose nothing. With `follow=False`, stops when the
        server has no more output.
        """
        offset = since
        while True:
            query: Query = [
                ("offset", offset),
                ("wait_ms", int(WAIT_S * 1000) if follow else None),
                ("max_bytes", _PAGE_MAX_BYTES),
            ]
            page = self._transport.json("GET", f"{self._path}/output", query=query, wait=WAIT_S)
            gap: int | None = page.get("gap_until")
            if gap is not None and gap > offset:
                yield Gap(offset, gap)
            for chunk in page["chunks"]:
                yield output(chunk)
            offset = page["next_offset"]
            if not page["chunks"] and gap is None and (not follow or page["state"] in _FINAL):
                return

    def write(self, data: str | bytes) -> None:
        """Writes to the command's standard input. The command must have been started with `stdin=True` or with `pty`.

        Each byte arrives exactly once, also when a connection breaks.
        """
        raw = data.encode() if isinstance(data, str) else data
        for at in range(0, len(raw), _STDIN_MAX_BYTES):
            self._stdin(raw[at : at + _STDIN_MAX_BYTES], close=False)

    def close_stdin(self) -> None:
        """Closes the command's standard input."""
        self._stdin(b"", close=True)

    def _stdin(self, data: bytes, *, close: bool) -> None:
        query: Query = [("close", True if close else None)]
        # Not sent again when the server answers with an error: it may have written a part of the data.
        self._transport.send(
            "POST", f"{self._path}/stdin", content=data, query=query, key=new_key(), again="lost"
        )

    def signal(self, signal: str | int, *, tree: bool = False) -> None:
        """Sends a signal (`TERM`, `SIGINT`, a number) to its process group; with `tree`, to everything it started."""
        body: p.SignalExec = {"signal": str(signal), "tree": tree}
        self._transport.json("POST", f"{self._path}/signal", body=body, key=new_key())

    def kill(self) -> None:
        """Kills all processes of the command, and returns when it has ended. Does nothing when it has ended already."""
        self._transport.send("DELETE", self._path)

    def resize(self, cols: int, rows: int) -> None:
        """Changes the size of the command's terminal."""
        body: p.TtySize = {"cols": cols, "rows": rows}
        self._transport.json("POST", f"{self._path}/resize", body=body, again="always")

    def wait(self, timeout: Duration | None = None) -> Ended:
        """Waits for the command's end.

        Raises:
            TimedOut: The command still runs after `timeout`. It goes on running.
        """
        info = self._wait(maybe_ms(timeout))
        exit = info.exit or t.Exit("sandbox_died", None, None, None)
        return Ended(exit.reason, exit.code, exit.signal)

    def _wait(self, timeout_ms: int | None) -> t.Exec:
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            left = WAIT_S if deadline is None else min(WAIT_S, max(0.0, deadline - time.monotonic()))
            query: Query = [("wait_ms", int(left * 1000))]
            self.info = t.Exec.from_json(self._transport.json("GET", self._path, query=query, wait=left))
            if self.info.state in _FINAL:
                return self.info
            if deadline is not None and time.monotonic() >= deadline:
                raise errors.TimedOut(
                    f"exec {self.id} still runs", code="timeout", hint="wait again, or kill it", retryable=True
                )

    def result(
        self, *, on_output: OnOutput | None = None, max_output: int = OUTPUT_MAX_BYTES, since: int = 0
    ) -> Result:
        """Waits for the command's end and returns its output from `since` on. Calls `on_output` with each piece."""
        collector = Collector(max_output)
        for piece in self.output(since):
            collector.add(piece)
            if on_output is not None:
                _io.called(on_output(piece))
        return collector.result(self._wait(None))

    def attach(self, since: int = 0) -> Terminal:
        """Connects to the command's terminal over a WebSocket. Closing the terminal does not end the command."""
        return Terminal(self._transport, self, since, kills=False)


def run(
    transport: Transport,
    sandbox: str,
    body: p.CreateExec,
    *,
    input: str | bytes | None,
    on_output: OnOutput | None,
    max_output: int,
) -> Result:
    """Starts a command and returns its result. A short command with little output needs only one request."""
    path = f"/v1/sandboxes/{segment(sandbox)}/execs"
    live = input is not None or on_output is not None
    if not live:
        body["wait_ms"] = int(WAIT_S * 1000)
    answer = transport.json("POST", path, body=body, again="always", wait=0 if live else WAIT_S)
    info = t.Exec.from_json(answer["exec"])
    chunks: list[dict[str, Any]] | None = answer.get("output")
    if chunks is not None and info.state in _FINAL and not live:
        return Collector(max_output).add_all(_pieces(info, chunks)).result(info)
    process = Process(transport, sandbox, info.id, info)
    if input is not None:
        try:
            process.write(input)
            process.close_stdin()
        except errors.Conflict as error:
            # The command ended, or closed its input, before it read everything. Its result says more than this error.
            if error.code not in {"exec_ended", "stdin_closed"}:
                raise
    return process.result(on_output=on_output, max_output=max_output)


def _pieces(info: t.Exec, chunks: list[dict[str, Any]]) -> list[Piece]:
    pieces: list[Piece] = [output(chunk) for chunk in chunks]
    if info.output_first > 0:
        pieces.insert(0, Gap(0, info.output_first))
    return pieces

