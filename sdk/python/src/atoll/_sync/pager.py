# Made by sdk/generate from ../_async: change that.
"""Listings that come in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .transport import Transport, Query

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a listing."""

    items: list[T]
    next_cursor: str | None
    """Pass it to `page` for the next one; None on the last."""


class Pager(Generic[T]):
    """A listing. Iterating over it fetches each page when it is needed."""

    def __init__(
        self, transport: Transport, path: str, query: Query, read: Callable[[Any], T], limit: int | None = None
    ) -> None:
        self._transport, self._path, self._read = transport, path, read
        self._query = [*query, ("limit", limit)]

    def page(self, cursor: str | None = None) -> Page[T]:
        """Fetches one page: the first, or the one after the page whose `next_cursor` is given."""
        answer = self._transport.json("GET", self._path, query=[*self._query, ("cursor", cursor)])
        return Page([self._read(one) for one in answer["items"]], answer.get("next_cursor"))

    def __iter__(self) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = self.page(cursor)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    def all(self) -> list[T]:
        """Fetches all pages and returns their items in one list."""
        return [item for item in self]
