"""Commands that keep running between the tool calls of a model."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)
from atoll import AtollError, Gap

_KEPT_MAX_BYTES = 1 << 20
"""Most output that waits here for a model to ask for it; the oldest goes first."""


@dataclass
class _Running:
    process: Any
    tty: bool
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int | None = None
    used: float = field(default_factory=time.monotonic)
    reader: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Follows the output to its end, even if connections break, and then reads the exit code."""
        try:
            async for piece in self.process.output():
                if isinstance(piece, Gap):
                    continue
                async with self.lock:
                    self.chunks.append(piece.data)
                    waiting = sum(map(len, self.chunks))
                    while waiting > _KEPT_MAX_BYTES and len(self.chunks) > 1:
                        waiting -= len(self.chunks.popleft())
                self.more.set()
            self.exit_code = (await self.process.wait()).exit_code
        except AtollError as error:
            async with self.lock:
                self.chunks.append(f"\n[{error}]\n".encode())
        finally:
            self.closed.set()
            self.more.set()

    async def end(self) -> None:
        try:
            await self.process.kill()
        except AtollError:
            # Either the sandbox and its process are gone, or the process goes on until the sandbox ends.
            pass
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)


class Processes:
    """The commands of one session, by the numbers that the model names them with."""

    def __init__(self) -> None:
        self._running: dict[int, _Running] = {}

    async def started(
        self, process: Any, tty: bool, yield_time_s: float | None, max_output_tokens: int | None
    ) -> PtyExecUpdate:
        """Registers a command that has just started, and returns its first output."""
        one = _Running(process, tty)
        one.reader = asyncio.create_task(one.read())
        number = allocate_pty_process_id(set(self._running))
        self._running[number] = one
        await self._prune()
        waits = clamp_pty_yield_time_ms(10_000 if yield_time_s is None else int(yield_time_s * 1000))
        return await self._update(number, one, waits, max_output_tokens)

    async def write(
        self, number: int, chars: str, yield_time_s: float | None, max_output_tokens: int | None
    ) -> PtyExecUpdate:
        """Writes `chars` to the command's terminal, and returns the output since the last call."""
        one = self._running.get(number)
        if one is None:
            raise PtySessionNotFoundError(session_id=number)
        if chars:
            if not one.tty:
                raise RuntimeError("stdin is not available for this process")
            await one.process.write(chars)
        waits = resolve_pty_write_yield_time_ms(
            yield_time_ms=250 if yield_time_s is None else int(yield_time_s * 1000), input_empty=not chars
        )
        one.used = time.monotonic()
        return await self._update(number, one, waits, max_output_tokens)

    async def kill_all(self) -> None:
        """Kills all commands."""
        running, self._running = list(self._running.values()), {}
        await asyncio.gather(*(one.end() for one in running))

    async def _update(
        self, number: int, one: _Running, waits_ms: int, max_output_tokens: int | None
    ) -> PtyExecUpdate:
        output, tokens, closed = await collect_pty_output(
            output_chunks=one.chunks,
            output_lock=one.lock,
            output_notify=one.more,
            is_done=one.closed.is_set,
            yield_time_ms=waits_ms,
            max_output_tokens=max_output_tokens,
        )
        if closed:
            self._running.pop(number, None)
        return PtyExecUpdate(
            process_id=None if closed else number,
            output=output,
            exit_code=one.exit_code if closed else None,
            original_token_count=tokens,
        )

    async def _prune(self) -> None:
        while len(self._running) > PTY_PROCESSES_MAX:
            number = process_id_to_prune_from_meta(
                [(number, one.used, one.closed.is_set()) for number, one in self._running.items()]
            )
            if number is None:
                return
            await self._running.pop(number).end()
