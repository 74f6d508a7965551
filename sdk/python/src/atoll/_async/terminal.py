"""Terminals, over a WebSocket."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from websockets.exceptions import InvalidStatus, WebSocketException

from .. import errors
from .. import types as t
from .._units import Duration, maybe_ms
from ..results import Ended
from . import _io
from .transport import AsyncTransport, segment

if TYPE_CHECKING:
    from .process import AsyncProcess

_HEADER_BYTES = 9
_MESSAGE_MAX_BYTES = 4 << 20
_SEND_MAX_BYTES = 1 << 20
_TRIES = 8


class AsyncTerminal:
    """A connection to a command's terminal: `recv` reads its output, `send` types.

    When the connection breaks, the client reconnects and reads on at the same byte. Text that is sent at that moment
    may be lost: `send` then raises `Unreachable`. With `process.write`, each byte arrives exactly once.
    """

    def __init__(self, transport: AsyncTransport, process: AsyncProcess, since: int, *, kills: bool) -> None:
        self._transport, self._kills = transport, kills
        self.process = process
        self.offset = since
        """Of the next byte that is shown."""
        self.ended: Ended | None = None
        """How the command ended, once all was shown."""
        self._socket: _io.AsyncWebSocket | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncTerminal:
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection. Kills the command if `sandbox.terminal` made this terminal."""
        self._closed = True
        await self._drop()
        if self._kills and self.ended is None:
            await self.process.kill()

    async def send(self, data: str | bytes) -> None:
        """Types text into the terminal."""
        raw = data.encode() if isinstance(data, str) else data
        for at in range(0, len(raw), _SEND_MAX_BYTES):
            await self._send(raw[at : at + _SEND_MAX_BYTES])

    async def resize(self, cols: int, rows: int) -> None:
        """Changes the terminal's size."""
        await self._send(json.dumps({"type": "resize", "cols": cols, "rows": rows}))

    async def recv(self, timeout: Duration | None = None) -> bytes:
        """Reads the terminal's next output. Empty when the command has ended and all output was read.

        Raises:
            TimedOut: The terminal showed nothing new within `timeout`.
        """
        timeout_ms = maybe_ms(timeout)
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while self.ended is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                socket = await self._connected()
                message = await _io.receive(socket, left)
            except TimeoutError as error:
                raise errors.TimedOut("the terminal shows nothing new", code="timeout", retryable=True) from error
            except (OSError, WebSocketException):
                await self._drop()
                continue
            shown = self._shown(message)
            if shown:
                return shown
        return b""

    async def read_until(self, text: str | bytes, timeout: Duration | None = None) -> bytes:
        """Reads the terminal's output until it contains a text. Returns less when the command ends before."""
        wanted = text.encode() if isinstance(text, str) else text
        shown = bytearray()
        while wanted not in shown:
            piece = await self.recv(timeout)
            if not piece:
                break
            shown += piece
        return bytes(shown)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.recv():
            yield piece

    def _shown(self, message: str | bytes) -> bytes:
        if isinstance(message, bytes):
            offset = int.from_bytes(message[1:_HEADER_BYTES], "big")
            fresh = message[_HEADER_BYTES + max(0, self.offset - offset) :]
            self.offset = max(self.offset, offset + len(message) - _HEADER_BYTES)
            return fresh
        said: dict[str, Any] = json.loads(message)
        if said["type"] == "gap":
            self.offset = said["to"]
        elif said["type"] == "exit":
            exit = t.Exit.from_json(said["exit"])
            self.ended = Ended(exit.reason, exit.code, exit.signal)
        elif said["type"] == "error":
            raise errors.from_body(said["error"], may_have_run=True)
        return b""

    async def _send(self, message: str | bytes) -> None:
        socket = await self._connected()
        try:
            await socket.send(message)
        except (OSError, WebSocketException) as error:
            await self._drop()
            raise errors.Unreachable(
                "the terminal's connection broke off while something was typed",
                code="unreachable",
                hint="look at what is shown, then type again",
                retryable=False,
                may_have_run=True,
            ) from error

    async def _connected(self) -> _io.AsyncWebSocket:
        if self._socket is not None:
            return self._socket
        if self._closed:
            raise errors.InvalidRequest("the terminal is closed", code="invalid_argument")
        base = "ws" + self._transport.url.removeprefix("http")
        process = f"/v1/sandboxes/{segment(self.process.sandbox_id)}/execs/{segment(self.process.id)}"
        path = f"{process}/attach?offset={self.offset}"
        delay, tries = 0.1, min(_TRIES, self._transport.max_retries)
        while True:
            try:
                self._socket = await _io.connect(
                    base + path, self._transport.headers, self._transport.timeout, _MESSAGE_MAX_BYTES
                )
                return self._socket
            except InvalidStatus as error:
                answer = error.response
                failure = errors.from_answer(answer.status_code, bytes(answer.body or b""), changes=False, request_id=None)
                if not failure.retryable or tries == 0:
                    raise failure from None
            except (OSError, WebSocketException) as error:
                if tries == 0:
                    raise errors.Unreachable(
                        f"the server cannot be reached ({error})", code="unreachable", retryable=True
                    ) from error
            tries -= 1
            await _io.sleep(delay)
            delay = min(delay * 2, 2.0)

    async def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            try:
                await socket.close()
            except (OSError, WebSocketException):
                pass
