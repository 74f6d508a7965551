"""A session: commands, files and ports of one sandbox, in the SDK's words."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.session import BaseSandboxSession, SandboxSessionState
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
from agents.sandbox.workspace_paths import coerce_posix_path, posix_path_as_path, sandbox_path_str
from atoll import AtollError, errors
from pydantic import Field

from openai_agents_atoll.processes import Processes

_PORT_URL_TTL = "1h"
_ARCHIVE_TIMEOUT_S = 600


class AtollSandboxSessionState(SandboxSessionState):
    """The data to find a session again: the sandbox's id, and the options for a new one if it is gone."""

    type: Literal["atoll"] = "atoll"
    sandbox_id: str
    options: dict[str, Any] = Field(default_factory=dict)
    pause_on_exit: bool = False


class AtollSandboxSession(BaseSandboxSession):
    """A session in an Atoll sandbox. A command runs once, even if connections break meanwhile."""

    state: AtollSandboxSessionState

    def __init__(self, *, state: AtollSandboxSessionState, sandbox: Any) -> None:
        self.state = state
        self._sandbox = sandbox
        self._processes = Processes()

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self.state.sandbox_id

    # Life

    async def _prepare_backend_workspace(self) -> None:
        # This runs before the first command, which has this directory as its working directory.
        await self._sandbox.files.mkdir(sandbox_path_str(self.state.manifest.root))

    async def _shutdown_backend(self) -> None:
        if self.state.pause_on_exit:
            try:
                await self._sandbox.pause("filesystem")
            except errors.NotFound:
                pass
        else:
            await self._sandbox.delete()

    async def running(self) -> bool:
        """Whether the sandbox can be used. One that is paused counts: a request wakes it."""
        try:
            state = (await self._sandbox.refresh()).state
        except AtollError:
            return False
        return state not in {"failed", "deleting", "deleted"}

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.state.sandbox_id

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    # Commands

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Runs a command to its end. For another user no sudo is needed: the server starts the command as that user."""
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        return await self._run(argv, timeout, _name(user))

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._run([str(part) for part in command], timeout, None)

    async def _run(self, argv: list[str], timeout: float | None, user: str | None) -> ExecResult:
        try:
            result = await self._sandbox.run(
                argv, cwd=self._root(), env=await self._env(), user=user, timeout=_seconds(timeout)
            )
        except AtollError as error:
            raise _transport_error(argv, error) from error
        if result.end == "timed_out":
            raise ExecTimeoutError(command=argv, timeout_s=timeout)
        if result.exit_code is None:
            raise ExecTransportError(
                command=argv, context={"backend": "atoll", "reason": result.end}, message=f"the command ended: {result.end}"
            )
        return ExecResult(stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=result.exit_code)

    def supports_pty(self) -> bool:
        """Commands can go on between calls, on a terminal or not."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Starts a command, and returns its output until it ended or `yield_time_s` passed."""
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        try:
            process = await self._sandbox.start(
                argv,
                cwd=self._root(),
                env=await self._env(),
                user=_name(user),
                timeout=_seconds(timeout),
                pty=(80, 24) if tty else False,
            )
        except AtollError as error:
            raise _transport_error(argv, error) from error
        return await self._processes.started(process, tty, yield_time_s, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Types into a command that was started on a terminal, or waits for more of its output."""
        return await self._processes.write(session_id, chars, yield_time_s, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """Kills the commands of `pty_exec_start` that still run."""
        await self._processes.kill_all()

    # Files

    async def read(self, path: Path | str, *, user: str | User | None = None) -> io.IOBase:
        """A file's content."""
        shown = posix_path_as_path(coerce_posix_path(path))
        if user is not None:
            there = await self._check_read_with_exec(path, user=user)
        else:
            there = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._sandbox.files.read_bytes(sandbox_path_str(there)))
        except AtollError as error:
            raise _read_error(shown, error) from error

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        there = await self._validate_path_access(path)
        content = bytearray()
        pieces = self._sandbox.files.stream(sandbox_path_str(there))
        try:
            async for piece in pieces:
                content += piece
                if len(content) >= max_bytes:
                    break
        except AtollError as error:
            raise _read_error(path, error) from error
        finally:
            await pieces.aclose()
        return bytes(content[:max_bytes])

    async def write(self, path: Path | str, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file, whole or not at all."""
        shown = posix_path_as_path(coerce_posix_path(path))
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        content = data.read()
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=shown, actual_type=type(content).__name__)
        there = await self._validate_path_access(path, for_write=True)
        try:
            await self._sandbox.files.write(sandbox_path_str(there), bytes(content), user=_name(user))
        except AtollError as error:
            raise WorkspaceArchiveWriteError(path=there, cause=error, retryable=error.retryable) from error

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Makes a directory, and with `parents` the missing ones above it. If it exists already, that is no error."""
        if user is not None:
            there = await self._check_mkdir_with_exec(path, parents=parents, user=user)
        else:
            there = await self._validate_path_access(path, for_write=True)
        try:
            await self._sandbox.files.mkdir(sandbox_path_str(there), parents=parents, user=_name(user))
        except AtollError as error:
            if error.code == "file_exists" and await self._is_directory(there):
                return
            raise WorkspaceArchiveWriteError(path=there, cause=error, retryable=error.retryable) from error

    async def _is_directory(self, path: Path) -> bool:
        try:
            return (await self._sandbox.files.stat(sandbox_path_str(path))).kind == "directory"
        except AtollError:
            return False

    async def persist_workspace(self) -> io.IOBase:
        """Returns the workspace as a tar archive, without the paths that the SDK says to skip."""
        root, archive = self._root(), self._scratch("persist")
        skipped = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        command = f"tar {skipped} -C {shlex.quote(root)} -cf {archive} ."
        try:
            made = await self._sandbox.run(command, timeout=_ARCHIVE_TIMEOUT_S)
            if not made.ok:
                raise WorkspaceArchiveReadError(
                    path=Path(root), context={"reason": "tar_failed", "output": made.stderr[-500:]}, retryable=False
                )
            return io.BytesIO(await self._sandbox.files.read_bytes(archive))
        except AtollError as error:
            raise WorkspaceArchiveReadError(path=Path(root), cause=error, retryable=error.retryable) from error
        finally:
            await self._forget(archive)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Fills the workspace from an archive."""
        root, archive = self._root(), self._scratch("hydrate")
        content = data.read()
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=Path(archive), actual_type=type(content).__name__)
        try:
            validate_tar_bytes(bytes(content), allow_external_symlink_targets=False)
        except UnsafeTarMemberError as error:
            raise WorkspaceArchiveWriteError(
                path=Path(root), context={"reason": "unsafe_or_invalid_tar", "member": error.member}, cause=error
            ) from error
        try:
            await self._sandbox.files.mkdir(root)
            await self._sandbox.files.write(archive, bytes(content))
            done = await self._sandbox.run(f"tar -C {shlex.quote(root)} -xf {archive}", timeout=_ARCHIVE_TIMEOUT_S)
            if not done.ok:
                raise WorkspaceArchiveWriteError(
                    path=Path(root), context={"reason": "tar_extract_failed", "output": done.stderr[-500:]}
                )
        except AtollError as error:
            raise WorkspaceArchiveWriteError(path=Path(root), cause=error, retryable=error.retryable) from error
        finally:
            await self._forget(archive)

    async def _forget(self, path: str) -> None:
        try:
            await self._sandbox.files.remove(path)
        except AtollError:
            # The file lies outside the workspace, and an error that came before says more than this one.
            pass

    # Ports

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            link = urlsplit(await self._sandbox.ports.url(port, ttl=_PORT_URL_TTL))
        except AtollError as error:
            raise ExposedPortUnavailableError(
                port=port, exposed_ports=self.state.exposed_ports, reason="backend_unavailable", cause=error
            ) from error
        tls = link.scheme == "https"
        return ExposedPortEndpoint(
            host=link.hostname or "", port=link.port or (443 if tls else 80), tls=tls, query=link.query
        )

    # Parts

    def _root(self) -> str:
        return sandbox_path_str(self.state.manifest.root)

    async def _env(self) -> dict[str, str]:
        return await self.state.manifest.environment.resolve()

    def _scratch(self, what: str) -> str:
        return f"/tmp/.atoll-{what}-{self.state.session_id.hex}.tar"


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None else max(0.001, timeout)


def _transport_error(argv: list[str], error: AtollError) -> ExecTransportError:
    return ExecTransportError(
        command=argv,
        context={"backend": "atoll", "reason": error.code, "may_have_run": error.may_have_run},
        cause=error,
        message=str(error),
        retryable=error.retryable,
    )


def _read_error(path: Path, error: AtollError) -> WorkspaceReadNotFoundError | WorkspaceArchiveReadError:
    if error.code == "file_not_found":
        return WorkspaceReadNotFoundError(path=path, cause=error)
    return WorkspaceArchiveReadError(path=path, cause=error, retryable=error.retryable)
