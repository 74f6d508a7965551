"""Packs and unpacks tar archives of directories on the client's machine."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

PIECE_BYTES = 256 << 10
"""Most bytes of a body at once."""

BINARY = (io.RawIOBase, io.BufferedIOBase, tempfile.SpooledTemporaryFile)
"""Files that are open for reading bytes."""

_IN_MEMORY_BYTES = 8 << 20


def pack(local: str | os.PathLike[str]) -> BinaryIO:
    """Makes a tar archive of a file, or of the content of a directory. The caller closes it."""
    source = Path(local)
    archive: BinaryIO = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # type: ignore[assignment]  # noqa: SIM115
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if source.is_dir():
            for entry in sorted(source.iterdir()):
                tar.add(entry, entry.name, filter=_anonymous)
        else:
            tar.add(source, source.name, filter=_anonymous)
    archive.seek(0)
    return archive


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Removes the owner, which means nothing in a sandbox. Leaves out devices, pipes and sockets."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


class Refused(Exception):
    """A member of an archive has a path or link that leads out of the target directory."""


def unpack(archive: BinaryIO, target: Path) -> None:
    """Unpacks an archive from a sandbox. The sandbox may have sent a hostile archive, so `unpack` does not trust it.

    `unpack` makes only files, directories and symbolic links, all below `target`. It makes the symbolic links last, and
    only those that lead to a path below `target`. It never writes through a symbolic link, not even one that was there
    before.
    """
    target.mkdir(parents=True, exist_ok=True)
    root = target.resolve()
    links: list[tuple[Path, str]] = []
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        for member in tar:
            parts = _parts(member.name)
            if not parts:
                continue
            path = root.joinpath(*parts)
            if member.issym():
                links.append((path, member.linkname))
                continue
            _make_parents(root, parts[:-1])
            if member.isdir():
                _make_directory(path)
            elif member.isfile():
                content = tar.extractfile(member)
                if content is not None:
                    _write(path, content, member.mode)
            elif member.islnk():
                _copy(root, root.joinpath(*_parts(member.linkname)), path)
            # Devices and pipes are left out.
    for path, aim in links:
        _link(root, path, aim)


def _parts(name: str) -> tuple[str, ...]:
    pure = PurePosixPath(name)
    parts = tuple(part for part in pure.parts if part != ".")
    if pure.is_absolute() or ".." in parts or any("\\" in part or ":" in part for part in parts if os.name == "nt"):
        raise Refused(f"the archive's member {name[:200]!r} leads outside")
    return parts


def _make_parents(root: Path, parts: tuple[str, ...]) -> None:
    path = root
    for part in parts:
        path = path / part
        _make_directory(path)


def _make_directory(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        path.mkdir()
        return
    if not stat.S_ISDIR(kind):
        path.unlink()
        path.mkdir()


def _write(path: Path, content: io.BufferedIOBase | BinaryIO | object, mode: int) -> None:
    _remove(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, (mode & 0o777) | 0o600), "wb") as file:
        shutil.copyfileobj(content, file)  # type: ignore[arg-type]


def _copy(root: Path, source: Path, path: Path) -> None:
    """Makes a hard link of the archive, as a copy of the file that came earlier in the archive."""
    _inside(root, source.parent)
    if source.is_symlink() or not source.is_file():
        raise Refused(f"the archive's link {path.name[:200]!r} leads to no file of the archive")
    with source.open("rb") as content:
        _write(path, content, source.stat().st_mode)


def _link(root: Path, path: Path, aim: str) -> None:
    parts = path.relative_to(root).parts
    _make_parents(root, parts[:-1])
    if os.path.isabs(aim):
        return
    # Counts the depth by the names alone. `resolve` below finds a path that leads outside through another link.
    depth = len(parts) - 1
    for part in PurePosixPath(aim).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return
    _remove(path)
    path.symlink_to(aim)
    try:
        inside = path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):
        inside = False
    if not inside:
        path.unlink()


def _remove(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(kind):
        shutil.rmtree(path)
    else:
        path.unlink()


def _inside(root: Path, path: Path) -> None:
    if not path.resolve().is_relative_to(root):
        raise Refused("the archive has a link that leads outside")
