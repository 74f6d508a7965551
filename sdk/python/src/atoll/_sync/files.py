# Made by sdk/generate from ../_async: change that.
"""Files in a sandbox."""

from __future__ import annotations

import builtins
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import httpx

from .. import errors
from .. import params as p
from .. import types as t
from .._files import BINARY, Refused, pack, unpack
from . import _io
from .transport import Again, Transport, Body, Query

_OCTETS = {"content-type": "application/octet-stream"}
_TAR = {"content-type": "application/x-tar"}


class Files:
    """Files and directories of one sandbox. Paths are absolute."""

    def __init__(self, transport: Transport, sandbox_path: str) -> None:
        self._transport, self._base = transport, sandbox_path

    def read(self, path: str) -> str:
        """A file as text.

        Raises:
            UnicodeDecodeError: It is no UTF-8; `read_bytes` reads everything.
        """
        return (self.read_bytes(path)).decode()

    def read_bytes(self, path: str) -> bytes:
        """A file."""
        return (self._transport.send("GET", f"{self._base}/files", query=[("path", path)])).content

    def stream(self, path: str) -> Iterator[bytes]:
        """A file, a piece at a time. Goes on where it was when the connection breaks.

        Raises:
            Conflict: The connection broke, and the file is not the same any more.
        """
        at, tag = 0, None
        tries = self._transport.max_retries
        while True:
            headers = {"range": f"bytes={at}-"} if at else {}
            request = self._transport.stream("GET", f"{self._base}/files", headers=headers, query=[("path", path)])
            with request as answer:
                if at and (answer.status_code != 206 or answer.headers.get("etag") != tag):
                    raise errors.Conflict(f"{path} was changed while it was read", code="file_changed", retryable=True)
                tag = answer.headers.get("etag")
                try:
                    for piece in answer.iter_bytes():
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

    def write(
        self,
        path: str,
        data: str | bytes | BinaryIO | Iterable[bytes],
        *,
        mode: str | None = None,
        user: str | None = None,
        parents: bool = True,
    ) -> int:
        """Writes a file, whole or not at all; gives its length. Missing directories above it are made.

        `mode` is in octal, such as `0755`; `user` a name or id, optionally `:group`.
        """
        query: Query = [("path", path), ("mode", mode), ("user", user), ("parents", parents)]
        body, again = content(data)
        answer = self._transport.send(
            "PUT", f"{self._base}/files", content=body, headers=_OCTETS, query=query, again=again
        )
        return answer.json()["bytes"]

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file, a link or a directory, which must be empty unless `recursive`."""
        query: Query = [("path", path), ("recursive", recursive)]
        self._transport.send("DELETE", f"{self._base}/files", query=query)

    def stat(self, path: str, *, follow: bool = True) -> t.FileEntry:
        """What is there."""
        query: Query = [("path", path), ("follow", follow)]
        return t.FileEntry.from_json(self._transport.json("GET", f"{self._base}/files/stat", query=query))

    def exists(self, path: str) -> bool:
        """Whether something is there."""
        try:
            self.stat(path, follow=False)
        except errors.NotFound as error:
            if error.code == "file_not_found":
                return False
            raise
        except errors.Conflict as error:
            if error.code == "not_a_directory":
                return False
            raise
        return True

    def list(self, path: str, *, depth: int = 1, limit: int | None = None) -> builtins.list[t.FileEntry]:
        """What is in a directory, and with `depth` below it."""
        query: Query = [("path", path), ("depth", depth), ("limit", limit)]
        answer = self._transport.json("GET", f"{self._base}/files/list", query=query)
        return t.FileList.from_json(answer).items

    def find(self, path: str, pattern: str, *, limit: int | None = None) -> builtins.list[t.FileEntry]:
        """Files below a directory whose path matches a pattern such as `**/*.py`."""
        found = self._find({"path": path, "pattern": pattern, "limit": limit})
        return [one.file for one in found]

    def grep(
        self, text: str, path: str, *, pattern: str | None = None, limit: int | None = None
    ) -> builtins.list[t.FoundFile]:
        """Lines that contain a text, in files below a directory, or in those that match `pattern`."""
        return self._find({"path": path, "text": text, "pattern": pattern, "limit": limit})

    def _find(self, body: p.FindFiles) -> builtins.list[t.FoundFile]:
        # It only looks, whatever its method.
        answer = self._transport.json("POST", f"{self._base}/files/find", body=body, again="always")
        return t.FoundFiles.from_json(answer).items

    def mkdir(self, path: str, *, mode: str | None = None, user: str | None = None, parents: bool = True) -> None:
        """Makes a directory; with `parents` it may be there, and those above are made."""
        body: p.Mkdir = {"path": path, "mode": mode, "user": user, "parents": parents}
        again: Again = "always" if parents else "never"
        self._transport.json("POST", f"{self._base}/files/mkdir", body=body, again=again)

    def move(self, source: str, target: str, *, replace: bool = True) -> None:
        """Moves or renames."""
        body: p.MoveFile = {"from": source, "to": target, "no_replace": not replace}
        self._transport.json("POST", f"{self._base}/files/move", body=body)

    def chmod(self, path: str, mode: str | None = None, *, user: str | None = None) -> None:
        """Changes permissions (in octal) or owner."""
        body: p.Chmod = {"path": path, "mode": mode, "user": user}
        self._transport.json("POST", f"{self._base}/files/chmod", body=body, again="always")

    def upload(self, local: str | os.PathLike[str], remote: str, *, user: str | None = None) -> None:
        """Copies a file, or what is in a directory, into the directory `remote`, which is made when it is absent."""
        archive = _io.in_thread(lambda: pack(local))
        try:
            body, again = content(archive)
            query: Query = [("path", remote), ("user", user)]
            self._transport.send(
                "PUT", f"{self._base}/archive", content=body, headers=_TAR, query=query, again=again
            )
        finally:
            archive.close()

    def download(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copies a file or directory into the directory `local`, which is made when it is absent.

        Links that lead out of it, and what is neither file, directory nor link, are left out.

        Raises:
            InvalidRequest: The sandbox's archive leads outside.
        """
        with tempfile.TemporaryFile() as archive:
            self._fetch(remote, archive)
            archive.seek(0)
            try:
                _io.in_thread(lambda: unpack(archive, Path(local)))
            except Refused as error:
                raise errors.InvalidRequest(str(error), code="path_invalid") from error

    def _fetch(self, remote: str, archive: Any) -> None:
        tries = self._transport.max_retries
        while True:
            try:
                request = self._transport.stream("GET", f"{self._base}/archive", query=[("path", remote)])
                with request as answer:
                    for piece in answer.iter_bytes():
                        archive.write(piece)
                return
            except (httpx.RequestError, errors.Unreachable) as error:
                if tries == 0:
                    raise errors.Unreachable(
                        f"the connection broke off while {remote} was fetched", code="unreachable", retryable=True
                    ) from error
                # An archive is made anew for each request.
                tries -= 1
                archive.seek(0)
                archive.truncate()


def content(data: object) -> tuple[bytes | Body, Again]:
    """A body, and whether it can be sent again."""
    if isinstance(data, str):
        return data.encode(), "always"
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", data)), "always"
    if isinstance(data, BINARY):
        file = cast("BinaryIO", data)
        start = file.tell() if file.seekable() else None

        def again() -> Iterable[bytes]:
            if start is not None:
                file.seek(start)
            return _io.pieces(file)

        return again, "always" if start is not None else "never"
    if isinstance(data, Iterable):
        whole = cast("Iterable[bytes]", data)
        return lambda: whole, "never"
    return lambda: _io.pieces(cast("Iterable[bytes]", data)), "never"
