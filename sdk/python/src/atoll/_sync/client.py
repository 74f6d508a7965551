# Made by sdk/generate from ../_async: change that.
"""The client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from .. import types as t
from .._local import LocalServer
from . import _io
from .catalog import Images, Secrets, Snapshots, Templates, Volumes
from .sandboxes import Sandboxes
from .transport import Transport, Query


class Atoll:
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
        http_client: httpx.Client | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._setup(Transport(url, api_key, timeout, max_retries, http_client, headers), None)

    def _setup(self, transport: Transport, server: LocalServer | None) -> None:
        self._transport, self._server = transport, server
        self.sandboxes = Sandboxes(transport)
        self.templates = Templates(transport)
        self.images = Images(transport)
        self.snapshots = Snapshots(transport)
        self.volumes = Volumes(transport)
        self.secrets = Secrets(transport)

    @classmethod
    def local(cls, *args: str, timeout: float = 60, max_retries: int = 5) -> Atoll:
        """Starts a server on this machine for this client. The server ends with the client and leaves nothing behind.

        The program is the one that `ATOLL_BIN` names, the one that was installed with this package, or `atoll` on the
        PATH. `args` are further arguments of `atoll serve`. The server needs Linux and root.
        """
        server = _io.in_thread(lambda: LocalServer.start(args))
        client = cls(server.url, server.api_key, timeout=timeout, max_retries=max_retries)
        client._setup(client._transport, server)
        return client

    def __repr__(self) -> str:
        return f"Atoll({self.url!r})"

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._transport.url

    def __enter__(self) -> Atoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Ends the server if `local` started it for this client."""
        self._transport.close()
        if self._server is not None:
            _io.in_thread(self._server.stop)

    def with_options(self, *, timeout: float | None = None, max_retries: int | None = None) -> Atoll:
        """Returns a client with other limits that uses the same connections. Close only the first client."""
        other = object.__new__(Atoll)
        other._setup(self._transport.with_options(timeout, max_retries), None)
        return other

    def info(self) -> t.ServerInfo:
        """Asks the server about itself."""
        return t.ServerInfo.from_json(self._transport.json("GET", "/v1/info"))

    def usage(
        self, *, group: t.UsageGroup = "total", from_ms: int | None = None, to_ms: int | None = None
    ) -> list[t.UsageItem]:
        """Returns the resources that were used: in total, or grouped by sandbox, key or hour."""
        query: Query = [("group", group), ("from_ms", from_ms), ("to_ms", to_ms)]
        return t.UsageList.from_json(self._transport.json("GET", "/v1/usage", query=query)).items

    def request(
        self, method: str, path: str, body: Any = None, *, query: Query = (), idempotency_key: str | None = None
    ) -> Any:
        """Calls an operation of the API that has no method in this SDK. Sends JSON and returns the answer's JSON."""
        return self._transport.json(method, path, body=body, query=query, key=idempotency_key)
