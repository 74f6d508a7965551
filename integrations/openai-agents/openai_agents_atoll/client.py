"""Makes, finds again and deletes the sandboxes of sessions."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from agents.sandbox import Manifest, SnapshotSpec, resolve_snapshot
from agents.sandbox.session import BaseSandboxClient, BaseSandboxClientOptions, SandboxSession, SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase
from atoll import AsyncAtoll, errors

from openai_agents_atoll.session import AtollSandboxSession, AtollSandboxSessionState


class AtollSandboxClientOptions(BaseSandboxClientOptions):
    """The settings that sandboxes are made from, and how long they live.

    Attributes:
        image: An image of the server; the server's default when neither image, template nor snapshot is named.
        template: A template, as `name` or `name:version`.
        base_snapshot: A snapshot of the server, by id or tag.
        env: Environment of every command.
        cpu: Cores.
        memory: Such as `512MiB`.
        disk: The same.
        isolation: `container`, `gvisor` or `microvm`; the server's default when absent.
        labels: To find the sandboxes again.
        idle: Such as `10m`: time after its last use at which the server deletes a sandbox. Nothing else deletes the
            sandboxes of a process that was killed.
        ttl: Such as `2h`: time after its creation at which the server deletes a sandbox, even one that is in use.
        pause_on_exit: Whether a session that ends pauses its sandbox to disk, to be resumed, rather than deletes it.
        exposed_ports: Ports that `resolve_exposed_port` may give addresses for.
    """

    type: Literal["atoll"] = "atoll"
    image: str | None = None
    template: str | None = None
    base_snapshot: str | None = None
    env: dict[str, str] | None = None
    cpu: float | None = None
    memory: str | None = None
    disk: str | None = None
    isolation: Literal["container", "gvisor", "microvm"] | None = None
    labels: dict[str, str] | None = None
    idle: str | None = None
    ttl: str | None = None
    pause_on_exit: bool = False
    exposed_ports: tuple[int, ...] = ()


class AtollSandboxClient(BaseSandboxClient[AtollSandboxClientOptions]):
    """Runs agents' sessions in sandboxes of an Atoll server."""

    backend_id = "atoll"
    supports_default_options = True

    def __init__(self, client: AsyncAtoll | None = None, *, url: str | None = None, api_key: str | None = None) -> None:
        """Uses the server of `client`, or of `url` and `api_key`, or else of `ATOLL_URL` and `ATOLL_API_KEY`.

        `aclose` does not close a `client` that the caller passed: the caller does.
        """
        self._owned = client is None
        self._atoll = client or AsyncAtoll(url, api_key)

    async def __aenter__(self) -> AtollSandboxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. Sandboxes stay."""
        if self._owned:
            await self._atoll.aclose()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: AtollSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Makes a sandbox and a session in it."""
        options = options or AtollSandboxClientOptions()
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        session_id = uuid.uuid4()
        state = AtollSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=options.exposed_ports,
            sandbox_id="",
            options=options.model_dump(mode="json", exclude={"exposed_ports"}, exclude_none=True),
            pause_on_exit=options.pause_on_exit,
        )
        return self._wrap_session(AtollSandboxSession(state=state, sandbox=await self._make(state)))

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Goes on in a session's sandbox, or in a new one if it is gone. The first request wakes a paused sandbox."""
        if not isinstance(state, AtollSandboxSessionState):
            raise TypeError("AtollSandboxClient.resume expects an AtollSandboxSessionState")
        state.assert_path_grants_rebound()
        try:
            sandbox = await self._atoll.sandboxes.get(state.sandbox_id)
            there = sandbox.info.state != "failed"
        except errors.NotFound:
            sandbox, there = None, False
        if sandbox is None or not there:
            sandbox = await self._make(state)
            state.workspace_root_ready = False
        inner = AtollSandboxSession(state=state, sandbox=sandbox)
        inner._set_start_state_preserved(there)
        return self._wrap_session(inner)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Deletes a session's sandbox, or pauses it if `pause_on_exit` is set."""
        inner = session._inner
        if not isinstance(inner, AtollSandboxSession):
            raise TypeError("AtollSandboxClient.delete expects an AtollSandboxSession")
        await inner.shutdown()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Reads a session's state from the output of `serialize_session_state`."""
        return self._deserialize_session_state_payload(payload, AtollSandboxSessionState)

    async def _make(self, state: AtollSandboxSessionState) -> Any:
        options = AtollSandboxClientOptions.model_validate(state.options)
        sandbox = await self._atoll.sandboxes.create(
            image=options.image,
            template=options.template,
            snapshot=options.base_snapshot,
            env=options.env,
            cpu=options.cpu,
            memory=options.memory,
            disk=options.disk,
            isolation=options.isolation,
            labels=options.labels,
            idle=options.idle,
            ttl=options.ttl,
            keep=True,
        )
        state.sandbox_id = sandbox.id
        return sandbox
