"""Making, finding and listing sandboxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import errors
from .. import params as p
from .. import types as t
from .._units import Duration, Size, duration_ms, size_bytes
from ..network import Network, UseSecret, labels_query
from .pager import AsyncPager
from .sandbox import AsyncSandbox
from .transport import AsyncTransport, new_key, segment


class AsyncSandboxes:
    """The sandboxes of the server."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        *,
        image: str | None = None,
        template: str | None = None,
        snapshot: t.Snapshot | str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory: Size | None = None,
        disk: Size | None = None,
        isolation: t.IsolationLevel | None = None,
        user: str | None = None,
        workdir: str | None = None,
        ttl: Duration | None = None,
        idle: Duration | None = None,
        on_idle: t.OnIdle | None = None,
        network: Network | None = None,
        secrets: Sequence[str | UseSecret] = (),
        volumes: Mapping[str, str] | None = None,
        keep: bool = False,
        idempotency_key: str | None = None,
        more: p.CreateSandbox | None = None,
    ) -> AsyncSandbox:
        """Makes a sandbox and returns when it runs. The end of a `with` block deletes it unless `keep`.

        Broken connections never make a second sandbox.

        Args:
            image: `host` (the server's own /usr, the default), or an image that was pulled, loaded or imported.
            template: A template, as `name` or `name:version`.
            snapshot: The snapshot with which the sandbox begins.
            name: A unique name: a DNS label.
            labels: Labels, to find the sandbox again.
            env: Environment variables of every command.
            cpu: Cores.
            memory: Bytes, or text such as `512MiB`.
            disk: Bytes, or text such as `512MiB`.
            isolation: `container`, `gvisor` or `microvm`; the server's default when absent.
            user: Default user of commands.
            workdir: Default working directory of commands; made when it does not exist.
            ttl: Delete the sandbox this long after it was made.
            idle: Delete it after this long without a command or a request; `on_idle` chooses another action.
            on_idle: `delete`, `freeze` or `hibernate`.
            network: The hosts that it may reach. When absent, those of `secrets`; without those, the server's default.
            secrets: Secrets of the server that the sandbox uses and never sees.
            volumes: Volumes to mount: the path of each, and the volume's name. `name/directory` mounts a directory of
                the volume, and `name:ro` mounts the volume read-only.
            keep: Do not delete the sandbox when the `with` block ends.
            idempotency_key: A later call with the same key gets the sandbox of the first. A random key when absent.
            more: Further fields of the API's request.
        """
        body: p.CreateSandbox = {**more} if more else {}
        simple: dict[str, Any] = {
            "image": image,
            "template": template,
            "snapshot": snapshot.id if isinstance(snapshot, t.Snapshot) else snapshot,
            "name": name,
            "labels": dict(labels) if labels else None,
            "env": dict(env) if env else None,
            "isolation": isolation,
            "user": user,
            "workdir": workdir,
            "ttl_ms": None if ttl is None else duration_ms(ttl),
            "idle_timeout_ms": None if idle is None else duration_ms(idle),
            "on_idle": on_idle,
            "volumes": [_mount(path, volume) for path, volume in (volumes or {}).items()] or None,
        }
        body.update({key: value for key, value in simple.items() if value is not None})  # type: ignore[typeddict-item]
        limits: p.ResourcesDraft = {**body.get("resources", {})}
        if cpu is not None:
            limits["cpu_millis"] = round(cpu * 1000)
        if memory is not None:
            limits["memory_bytes"] = size_bytes(memory)
        if disk is not None:
            limits["disk_bytes"] = size_bytes(disk)
        if limits:
            body["resources"] = limits
        if secrets or network is not None:
            rules = [await self._rule(secret) for secret in secrets]
            body["egress"] = (network or Network()).policy(rules)
        key = idempotency_key or new_key()
        answer = await self._transport.json("POST", "/v1/sandboxes", body=body, key=key)
        return AsyncSandbox(self._transport, t.Sandbox.from_json(answer), keep=keep)

    async def _rule(self, secret: str | UseSecret) -> p.InjectRule:
        use = UseSecret(secret) if isinstance(secret, str) else secret
        hosts = use.hosts
        if not hosts:
            # NAME@2 names one version of the secret; the request needs NAME alone.
            path = f"/v1/secrets/{segment(use.name.partition('@')[0])}"
            hosts = t.Secret.from_json(await self._transport.json("GET", path)).scope.hosts
            if "*" in hosts:
                raise errors.InvalidRequest(
                    f"secret {use.name} may go to any host",
                    code="invalid_argument",
                    hint="say to which, with UseSecret(name, hosts=[…])",
                )
        return use.rule(hosts)

    async def get(self, id_or_name: str) -> AsyncSandbox:
        """Gets an existing sandbox by its id or name."""
        answer = await self._transport.json("GET", f"/v1/sandboxes/{segment(id_or_name)}")
        return AsyncSandbox(self._transport, t.Sandbox.from_json(answer))

    def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        state: Sequence[t.SandboxState] = (),
        name_prefix: str | None = None,
        page_size: int | None = None,
    ) -> AsyncPager[AsyncSandbox]:
        """Lists sandboxes, newest first."""
        query = [*labels_query(labels), *(("state", one) for one in state), ("name_prefix", name_prefix)]

        def read(one: Any) -> AsyncSandbox:
            return AsyncSandbox(self._transport, t.Sandbox.from_json(one))

        return AsyncPager(self._transport, "/v1/sandboxes", query, read, page_size)

    async def delete(self, id_or_name: str) -> None:
        """Deletes a sandbox with everything in it."""
        await self._transport.send("DELETE", f"/v1/sandboxes/{segment(id_or_name)}")


def _mount(path: str, volume: str) -> p.VolumeMountDraft:
    whole, _, mode = volume.partition(":")
    name, _, subpath = whole.partition("/")
    if mode not in {"", "ro", "rw"}:
        raise errors.InvalidRequest(f"{volume!r} is not NAME[/DIRECTORY][:ro]", code="invalid_argument")
    mount: p.VolumeMountDraft = {"volume": name, "path": path, "read_only": mode == "ro"}
    if subpath:
        mount["subpath"] = subpath
    return mount


