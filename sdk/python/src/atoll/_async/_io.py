"""Functions that differ between the asynchronous and the synchronous client. This is the asynchronous version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import BinaryIO, TypeVar, Union

from websockets.asyncio.client import ClientConnection as AsyncWebSocket
from websockets.asyncio.client import connect as _connect

from .. import types as t
from .._files import BINARY, PIECE_BYTES
from ..results import Piece

T = TypeVar("T")

OnOutput = Callable[[Piece], Union[Awaitable[None], None]]
"""Called with each piece of output."""
OnEvent = Callable[[t.CellEvent], Union[Awaitable[None], None]]
"""Called with each event of a cell."""

__all__ = ["AsyncWebSocket", "OnEvent", "OnOutput", "called", "connect", "in_thread", "pieces", "receive", "sleep"]



async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_thread(work: Callable[[], T]) -> T:
    """Runs a blocking function in a thread."""
    return await asyncio.to_thread(work)


async def called(value: Awaitable[None] | None) -> None:
    """Waits for the result of a callback, when the callback is asynchronous."""
    if value is not None:
        await value


async def connect(url: str, headers: dict[str, str], timeout: float, max_size: int) -> AsyncWebSocket:
    return await _connect(
        url, additional_headers=headers, open_timeout=timeout, close_timeout=2, max_size=max_size, compression=None
    )


async def receive(socket: AsyncWebSocket, timeout: float | None) -> str | bytes:
    """The next message.

    Raises:
        TimeoutError: No message came in time.
    """
    try:
        return await asyncio.wait_for(socket.recv(), timeout)
    except asyncio.TimeoutError as error:
        # Before Python 3.11, `asyncio.TimeoutError` and `TimeoutError` are different classes.
        raise TimeoutError from error


async def pieces(source: BinaryIO | Iterable[bytes]) -> AsyncIterator[bytes]:
    """The content of a file or an iterable, one piece at a time."""
    if isinstance(source, BINARY):
        while piece := await asyncio.to_thread(source.read, PIECE_BYTES):
            yield piece
        return
    for piece in source:
        yield piece
