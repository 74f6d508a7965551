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
        """Starts a server of its own on this machine, which ends with the client and leaves nothing behind.

        The program is the one that `ATOLL_BIN` names, or `atoll` on the PATH; `args` are further arguments of
        `atoll serve`. It needs what the server needs: Linux and root.
        """
        server = _io.in_thread(lambda: LocalServer.start(args))
        client = cls(server.url, server.api_key, timeout=timeout, max_retries=max_retries)
        client._setup(client._transport, server)
        return client

    def __repr__(self) -> str:
        return f"Atoll({self.url!r})"

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._transport.url

    def __enter__(self) -> Atoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, and ends the server if it is its own."""
        self._transport.close()
        if self._server is not None:
            _io.in_thread(self._server.stop)

    def with_options(self, *, timeout: float | None = None, max_retries: int | None = None) -> Atoll:
        """The same client with other limits. Close the first one."""
        other = object.__new__(Atoll)
        other._setup(self._transport.with_options(timeout, max_retries), None)
        return other

    def info(self) -> t.ServerInfo:
        """What the server is."""
        return t.ServerInfo.from_json(self._transport.json("GET", "/v1/info"))

    def usage(
        self, *, group: t.UsageGroup = "total", from_ms: int | None = None, to_ms: int | None = None
    ) -> list[t.UsageItem]:
        """What was used, in all or by sandbox, key or hour."""
        query: Query = [("group", group), ("from_ms", from_ms), ("to_ms", to_ms)]
        return t.UsageList.from_json(self._transport.json("GET", "/v1/usage", query=query)).items

    def request(
        self, method: str, path: str, body: Any = None, *, query: Query = (), idempotency_key: str | None = None
    ) -> Any:
        """Calls what has no method of its own here: JSON of the API's document, and JSON back."""
        return self._transport.json(method, path, body=body, query=query, key=idempotency_key)
