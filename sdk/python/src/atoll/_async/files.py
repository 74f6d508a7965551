"""Files in a sandbox."""

from __future__ import annotations

import builtins
import os
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

import httpx

from .. import errors
from .. import params as p
from .. import types as t
from .._files import BINARY, Refused, pack, unpack
from . import _io
from .transport import Again, AsyncTransport, Body, Query

_OCTETS = {"content-type": "application/octet-stream"}
_TAR = {"content-type": "application/x-tar"}


class AsyncFiles:
    """Files and directories of one sandbox. Paths are absolute."""

    def __init__(self, transport: AsyncTransport, sandbox_path: str) -> None:
        self._transport, self._base = transport, sandbox_path

    async def read(self, path: str) -> str:
        """Reads a file as text.

        Raises:
            UnicodeDecodeError: The file is not UTF-8. `read_bytes` reads such files.
        """
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str) -> bytes:
        """Reads a file as bytes."""
        return (await self._transport.send("GET", f"{self._base}/files", query=[("path", path)])).content

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """Reads a file, one piece at a time. When the connection breaks, it reconnects and goes on at the same byte.

        Raises:
            Conflict: The connection broke, and the file was changed since.
        """
        at, tag = 0, None
        tries = self._transport.max_retries
        while True:
            headers = {"range": f"bytes={at}-"} if at else {}
            request = self._transport.stream("GET", f"{self._base}/files", headers=headers, query=[("path", path)])
            async with request as answer:
                if at and (answer.status_code != 206 or answer.headers.get("etag") != tag):
                    raise errors.Conflict(f"{path} was changed while it was read", code="file_changed", retryable=True)
                tag = answer.headers.get("etag")
                try:
                    async for piece in answer.aiter_bytes():
                        at += len(piece)
                        tries = self._transport.max_retries
                        yield piece
                    return
                except httpx.RequestError as error:
                    if tries == 0:
                        raise errors.Unreachable(
                            f"the connection broke off while {path} was read", code="unreachable", retryable=True
                        ) from error
                    tries -= 1
                    length = answer.headers.get("content-length")
                    if length is not None and at > 0 and answer.status_code == 200 and at == int(length):
                        return

    async def write(
        self,
        path: str,
        data: str | bytes | BinaryIO | Iterable[bytes] | AsyncIterable[bytes],
        *,
        mode: str | None = None,
        user: str | None = None,
        parents: bool = True,
    ) -> int:
        """Writes a file, whole or not at all, and returns its length. `parents` makes missing directories above it.

        `mode` is in octal, such as `0755`. `user` is a name or id, optionally with `:group`.
        """
        query: Query = [("path", path), ("mode", mode), ("user", user), ("parents", parents)]
        body, again = content(data)
        answer = await self._transport.send(
            "PUT", f"{self._base}/files", content=body, headers=_OCTETS, query=query, again=again
        )
        return answer.json()["bytes"]

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file, a link or a directory, which must be empty unless `recursive`."""
        query: Query = [("path", path), ("recursive", recursive)]
        await self._transport.send("DELETE", f"{self._base}/files", query=query)

    async def stat(self, path: str, *, follow: bool = True) -> t.FileEntry:
        """Describes the file, directory or link at a path."""
        query: Query = [("path", path), ("follow", follow)]
        return t.FileEntry.from_json(await self._transport.json("GET", f"{self._base}/files/stat", query=query))

    async def exists(self, path: str) -> bool:
        """Whether a file, directory or link exists at a path."""
        try:
            await self.stat(path, follow=False)
        except errors.NotFound as error:
            if error.code == "file_not_found":
                return False
            raise
        except errors.Conflict as error:
            if error.code == "not_a_directory":
                return False
            raise
        return True

    async def list(self, path: str, *, depth: int = 1, limit: int | None = None) -> builtins.list[t.FileEntry]:
        """Lists the entries below a directory, down to `depth` levels. 1 lists only its own entries."""
        query: Query = [("path", path), ("depth", depth), ("limit", limit)]
        answer = await self._transport.json("GET", f"{self._base}/files/list", query=query)
        return t.FileList.from_json(answer).items

    async def find(self, path: str, pattern: str, *, limit: int | None = None) -> builtins.list[t.FileEntry]:
        """Finds files below a directory whose path matches a pattern such as `**/*.py`."""
        found = await self._find({"path": path, "pattern": pattern, "limit": limit})
        return [one.file for one in found]

    async def grep(
        self, text: str, path: str, *, pattern: str | None = None, limit: int | None = None
    ) -> builtins.list[t.FoundFile]:
        """Finds lines that contain a text, in files below a directory. With `pattern`, only in files that match it."""
        return await self._find({"path": path, "text": text, "pattern": pattern, "limit": limit})

    async def _find(self, body: p.FindFiles) -> builtins.list[t.FoundFile]:
        # This POST changes nothing, so it can always be sent again.
        answer = await self._transport.json("POST", f"{self._base}/files/find", body=body, again="always")
        return t.FoundFiles.from_json(answer).items

    async def mkdir(self, path: str, *, mode: str | None = None, user: str | None = None, parents: bool = True) -> None:
        """Makes a directory. With `parents`, makes missing directories above it, and it may exist already."""
        body: p.Mkdir = {"path": path, "mode": mode, "user": user, "parents": parents}
        again: Again = "always" if parents else "never"
        await self._transport.json("POST", f"{self._base}/files/mkdir", body=body, again=again)

    async def move(self, source: str, target: str, *, replace: bool = True) -> None:
        """Moves or renames a file or directory."""
        body: p.MoveFile = {"from": source, "to": target, "no_replace": not replace}
        await self._transport.json("POST", f"{self._base}/files/move", body=body)

    async def chmod(self, path: str, mode: str | None = None, *, user: str | None = None) -> None:
        """Changes the permissions (`mode`, in octal) or the owner of a file or directory."""
        body: p.Chmod = {"path": path, "mode": mode, "user": user}
        await self._transport.json("POST", f"{self._base}/files/chmod", body=body, again="always")

    async def upload(self, local: str | os.PathLike[str], remote: str, *, user: str | None = None) -> None:
        """Copies a local file, or the content of a local directory, into the sandbox's directory `remote`.

        Makes `remote` when it is absent.
        """
        archive = await _io.in_thread(lambda: pack(local))
        try:
            body, again = content(archive)
            query: Query = [("path", remote), ("user", user)]
            await self._transport.send(
                "PUT", f"{self._base}/archive", content=body, headers=_TAR, query=query, again=again
            )
        finally:
            archive.close()

    async def download(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copies a file or directory of the sandbox into the local directory `local`. Makes `local` when it is absent.

        Leaves out symbolic links that lead out of `local`, and devices, pipes and sockets.

        Raises:
            InvalidRequest: The archive that the sandbox sent has a path that leads out of `local`.
        """
        with tempfile.TemporaryFile() as archive:
            await self._fetch(remote, archive)
            archive.seek(0)
            try:
                await _io.in_thread(lambda: unpack(archive, Path(local)))
            except Refused as error:
                raise errors.InvalidRequest(str(error), code="path_invalid") from error

    async def _fetch(self, remote: str, archive: Any) -> None:
        tries = self._transport.max_retries
        while True:
            try:
                request = self._transport.stream("GET", f"{self._base}/archive", query=[("path", remote)])
                async with request as answer:
                    async for piece in answer.aiter_bytes():
                        archive.write(piece)
                return
            except (httpx.RequestError, errors.Unreachable) as error:
                if tries == 0:
                    raise errors.Unreachable(
                        f"the connection broke off while {remote} was fetched", code="unreachable", retryable=True
                    ) from error
                # The server makes a new archive for each request, so this one is fetched again from its first byte.
                tries -= 1
                archive.seek(0)
                archive.truncate()


def content(data: object) -> tuple[bytes | Body, Again]:
    """Makes a request's body from `data`, and says whether the body can be sent again."""
    if isinstance(data, str):
        return data.encode(), "always"
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", data)), "always"
    if isinstance(data, BINARY):
        file = cast("BinaryIO", data)
        start = file.tell() if file.seekable() else None

        def again() -> AsyncIterable[bytes]:
            if start is not None:
                file.seek(start)
            return _io.pieces(file)

        return again, "always" if start is not None else "never"
    if isinstance(data, AsyncIterable):
        whole = cast("AsyncIterable[bytes]", data)
        return lambda: whole, "never"
    return lambda: _io.pieces(cast("Iterable[bytes]", data)), "never"
