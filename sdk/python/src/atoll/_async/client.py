"""The client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from .. import types as t
from .._local import LocalServer
from . import _io
from .catalog import AsyncImages, AsyncSecrets, AsyncSnapshots, AsyncTemplates, AsyncVolumes
from .sandboxes import AsyncSandboxes
from .transport import AsyncTransport, Query


class AsyncAtoll:
    """A server of sandboxes.

    Args:
        url: Where it is; `ATOLL_URL` when absent.
        api_key: A key; `ATOLL_API_KEY` when absent.
        timeout: Seconds that a call may take, retries included. What a call waits for, such as a command, is not
            counted. `with_options` gives single calls another one.
        max_retries: How often a call is tried again when it is safe to.
        http_client: A client of httpx to send with, for proxies and certificates; it is not closed here.
        headers: Further headers of each request.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 60,
        max_retries: int = 5,
        http_client: httpx.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._setup(AsyncTransport(url, api_key, timeout, max_retries, http_client, headers), None)

    def _setup(self, transport: AsyncTransport, server: LocalServer | None) -> None:
        self._transport, self._server = transport, server
        self.sandboxes = AsyncSandboxes(transport)
        self.templates = AsyncTemplates(transport)
        self.images = AsyncImages(transport)
        self.snapshots = AsyncSnapshots(transport)
        self.volumes = AsyncVolumes(transport)
        self.secrets = AsyncSecrets(transport)

    @classmethod
    async def local(cls, *args: str, timeout: float = 60, max_retries: int = 5) -> AsyncAtoll:
        """Starts a server of its own on this machine, which ends with the client and leaves nothing behind.

        The program is the one that `ATOLL_BIN` names, or `atoll` on the PATH; `args` are further arguments of
        `atoll serve`. It needs what the server needs: Linux and root.
        """
        server = await _io.in_thread(lambda: LocalServer.start(args))
        client = cls(server.url, server.api_key, timeout=timeout, max_retries=max_retries)
        client._setup(client._transport, server)
        return client

    def __repr__(self) -> str:
        return f"AsyncAtoll({self.url!r})"

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._transport.url

    async def __aenter__(self) -> AsyncAtoll:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections, and ends the server if it is its own."""
        await self._transport.aclose()
        if self._server is not None:
            await _io.in_thread(self._server.stop)

    def with_options(self, *, timeout: float | None = None, max_retries: int | None = None) -> AsyncAtoll:
        """The same client with other limits. Close the first one."""
        other = object.__new__(AsyncAtoll)
        other._setup(self._transport.with_options(timeout, max_retries), None)
        return other

    async def info(self) -> t.ServerInfo:
        """What the server is."""
        return t.ServerInfo.from_json(await self._transport.json("GET", "/v1/info"))

    async def usage(
        self, *, group: t.UsageGroup = "total", from_ms: int | None = None, to_ms: int | None = None
    ) -> list[t.UsageItem]:
        """What was used, in all or by sandbox, key or hour."""
        query: Query = [("group", group), ("from_ms", from_ms), ("to_ms", to_ms)]
        return t.UsageList.from_json(await self._transport.json("GET", "/v1/usage", query=query)).items

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Query = (), idempotency_key: str | None = None
    ) -> Any:
        """Calls what has no method of its own here: JSON of the API's document, and JSON back."""
        return await self._transport.json(method, path, body=body, query=query, key=idempotency_key)
