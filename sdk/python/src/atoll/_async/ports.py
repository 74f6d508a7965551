"""Access to the ports of a sandbox from outside."""

from __future__ import annotations

import builtins

from .. import params as p
from .. import types as t
from .._units import Duration, duration_ms
from .transport import AsyncTransport, segment


class AsyncPorts:
    """Ports of one sandbox."""

    def __init__(self, transport: AsyncTransport, sandbox_path: str) -> None:
        self._transport, self._base = transport, sandbox_path

    async def list(self) -> builtins.list[t.Port]:
        """Lists the ports on which a process of the sandbox listens."""
        return t.PortList.from_json(await self._transport.json("GET", f"{self._base}/ports")).items

    async def url(self, port: int, *, ttl: Duration | None = None, public: bool = False) -> str:
        """Opens a port and returns a URL for browsers. The URL has a token in it; with `public`, it needs none.

        The access ends after `ttl`, or with the sandbox.
        """
        return (await self.open(port, ttl=ttl, public=public)).link

    async def open(
        self, port: int, *, ttl: Duration | None = None, public: bool = False, name: str | None = None
    ) -> t.AccessCreated:
        """Opens a port as `url` does, and returns the whole access, such as its token and the id that `close` takes."""
        body: p.CreateAccess = {"port": port, "public": public, "name": name}
        if ttl is not None:
            body["ttl_ms"] = duration_ms(ttl)
        # A repeated request may make a second access that no caller knows. It does no harm: it ends as the first does.
        answer = await self._transport.json("POST", f"{self._base}/access", body=body, again="always")
        return t.AccessCreated.from_json(answer)

    async def close(self, access: str) -> None:
        """Ends an access. `access` is its id."""
        await self._transport.send("DELETE", f"{self._base}/access/{segment(access)}")

    async def opened(self) -> builtins.list[t.Access]:
        """Lists the accesses of the sandbox."""
        return t.AccessList.from_json(await self._transport.json("GET", f"{self._base}/access")).items
