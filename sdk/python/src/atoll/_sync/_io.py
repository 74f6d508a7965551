"""Functions that differ between the asynchronous and the synchronous client. This is the synchronous version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TypeVar

from websockets.sync.client import ClientConnection as WebSocket
from websockets.sync.client import connect as _connect

from .. import types as t
from .._files import BINARY, PIECE_BYTES
from ..results import Piece

T = TypeVar("T")

OnOutput = Callable[[Piece], None]
"""Called with each piece of output."""
OnEvent = Callable[[t.CellEvent], None]
"""Called with each event of a cell."""

__all__ = ["OnEvent", "OnOutput", "WebSocket", "called", "connect", "in_thread", "pieces", "receive", "sleep"]


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(work: Callable[[], T]) -> T:
    """Runs a blocking function in the current thread. The asynchronous client runs it in another thread."""
    return work()


def called(value: None) -> None:
    """Does nothing: a callback of the synchronous client has returned already."""


def connect(url: str, headers: dict[str, str], timeout: float, max_size: int) -> WebSocket:
    connection = _connect(
        url, additional_headers=headers, open_timeout=timeout, close_timeout=2, max_size=max_size, compression=None
    )
    # Newer versions of websockets connect only in `__enter__`. The caller closes the socket.
    return connection.__enter__()


def receive(socket: WebSocket, timeout: float | None) -> str | bytes:
    """The next message.

    Raises:
        TimeoutError: No message came in time.
    """
    return socket.recv(timeout)


def pieces(source: BinaryIO | Iterable[bytes]) -> Iterator[bytes]:
    """The content of a file or an iterable, one piece at a time."""
    if isinstance(source, BINARY):
        while piece := source.read(PIECE_BYTES):
            yield piece
        return
    yield from source
