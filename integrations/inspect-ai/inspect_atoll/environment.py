"""Inspect's sandbox environment over one Atoll sandbox."""

from __future__ import annotations

import errno
import posixpath
import shlex
import uuid
from typing import Any, Literal, overload

from atoll import AsyncAtoll, AtollError, errors
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel
from typing_extensions import override

from inspect_atoll.config import AtollSandboxConfig, read_config, template_of

_LABEL = {"made-by": "inspect-ai"}
_FILE_TIMEOUT_S = 600
_COMMAND_MAX_CHARS = 128 << 10
_SHELL = "/bin/sh"

# Files are read and written with the rights of the sandbox's user, which may be fewer than the server's agent has.
_MAY_READ = '[ -d "$1" ] && exit 21; [ -e "$1" ] || exit 22; [ -r "$1" ] || exit 23'
_WRITE = 'mkdir -p -- "$2" || exit 24; [ ! -d "$1" ] || exit 21; [ ! -e "$1" ] || [ -w "$1" ] || exit 23; cat > "$1"'


@sandboxenv(name="atoll")
class AtollSandboxEnvironment(SandboxEnvironment):
    """Runs a sample's commands, and keeps its files, in an Atoll sandbox.

    A command runs once, even if connections break.
    """

    def __init__(self, client: AsyncAtoll, sandbox: Any, workdir: str, user: str | None = None) -> None:
        super().__init__()
        self._user = user
        self._client = client
        self._sandbox = sandbox
        self._workdir = workdir

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._sandbox.id

    # Life

    @override
    @classmethod
    def config_files(cls) -> list[str]:
        return ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml", "Dockerfile"]

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return AtollSandboxConfig(**config)

    @override
    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Builds the Dockerfile that the task names, before its samples begin."""
        async with AsyncAtoll() as client:
            await template_of(client, read_config(config))

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        wanted = read_config(config)
        client = AsyncAtoll()
        try:
            sandbox = await client.sandboxes.create(
                image=wanted.image,
                template=await template_of(client, wanted),
                snapshot=wanted.snapshot,
                user=wanted.user,
                workdir=wanted.workdir,
                env=wanted.env,
                cpu=wanted.cpu,
                memory=wanted.memory,
                disk=wanted.disk,
                isolation=wanted.isolation,
                network=wanted.network(),
                idle=wanted.idle,
                labels=_LABEL,
                keep=True,
            )
            try:
                workdir = wanted.workdir or (await sandbox.run(["/bin/pwd"], check=True)).stdout.strip()
                if wanted.command:
                    await sandbox.start(list(wanted.command))
            except BaseException:
                await sandbox.delete()
                raise
        except BaseException:
            await client.aclose()
            raise
        return {"default": cls(client, sandbox, workdir, wanted.user)}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            one = environment.as_type(AtollSandboxEnvironment)
            try:
                await one._sandbox.delete()
            finally:
                await one._client.aclose()

    @override
    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Deletes the sandbox with this id, or all that this package made."""
        async with AsyncAtoll() as client:
            async for sandbox in client.sandboxes.list(labels=_LABEL):
                if id in {None, sandbox.id}:
                    await sandbox.delete()
                    print(f"deleted {sandbox.id}")

    @override
    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        return SandboxConnection(type="atoll", command=f"atoll shell {'-u ' + user + ' ' if user else ''}{self.id}")

    @override
    def default_polling_interval(self) -> float:
        return 0.2

    # Commands

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self._sandbox.run(
                await self._short(cmd),
                cwd=posixpath.join(self._workdir, cwd or ""),
                env=env,
                user=user,
                timeout=timeout,
                input=input,
                max_output=limit,
            )
        except (errors.NotFound, errors.Conflict) as error:
            raise SandboxUnavailableError(str(error)) from error
        except errors.InvalidRequest as error:
            if error.code == "user_not_found":
                raise SandboxUserUnsupportedError(error.message) from error
            raise
        if result.end == "timed_out":
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            setattr(late, "truncated_output", result.stdout + result.stderr)
            raise late
        if result.end == "not_started":
            return _not_started(cmd, result)
        if result.exit_code is None:
            raise SandboxUnavailableError(f"the command ended with the sandbox: {result.end}")
        if result.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout)
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def _short(self, cmd: list[str]) -> list[str]:
        """Returns the command. One that is too long for a request is written to a script that removes itself."""
        if sum(map(len, cmd)) < _COMMAND_MAX_CHARS:
            return cmd
        path = f"/tmp/.inspect-atoll-{uuid.uuid4().hex}"
        await self._sandbox.files.write(path, f'rm -f -- "$0"\nexec {shlex.join(cmd)}\n', mode="0644", user=self._user)
        return [_SHELL, path]

    # Files

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        path = self._path(file)
        done = await self.exec(
            [_SHELL, "-c", _WRITE, "write", path, posixpath.dirname(path)],
            input=contents,
            env={"LC_ALL": "C"},
            timeout=_FILE_TIMEOUT_S,
        )
        said = done.stderr.lower()
        if done.returncode == 21:
            raise IsADirectoryError(errno.EISDIR, "Is a directory.", file)
        if done.returncode == 23 or "permission denied" in said:
            raise PermissionError(errno.EACCES, "Permission denied.", file)
        if not done.success:
            raise RuntimeError(f"{file} could not be written: {done.stderr}")

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        path = self._path(file)
        may = await self.exec([_SHELL, "-c", _MAY_READ, "read", path], timeout=_FILE_TIMEOUT_S)
        if may.returncode == 21:
            raise IsADirectoryError(errno.EISDIR, "Is a directory.", file)
        if may.returncode == 22:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory.", file)
        if may.returncode == 23:
            raise PermissionError(errno.EACCES, "Permission denied.", file)
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        content = bytearray()
        pieces = self._sandbox.files.stream(path)
        try:
            # A file may grow while this reads it, so its size beforehand cannot be relied on.
            async for piece in pieces:
                content += piece
                if len(content) > limit:
                    raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        except errors.NotFound as error:
            raise FileNotFoundError(errno.ENOENT, error.message, file) from error
        except AtollError as error:
            raise RuntimeError(f"{file} could not be read: {error}") from error
        finally:
            await pieces.aclose()
        return content.decode() if text else bytes(content)

    def _path(self, file: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, file))


def _not_started(cmd: list[str], result: Any) -> ExecResult[str]:
    if result.exec.exit.error == "command_not_executable":
        raise PermissionError(errno.EACCES, "Permission denied.", cmd[0])
    return ExecResult(False, result.exit_code or 127, "", f"{cmd[0]}: not found")
