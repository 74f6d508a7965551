"""Templates, images, snapshots, secrets and volumes."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Union

import httpx

from .. import errors
from .. import params as p
from .. import types as t
from .._files import pack
from .._units import Size, size_bytes
from . import _io
from .files import content
from .pager import AsyncPager
from .transport import WAIT_S, AsyncTransport, Query, new_key, segment

_TAR = {"content-type": "application/x-tar"}
_JSON = {"content-type": "application/json"}
_OCTETS = {"content-type": "application/octet-stream"}

Progress = Union[t.ImageProgressLayer, t.ImageProgressDone]


class AsyncTemplates:
    """The server's templates: named, versioned recipes for sandboxes."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[t.Template]:
        """Lists all templates, each in its newest version."""
        return t.TemplateList.from_json(await self._transport.json("GET", "/v1/templates")).items

    async def get(self, name: str, version: int | None = None) -> t.Template:
        """Gets one template. `name` is NAME for its newest version, or NAME:TAG; `version` chooses another version."""
        query: Query = [("version", version)]
        return t.Template.from_json(await self._transport.json("GET", f"/v1/templates/{segment(name)}", query=query))

    async def create(self, spec: p.CreateTemplate) -> t.Template:
        """Makes a template, or a new version of one, from an image or a snapshot. The server builds nothing."""
        return t.Template.from_json(await self._transport.json("POST", "/v1/templates", body=spec, key=new_key()))

    async def delete(self, name: str, version: int | None = None) -> None:
        """Deletes one version of a template, or all versions."""
        await self._transport.send("DELETE", f"/v1/templates/{segment(name)}", query=[("version", version)])

    async def tags(self, name: str) -> builtins.list[t.TemplateTag]:
        """Lists the tags of a template. A tag names a version: `NAME:TAG` can be used wherever `NAME:VERSION` can."""
        path = f"/v1/templates/{segment(name)}/tags"
        return t.TemplateTagList.from_json(await self._transport.json("GET", path)).items

    async def tag(self, name: str, tag: str, version: int | None = None) -> t.TemplateTag:
        """Makes a tag point to a version, or to the newest when `version` is absent. An existing tag is moved."""
        body: p.SetTemplateTag = {} if version is None else {"version": version}
        path = f"/v1/templates/{segment(name)}/tags/{segment(tag)}"
        return t.TemplateTag.from_json(await self._transport.json("PUT", path, body=body))

    async def untag(self, name: str, tag: str) -> None:
        """Removes a tag. The version to which it pointed stays."""
        await self._transport.send("DELETE", f"/v1/templates/{segment(name)}/tags/{segment(tag)}")

    async def build(
        self,
        name: str,
        *,
        dockerfile: str | None = None,
        steps: Sequence[p.Step] | None = None,
        context: str | None = None,
        on_log: Callable[[t.BuildEvent], None] | None = None,
        more: p.CreateBuild | None = None,
    ) -> t.Template:
        """Builds a template from a Dockerfile's text or a list of steps.

        `context` is the local directory from which the build copies files.

        Raises:
            ServerError: A step failed. The message names the step and has the end of its output.
        """
        body: p.CreateBuild = {**more} if more else {}
        body["name"] = name
        if dockerfile is not None:
            body["dockerfile"] = dockerfile
        if steps is not None:
            body["steps"] = [*steps]
        build = t.Build.from_json(await self._transport.json("POST", "/v1/builds", body=body, key=new_key()))
        path = f"/v1/builds/{segment(build.id)}"
        if build.needs_context:
            if context is None:
                await self._transport.json("POST", f"{path}/cancel", again="always")
                raise errors.InvalidRequest("the build copies files", code="invalid_argument", hint="pass context=…")
            directory = context
            archive = await _io.in_thread(lambda: pack(directory))
            try:
                made, again = content(archive)
                await self._transport.send("PUT", f"{path}/context", content=made, headers=_TAR, again=again)
            finally:
                archive.close()
        return await self._built(path, on_log)

    async def _built(self, path: str, on_log: Callable[[t.BuildEvent], None] | None) -> t.Template:
        offset, over = 0, False
        while not over:
            query: Query = [("offset", offset), ("wait_ms", int(WAIT_S * 1000))]
            page = t.BuildLogPage.from_json(await self._transport.json("GET", f"{path}/log", query=query, wait=WAIT_S))
            for event in page.entries:
                if on_log is not None:
                    on_log(event)
            over = page.over and page.next_offset == offset
            offset = page.next_offset
        build = t.Build.from_json(await self._transport.json("GET", path))
        if build.template is None:
            failure = build.failure
            said = f": {failure.output[-1000:]}" if failure is not None and failure.output else ""
            raise errors.ServerError(
                (failure.message if failure is not None else f"the build is {build.state}") + said,
                code=failure.code if failure is not None else f"build_{build.state}",
                hint=failure.hint if failure is not None else None,
            )
        name, _, version = build.template.partition(":")
        return await self.get(name, int(version) if version else None)


class AsyncImages:
    """The images that the server has."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[t.Image]:
        """All."""
        return t.ImageList.from_json(await self._transport.json("GET", "/v1/images")).items

    async def pull(
        self,
        reference: str,
        *,
        username: str | None = None,
        password: str | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        more: p.PullImage | None = None,
    ) -> t.Image:
        """Fetches an image from a registry, such as `docker.io/library/python:3.12-slim`.

        The server does not fetch again what it has already.
        """
        body: dict[str, Any] = {**(more or {}), "reference": reference}
        if username is not None:
            body["credentials"] = {"username": username, "password": password or ""}
        raw = json.dumps(body).encode()
        return await self._done("/v1/images/pull", raw, _JSON, [], on_progress)

    async def import_tar(self, source: BinaryIO | Iterable[bytes] | AsyncIterable[bytes], name: str) -> t.Image:
        """Makes an image from the tar archive of a root file system."""
        made, _ = content(source)
        return await self._done("/v1/images/import", made, _TAR, [("name", name)], None)

    async def load(
        self, source: BinaryIO | Iterable[bytes] | AsyncIterable[bytes], name: str | None = None
    ) -> t.Image:
        """Loads images from an archive that `docker save` wrote. Returns the last image of the archive."""
        made, _ = content(source)
        return await self._done("/v1/images/load", made, _TAR, [("name", name)], None)

    async def remove(self, name: str) -> None:
        """Removes a name of an image. Removing the last name removes the image."""
        # The name of an image may have slashes, as in `docker.io/library/python`. They stay slashes in this path.
        path = "/".join(segment(part) for part in name.split("/"))
        await self._transport.send("DELETE", f"/v1/images/{path}")

    async def _done(
        self,
        path: str,
        body: Any,
        headers: Mapping[str, str],
        query: Query,
        on_progress: Callable[[Progress], None] | None,
    ) -> t.Image:
        image: t.Image | None = None
        # Fetching an image may take long. The request fails only when nothing arrives for 300 seconds.
        patience = httpx.Timeout(self._transport.timeout, read=300.0)
        request = self._transport.stream("POST", path, content=body, headers=headers, query=query, timeout=patience)
        try:
            async with request as answer:
                async for line in answer.aiter_lines():
                    if not line.strip():
                        continue
                    event = t.image_progress_from_json(json.loads(line))
                    if isinstance(event, t.ImageProgressError):
                        raise errors.from_body(json.loads(line)["error"], may_have_run=True)
                    if isinstance(event, t.ImageProgressDone):
                        image = event.image
                    if on_progress is not None:
                        on_progress(event)
        except httpx.RequestError as error:
            raise errors.Unreachable(
                f"the connection broke off ({error})", code="unreachable", retryable=True, may_have_run=True
            ) from error
        if image is None:
            raise errors.ServerError("the server's answer ended early", code="bad_answer", may_have_run=True)
        return image


class AsyncSnapshots:
    """The server's snapshots. A snapshot is a sandbox's disk at one moment, from which sandboxes can be made."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(self, *, sandbox: str | None = None, name: str | None = None) -> AsyncPager[t.Snapshot]:
        """Lists snapshots, newest first."""
        query: Query = [("sandbox", sandbox), ("name", name)]
        return AsyncPager(self._transport, "/v1/snapshots", query, t.Snapshot.from_json)

    async def get(self, snapshot: str) -> t.Snapshot:
        """Gets one snapshot by its id or a tag."""
        return t.Snapshot.from_json(await self._transport.json("GET", f"/v1/snapshots/{segment(snapshot)}"))

    async def tag(self, snapshot: str, tag: str) -> t.Snapshot:
        """Gives a snapshot one more tag. A tag that points to another snapshot is moved to this one."""
        body: p.TagSnapshot = {"tag": tag}
        path = f"/v1/snapshots/{segment(snapshot)}/tags"
        return t.Snapshot.from_json(await self._transport.json("POST", path, body=body, again="always"))

    async def delete(self, snapshot: str) -> None:
        """Given a tag, removes only the tag. Given an id, deletes the snapshot with all its tags."""
        await self._transport.send("DELETE", f"/v1/snapshots/{segment(snapshot)}")


class AsyncSecrets:
    """The server's secrets: values that sandboxes use and never see."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[t.Secret]:
        """Lists all secrets, without their values. The server never returns a value."""
        return t.SecretList.from_json(await self._transport.json("GET", "/v1/secrets")).items

    async def get(self, name: str) -> t.Secret:
        """Gets one secret, without its value."""
        return t.Secret.from_json(await self._transport.json("GET", f"/v1/secrets/{segment(name)}"))

    async def put(
        self,
        name: str,
        value: str | None = None,
        *,
        hosts: Sequence[str] | None = None,
        note: str | None = None,
        scope: p.SecretScope | None = None,
    ) -> t.Secret:
        """Makes a secret, or changes a secret's value, scope or note. `hosts` are the hosts that may receive it."""
        body: p.PutSecret = {}
        if value is not None:
            body["value"] = value
        if hosts is not None:
            scope = {**scope, "hosts": [*hosts]} if scope else {"hosts": [*hosts]}
        if scope is not None:
            body["scope"] = scope
        if note is not None:
            body["note"] = note
        return t.Secret.from_json(await self._transport.json("PUT", f"/v1/secrets/{segment(name)}", body=body))

    async def delete(self, name: str) -> None:
        """Deletes a secret. Sandboxes that use it get no value any more."""
        await self._transport.send("DELETE", f"/v1/secrets/{segment(name)}")

    async def uses(self, *, secret: str | None = None, sandbox: str | None = None) -> builtins.list[t.SecretUse]:
        """Lists the requests into which the gateway put a secret's value, newest first."""
        query: Query = [("secret", secret), ("sandbox", sandbox)]
        return t.SecretUseList.from_json(await self._transport.json("GET", "/v1/secret-uses", query=query)).items


class AsyncVolumes:
    """The server's volumes: storage that outlives sandboxes, and that several sandboxes can share."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[t.Volume]:
        """All."""
        return t.VolumeList.from_json(await self._transport.json("GET", "/v1/volumes")).items

    async def get(self, volume: str) -> t.Volume:
        """Gets one volume by its name or id."""
        return t.Volume.from_json(await self._transport.json("GET", f"/v1/volumes/{segment(volume)}"))

    async def create(
        self, name: str, size: Size | None = None, *, copy_of: str | None = None, read_only: bool = False
    ) -> t.Volume:
        """Makes a volume: empty, or a copy of the volume `copy_of`."""
        body: dict[str, Any] = {"name": name, "read_only": read_only}
        if size is not None:
            body["size_bytes"] = size_bytes(size)
        if copy_of is not None:
            body["from"] = copy_of
        return t.Volume.from_json(await self._transport.json("POST", "/v1/volumes", body=body, key=new_key()))

    async def delete(self, volume: str) -> None:
        """Deletes a volume with everything on it."""
        await self._transport.send("DELETE", f"/v1/volumes/{segment(volume)}")

    async def read_bytes(self, volume: str, path: str) -> bytes:
        """Reads a file of a volume."""
        query: Query = [("path", path)]
        return (await self._transport.send("GET", f"/v1/volumes/{segment(volume)}/files", query=query)).content

    async def write(self, volume: str, path: str, data: str | bytes, *, parents: bool = True) -> None:
        """Writes a file of a volume. Sandboxes may have the volume mounted or not."""
        raw = data.encode() if isinstance(data, str) else data
        query: Query = [("path", path), ("parents", parents)]
        url = f"/v1/volumes/{segment(volume)}/files"
        await self._transport.send("PUT", url, content=raw, headers=_OCTETS, query=query)

    async def list_files(self, volume: str, path: str = "/") -> builtins.list[t.FileEntry]:
        """Lists the content of a directory of a volume."""
        answer = await self._transport.json(
            "GET", f"/v1/volumes/{segment(volume)}/files/list", query=[("path", path)]
        )
        return t.FileList.from_json(answer).items

    async def remove(self, volume: str, path: str, *, recursive: bool = False) -> None:
        """Removes a file or directory of a volume."""
        query: Query = [("path", path), ("recursive", recursive)]
        await self._transport.send("DELETE", f"/v1/volumes/{segment(volume)}/files", query=query)

