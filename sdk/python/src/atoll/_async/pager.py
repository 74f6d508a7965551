"""Listings that come in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .transport import AsyncTransport, Query

T = TypeVar("T")


@dataclass(frozen=True)
class AsyncPage(Generic[T]):
    """One page of a listing."""

    items: list[T]
    next_cursor: str | None
    """Pass it to `page` for the next one; None on the last."""


class AsyncPager(Generic[T]):
    """A listing. Iterating over it fetches each page when it is needed."""

    def __init__(
        self, transport: AsyncTransport, path: str, query: Query, read: Callable[[Any], T], limit: int | None = None
    ) -> None:
        self._transport, self._path, self._read = transport, path, read
        self._query = [*query, ("limit", limit)]

    async def page(self, cursor: str | None = None) -> AsyncPage[T]:
        """Fetches one page: the first, or the one after the page whose `next_cursor` is given."""
        answer = await self._transport.json("GET", self._path, query=[*self._query, ("cursor", cursor)])
        return AsyncPage([self._read(one) for one in answer["items"]], answer.get("next_cursor"))

    async def __aiter__(self) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            page = await self.page(cursor)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    async def all(self) -> list[T]:
        """Fetches all pages and returns their items in one list."""
        return [item async for item in self]
