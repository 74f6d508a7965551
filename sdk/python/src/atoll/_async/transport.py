"""Sends requests: the key, timeouts, retries, and the errors that answers mean."""

from __future__ import annotations

import json as jsonlib
import logging
import os
import random
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Union
from urllib.parse import quote

import httpx

from .. import errors
from .._telemetry import inject
from .._version import VERSION
from . import _io

Query = Sequence[tuple[str, Union[str, int, bool, None]]]
Body = Callable[[], AsyncIterable[bytes]]
"""Makes a body: once for each attempt."""

Again = Literal["always", "lost", "never"]
"""When a request that may have been done is sent again: always; only when its answer was lost; never."""

log = logging.getLogger("atoll")

WAIT_S = 30.0
"""How long one request waits for something to happen."""

_DELAY_S, _DELAY_MAX_S = 0.1, 2.0
# When httpx raises one of these, it has sent nothing.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_LATER = frozenset({429, 500, 502, 503, 504})
_SAFE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_JSON = {"content-type": "application/json"}


def new_key() -> str:
    """Makes a random idempotency key."""
    return secrets.token_hex(16)


def segment(text: str) -> str:
    """Encodes a name or id as one segment of a URL's path."""
    if not text or text in {".", ".."}:
        raise errors.InvalidRequest(f"{text!r} is no id and no name", code="invalid_argument")
    return quote(text, safe="")


class AsyncTransport:
    """Sends requests to one server with one key."""

    def __init__(
        self,
        url: str | None,
        api_key: str | None,
        timeout: float,
        max_retries: int,
        http: httpx.AsyncClient | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        url = url or os.environ.get("ATOLL_URL")
        api_key = api_key or os.environ.get("ATOLL_API_KEY")
        if not url or not api_key:
            missing = "url" if not url else "key"
            raise errors.InvalidRequest(
                f"no {missing} of a server was given",
                code="invalid_argument",
                hint="set ATOLL_URL and ATOLL_API_KEY, pass url and api_key, or use Atoll.local()",
            )
        self.url = url.rstrip("/")
        self.timeout, self.max_retries = timeout, max_retries
        self.headers = {"user-agent": f"atoll-python/{VERSION}", **(headers or {}), "authorization": f"Bearer {api_key}"}
        self._owns = http is None
        # Redirects are not followed: they would send the key to another server.
        self._http = http or httpx.AsyncClient(limits=httpx.Limits(max_connections=None), follow_redirects=False)

    def __repr__(self) -> str:
        return f"AsyncTransport({self.url!r})"

    def with_options(self, timeout: float | None, max_retries: int | None) -> AsyncTransport:
        """Returns a transport with other limits that uses the same connections."""
        other = object.__new__(AsyncTransport)
        other.__dict__.update(self.__dict__, _owns=False)
        other.timeout = self.timeout if timeout is None else timeout
        other.max_retries = self.max_retries if max_retries is None else max_retries
        return other

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._owns:
            await self._http.aclose()

    async def json(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Query = (),
        key: str | None = None,
        again: Again | None = None,
        wait: float = 0,
    ) -> Any:
        """Sends JSON and returns the answer's JSON, or None when the answer is empty."""
        content = None if body is None else _dumps(body)
        headers = _JSON if content is not None else None
        response = await self.send(
            method, path, content=content, headers=headers, query=query, key=key, again=again, wait=wait
        )
        try:
            return jsonlib.loads(response.content) if response.content else None
        except ValueError as error:
            raise errors.ServerError("the server's answer is no JSON", code="bad_answer") from error

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Body | None = None,
        headers: Mapping[str, str] | None = None,
        query: Query = (),
        key: str | None = None,
        again: Again | None = None,
        wait: float = 0,
    ) -> httpx.Response:
        """Sends a request and reads its whole answer.

        `key` is an idempotency key: the server does not repeat a request whose key it has seen. `wait` is the time for
        which the request asks the server to wait, in addition to the client's timeout.
        """
        all_headers = self._headers(headers, key)
        again = again or ("always" if key is not None or method in _SAFE else "never")
        attempts = _Attempts(self, method, path, again, all_headers["x-request-id"], wait)
        while True:
            try:
                response = await self._http.request(
                    method,
                    self.url + path,
                    params=_query(query),
                    content=content() if callable(content) else content,
                    headers=all_headers,
                    timeout=attempts.remaining(),
                )
            except httpx.RequestError as error:
                await _io.sleep(attempts.lost(error))
                continue
            if response.status_code < 400:
                attempts.answered(response)
                return response
            if response.status_code == 404 and method == "DELETE" and attempts.was_lost:
                # An earlier DELETE, whose answer was lost, has deleted it.
                return response
            await _io.sleep(attempts.refused(response, response.content))

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Body | None = None,
        headers: Mapping[str, str] | None = None,
        query: Query = (),
        again: Again | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> AsyncGenerator[httpx.Response]:
        """Sends a request and gives its answer while it arrives. Retries only until the answer begins."""
        all_headers = self._headers(headers, None)
        again = again or ("always" if method in _SAFE else "never")
        attempts = _Attempts(self, method, path, again, all_headers["x-request-id"], 0)
        while True:
            request = self._http.build_request(
                method,
                self.url + path,
                params=_query(query),
                content=content() if callable(content) else content,
                headers=all_headers,
                timeout=timeout or attempts.remaining(),
            )
            try:
                response = await self._http.send(request, stream=True)
            except httpx.RequestError as error:
                await _io.sleep(attempts.lost(error))
                continue
            try:
                if response.status_code < 400:
                    attempts.answered(response)
                    yield response
                    return
                said = await response.aread()
            except httpx.RequestError as error:
                raise attempts.broken(error) from error
            finally:
                await response.aclose()
            await _io.sleep(attempts.refused(response, said))

    def _headers(self, headers: Mapping[str, str] | None, key: str | None) -> dict[str, str]:
        # The client chooses the request id, so that a request whose answer is lost can be found in the server's log.
        found = {**self.headers, "x-request-id": secrets.token_hex(8)}
        if headers:
            found.update(headers)
        if key is not None:
            found["idempotency-key"] = key
        inject(found)
        return found


class _Attempts:
    """Counts the attempts at one request, and decides whether there is another."""

    def __init__(
        self, transport: AsyncTransport, method: str, path: str, again: Again, request_id: str, wait: float
    ) -> None:
        self.method, self.path, self.again, self.request_id = method, path, again, request_id
        self.left = transport.max_retries
        self.began = time.monotonic()
        self.deadline = self.began + transport.timeout + wait
        self.delay = _DELAY_S
        self.was_lost = False

    def remaining(self) -> float:
        return max(self.deadline - time.monotonic(), 0.001)

    def answered(self, response: httpx.Response) -> None:
        if log.isEnabledFor(logging.DEBUG):
            took_ms = (time.monotonic() - self.began) * 1000
            log.debug(
                "%s %s: %d after %.1f ms [request %s]",
                self.method, self.path, response.status_code, took_ms, self.request_id,
            )  # fmt: skip

    def broken(self, error: httpx.RequestError) -> errors.AtollError:
        """Makes an `AtollError` from the connection's failure."""
        sent = not isinstance(error, _UNSENT)
        timed_out = isinstance(error, httpx.TimeoutException)
        kind = errors.TimedOut if timed_out else errors.Unreachable
        what = "did not answer in time" if timed_out else "broke off" if sent else "cannot be reached"
        detail = f": {error}" if str(error) else ""
        return kind(
            f"the server {what} ({self.method} {self.path}{detail})",
            code="timeout" if timed_out else "unreachable",
            hint=None if sent else "is ATOLL_URL right, and does the server run?",
            retryable=True,
            may_have_run=self.method not in {"GET", "HEAD"} and (sent or self.was_lost),
            request_id=self.request_id,
        )

    def lost(self, error: httpx.RequestError) -> float:
        """Called when no answer came. Returns how long to wait before the next attempt.

        Raises:
            AtollError: The request is not tried again.
        """
        failure = self.broken(error)
        sent = not isinstance(error, _UNSENT)
        self.was_lost = self.was_lost or sent
        if sent and self.again == "never":
            raise failure from error
        return self._next(failure, None)

    def refused(self, response: httpx.Response, said: bytes) -> float:
        """Called when the answer is an error. Returns and raises as `lost` does."""
        changes = self.method not in {"GET", "HEAD"}
        request_id = response.headers.get("x-request-id") or self.request_id
        failure = errors.from_answer(response.status_code, said, changes=changes, request_id=request_id)
        failure.may_have_run = failure.may_have_run or (changes and self.was_lost)
        later = failure.retryable and response.status_code in _LATER
        # A server that answers 429 has not begun the request, so it can be sent again.
        if not later or (self.again != "always" and response.status_code != 429):
            raise failure
        return self._next(failure, response.headers.get("retry-after"))

    def _next(self, failure: errors.AtollError, retry_after: str | None) -> float:
        delay = self.delay * (0.5 + random.random())
        if retry_after is not None and retry_after.isdigit():
            delay = max(delay, min(float(retry_after), 30.0))
        self.delay = min(self.delay * 2, _DELAY_MAX_S)
        if self.left <= 0 or delay >= self.remaining():
            raise failure
        self.left -= 1
        log.info("%s; trying again in %.2f s", failure, delay)
        return delay


def _dumps(body: Any) -> bytes:
    return jsonlib.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _query(query: Query) -> httpx.QueryParams | None:
    found: list[tuple[str, str | int | float | bool | None]] = [
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in query
        if value is not None
    ]
    return httpx.QueryParams(found) if found else None
