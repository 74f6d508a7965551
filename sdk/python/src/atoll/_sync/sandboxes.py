# Made by sdk/generate from ../_async: change that.
"""Making, finding and listing sandboxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import errors
from .. import params as p
from .. import types as t
from .._units import Duration, Size, duration_ms, size_bytes
from ..network import Network, UseSecret, labels_query
from .pager import Pager
from .sandbox import Sandbox
from .transport import Transport, new_key, segment


class Sandboxes:
    """The sandboxes of a server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
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
    ) -> Sandbox:
        """Makes a sandbox; returns when it runs. Used with `with`, it is deleted at the end unless `keep`.

        One sandbox is made, whatever happens to connections meanwhile.

        Args:
            image: `host` (the server's own /usr, the default), or an image that was pulled, loaded or imported.
            template: A template, as `name` or `name:version`.
            snapshot: A snapshot to begin with.
            name: A name, unique: a DNS label.
            labels: To find it again.
            env: Environment of every command.
            cpu: Cores.
            memory: Bytes, or text such as `512MiB`.
            disk: The same.
            isolation: `container`, `gvisor` or `microvm`; the server's default when absent.
            user: Default user of commands.
            workdir: Default working directory; made when it is absent.
            ttl: Delete it this long after it was made.
            idle: Delete it after this long without a command or a request; `on_idle` says what else to do.
            on_idle: `delete`, `freeze` or `hibernate`.
            network: What it may reach; the server's default when absent.
            secrets: Secrets of the server that it uses and never sees.
            volumes: Volumes to mount: paths, and names of volumes; `name/directory` is a directory of one, `name:ro` can only be read.
            keep: Do not delete it when the `with` block ends.
            idempotency_key: A call with the same key gets the first one's sandbox. Made up when absent.
            more: Everything else that the API takes.
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
            rules = [self._rule(secret) for secret in secrets]
            body["egress"] = (network or Network()).policy(rules)
        key = idempotency_key or new_key()
        answer = self._transport.json("POST", "/v1/sandboxes", body=body, key=key)
        return Sandbox(self._transport, t.Sandbox.from_json(answer), keep=keep)

    def _rule(self, secret: str | UseSecret) -> p.InjectRule:
        use = UseSecret(secret) if isinstance(secret, str) else secret
        hosts = use.hosts
        if not hosts:
            # A reference such as NAME@2 is to one version.
            path = f"/v1/secrets/{segment(use.name.partition('@')[0])}"
            hosts = t.Secret.from_json(self._transport.json("GET", path)).scope.hosts
            if "*" in hosts:
                raise errors.InvalidRequest(
                    f"secret {use.name} may go to any host",
                    code="invalid_argument",
                    hint="say to which, with UseSecret(name, hosts=[…])",
                )
        return use.rule(hosts)

    def get(self, id_or_name: str) -> Sandbox:
        """A sandbox that there is."""
        answer = self._transport.json("GET", f"/v1/sandboxes/{segment(id_or_name)}")
        return Sandbox(self._transport, t.Sandbox.from_json(answer))

    def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        state: Sequence[t.SandboxState] = (),
        name_prefix: str | None = None,
        page_size: int | None = None,
    ) -> Pager[Sandbox]:
        """Sandboxes, newest first."""
        query = [*labels_query(labels), *(("state", one) for one in state), ("name_prefix", name_prefix)]

        def read(one: Any) -> Sandbox:
            return Sandbox(self._transport, t.Sandbox.from_json(one))

        return Pager(self._transport, "/v1/sandboxes", query, read, page_size)

    def delete(self, id_or_name: str) -> None:
        """Deletes a sandbox with everything in it."""
        self._transport.send("DELETE", f"/v1/sandboxes/{segment(id_or_name)}")


def _mount(path: str, volume: str) -> p.VolumeMountDraft:
    whole, _, mode = volume.partition(":")
    name, _, subpath = whole.partition("/")
    if mode not in {"", "ro", "rw"}:
        raise errors.InvalidRequest(f"{volume!r} is not NAME[/DIRECTORY][:ro]", code="invalid_argument")
    mount: p.VolumeMountDraft = {"volume": name, "path": path, "read_only": mode == "ro"}
    if subpath:
        mount["subpath"] = subpath
    return mount


