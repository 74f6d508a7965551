"""NeMo Gym's provider of sandboxes over Atoll's own SDK."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from atoll import AsyncAtoll, AsyncProcess, AtollError, Network, errors
from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

_OPTIONS = frozenset({"template", "snapshot", "user", "internet", "allow"})
_STATUS = {
    "creating": SandboxStatus.STARTING,
    "running": SandboxStatus.RUNNING,
    "resuming": SandboxStatus.STARTING,
    # A request to a paused sandbox wakes it.
    "pausing": SandboxStatus.RUNNING,
    "paused": SandboxStatus.RUNNING,
    "deleting": SandboxStatus.STOPPED,
    "failed": SandboxStatus.ERROR,
}
# The code that NeMo Gym's other providers return where there is no exit code.
_NO_EXIT_CODE = 125


class AtollProvider:
    """Makes a sandbox for each handle. A command runs once, even if connections break."""

    name = "atoll"

    def __init__(
        self,
        *,
        url: str | None = None,
        api_key: str | None = None,
        isolation: Literal["container", "gvisor", "microvm"] | None = None,
        idle: str = "2h",
    ) -> None:
        """A provider on one server.

        Args:
            url: The server; `ATOLL_URL` when absent.
            api_key: A key; `ATOLL_API_KEY` when absent.
            isolation: The level; the server's default when absent.
            idle: Time after its last use at which the server deletes a sandbox that was not closed.
        """
        self._client = AsyncAtoll(url, api_key=api_key)
        self._isolation: Any = isolation
        self._idle = idle

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Makes a sandbox that runs.

        Raises:
            SandboxCreateError: The sandbox could not be made, or the spec asks for a feature that Atoll does not have.
        """
        options = dict(spec.provider_options)
        if unknown := sorted(set(options) - _OPTIONS):
            raise SandboxCreateError(f"unknown provider_options: {', '.join(unknown)}; known are {', '.join(sorted(_OPTIONS))}")
        if spec.resources.gpu or spec.resources.gpu_type:
            raise SandboxCreateError("resources.gpu: sandboxes have no GPUs")
        internet, allow = options.pop("internet", None), options.pop("allow", None)
        network = Network(allow=list(allow)) if allow else None if internet is None else Network(internet=internet)
        memory, disk = spec.resources.memory_mib, spec.resources.disk_gib
        try:
            async with asyncio.timeout(spec.ready_timeout_s):
                sandbox = await self._client.sandboxes.create(
                    image=spec.image,
                    workdir=spec.workdir,
                    env=spec.env or None,
                    cpu=spec.resources.cpu,
                    memory=None if memory is None else f"{memory}MiB",
                    disk=None if disk is None else f"{disk}GiB",
                    ttl=None if spec.ttl_s is None else float(spec.ttl_s),
                    idle=self._idle,
                    isolation=self._isolation,
                    network=network,
                    labels={**spec.metadata, "made-by": "nemo-gym"},
                    keep=True,
                    **options,
                )
        except TimeoutError as error:
            raise SandboxCreateError(f"not ready after {spec.ready_timeout_s} s") from error
        except AtollError as error:
            raise SandboxCreateError(str(error)) from error
        if spec.entrypoint:
            try:
                process = await sandbox.start(list(spec.entrypoint))
                await _begun(process)
            except BaseException as error:
                await sandbox.delete()
                if isinstance(error, AtollError):
                    raise SandboxCreateError(f"entrypoint: {error}") from error
                raise
        return SandboxHandle(sandbox.id, self.name, sandbox)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Runs a line of shell. A command that runs out of time is killed with everything it started."""
        try:
            done = await handle.raw.run(
                command,
                cwd=cwd,
                env=env,
                user=None if user is None else str(user),
                timeout=None if timeout_s is None else float(timeout_s),
            )
        except AtollError as error:
            return SandboxExecResult(None, str(error), _NO_EXIT_CODE, error_type="sandbox")
        if done.exit_code is None or done.end == "timed_out":
            kind = "timeout" if done.end == "timed_out" else "sandbox"
            return SandboxExecResult(done.stdout, done.stderr, _NO_EXIT_CODE, error_type=kind)
        return SandboxExecResult(done.stdout, done.stderr, done.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copies a file into the sandbox; directories above it are made."""
        parent = str(PurePosixPath(target_path).parent)
        await handle.raw.files.mkdir(parent)
        with source_path.open("rb") as source:
            await handle.raw.files.write(target_path, source)

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copies a file out of the sandbox; directories above it are made.

        Raises:
            FileNotFoundError: The sandbox has no such file.
        """
        target_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target_path.open("wb") as target:
                async for piece in handle.raw.files.stream(source_path):
                    target.write(piece)
        except BaseException as error:
            # What came of it is no file of the sandbox.
            target_path.unlink(missing_ok=True)
            if isinstance(error, errors.NotFound):
                raise FileNotFoundError(f"{source_path}: {error}") from error
            raise

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """The state of the sandbox."""
        try:
            info = await handle.raw.refresh()
        except errors.NotFound:
            return SandboxStatus.STOPPED
        return _STATUS.get(str(info.state), SandboxStatus.UNKNOWN)

    async def close(self, handle: SandboxHandle) -> None:
        """Deletes the sandbox. One that is gone already is no error."""
        try:
            await handle.raw.delete()
        except errors.NotFound:
            pass

    async def aclose(self) -> None:
        """Closes connections to the server."""
        await self._client.aclose()


async def _begun(process: AsyncProcess) -> None:
    """Waits until a program has started, or has failed to start."""
    while (info := await process.refresh()).state == "starting":
        await asyncio.sleep(0.02)
    if info.exit is not None and info.exit.reason == "not_started":
        raise SandboxCreateError(f"entrypoint: {info.exit.error}")
