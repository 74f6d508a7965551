# Made by sdk/generate from ../_async: change that.
"""Ports of a sandbox, reached from outside."""

from __future__ import annotations

import builtins

from .. import params as p
from .. import types as t
from .._units import Duration, duration_ms
from .transport import Transport, segment


class Ports:
    """Ports of one sandbox."""

    def __init__(self, transport: Transport, sandbox_path: str) -> None:
        self._transport, self._base = transport, sandbox_path

    def list(self) -> builtins.list[t.Port]:
        """Ports on which something listens."""
        return t.PortList.from_json(self._transport.json("GET", f"{self._base}/ports")).items

    def url(self, port: int, *, ttl: Duration | None = None, public: bool = False) -> str:
        """An address at which a browser reaches a port: with a token in it, or for everybody.

        It ends after `ttl`, or with the sandbox.
        """
        return (self.open(port, ttl=ttl, public=public)).link

    def open(
        self, port: int, *, ttl: Duration | None = None, public: bool = False, name: str | None = None
    ) -> t.AccessCreated:
        """The same with everything that is known of it, such as the token and the id that `close` takes."""
        body: p.CreateAccess = {"port": port, "public": public, "name": name}
        if ttl is not None:
            body["ttl_ms"] = duration_ms(ttl)
        # One more that nobody knows of does no harm: it ends as the other does.
        answer = self._transport.json("POST", f"{self._base}/access", body=body, again="always")
        return t.AccessCreated.from_json(answer)

    def close(self, access: str) -> None:
        """Ends an access, by its id."""
        self._transport.send("DELETE", f"{self._base}/access/{segment(access)}")

    def opened(self) -> builtins.list[t.Access]:
        """Accesses that there are."""
        return t.AccessList.from_json(self._transport.json("GET", f"{self._base}/access")).items
