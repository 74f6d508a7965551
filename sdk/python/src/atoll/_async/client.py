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
    """A client of one Atoll server.

    Args:
        url: The server's URL; `ATOLL_URL` when absent.
        api_key: The API key; `ATOLL_API_KEY` when absent.
        timeout: Seconds that a call may take, retries included. The time for which the client asks the server to wait,
            such as for a command's end, is not counted. `with_options` gives single calls another timeout.
        max_retries: How often the client tries a call again when that is safe.
        http_client: The httpx client that sends the requests, for proxies and certificates. The caller closes it.
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
        """Starts a server on this machine for this client. The server ends with the client and leaves nothing behind.

        The program is the one that `ATOLL_BIN` names, the one that was installed with this package, or `atoll` on the
        PATH. `args` are further arguments of `atoll serve`. The server needs Linux and root.
        """
        server = await _io.in_thread(lambda: LocalServer.start(args))
        client = cls(server.url, server.api_key, timeout=timeout, max_retries=max_retries)
        client._setup(client._transport, server)
        return client

    def __repr__(self) -> str:
        return f"AsyncAtoll({self.url!r})"

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._transport.url

    async def __aenter__(self) -> AsyncAtoll:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. Ends the server if `local` started it for this client."""
        await self._transport.aclose()
        if self._server is not None:
            await _io.in_thread(self._server.stop)

    def with_options(self, *, timeout: float | None = None, max_retries: int | None = None) -> AsyncAtoll:
        """Returns a client with other limits that uses the same connections. Close only the first client."""
        other = object.__new__(AsyncAtoll)
        other._setup(self._transport.with_options(timeout, max_retries), None)
        return other

    async def info(self) -> t.ServerInfo:
        """Asks the server about itself."""
        return t.ServerInfo.from_json(await self._transport.json("GET", "/v1/info"))

    async def usage(
        self, *, group: t.UsageGroup = "total", from_ms: int | None = None, to_ms: int | None = None
    ) -> list[t.UsageItem]:
        """Returns the resources that were used: in total, or grouped by sandbox, key or hour."""
        query: Query = [("group", group), ("from_ms", from_ms), ("to_ms", to_ms)]
        return t.UsageList.from_json(await self._transport.json("GET", "/v1/usage", query=query)).items

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Query = (), idempotency_key: str | None = None
    ) -> Any:
        """Calls an operation of the API that has no method in this SDK. Sends JSON and returns the answer's JSON."""
        return await self._transport.json(method, path, body=body, query=query, key=idempotency_key)
