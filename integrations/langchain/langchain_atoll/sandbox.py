"""A Deep Agents backend in an Atoll sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll import AtollError
from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

if TYPE_CHECKING:
    from atoll import Result, Sandbox

_DEFAULT_TIMEOUT = 30 * 60
"""Seconds that a command may take when nobody says."""

# Error names that Deep Agents shows to models, by the error codes of the server.
_CODES = {
    "file_not_found": "file_not_found",
    "is_a_directory": "is_directory",
    "permission_denied": "permission_denied",
    "path_invalid": "invalid_path",
    "not_a_directory": "invalid_path",
    "invalid_argument": "invalid_path",
}


class AtollSandbox(BaseSandbox):
    """Runs an agent's commands, and keeps its files, in an Atoll sandbox.

    A command runs once, even if connections break meanwhile.
    """

    def __init__(self, *, sandbox: Sandbox, timeout: int = _DEFAULT_TIMEOUT) -> None:
        """Wraps an existing sandbox. The caller that created it deletes it.

        Args:
            sandbox: The sandbox, from `Atoll().sandboxes`.
            timeout: Seconds that a command may take when `execute` gets no timeout.
        """
        self._sandbox = sandbox
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a line of shell. A `timeout` of 0 means no timeout.

        A command that takes longer is killed, and the output that it wrote until then is returned.
        """
        seconds = self._timeout if timeout is None else timeout
        return _response(self._sandbox.run(command, timeout=seconds or None), seconds)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes each file by itself: if one fails, the others are still written."""
        responses: list[FileUploadResponse] = []
        for path, content in files:
            error: str | None = None
            if not path.startswith("/"):
                error = "invalid_path"
            else:
                try:
                    self._sandbox.files.write(path, content)
                except AtollError as failure:
                    error = _error(failure)
            responses.append(FileUploadResponse(path=path, error=error))
        return responses

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files, each by itself."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, content=None, error="invalid_path")
        try:
            content = self._sandbox.files.read_bytes(path)
        except AtollError as failure:
            return FileDownloadResponse(path=path, content=None, error=_error(failure))
        return FileDownloadResponse(path=path, content=content, error=None)


def _response(result: Result, seconds: int) -> ExecuteResponse:
    output = result.stdout
    if result.stderr:
        output += ("\n" if output and not output.endswith("\n") else "") + result.stderr
    if result.end == "timed_out":
        output += f"\n[killed after {seconds} seconds]"
    elif result.end == "out_of_memory":
        output += "\n[killed: the sandbox's memory limit was reached]"
    return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=result.truncated)


def _error(failure: AtollError) -> str:
    """Returns the name of an error that concerns the file; raises an error that concerns the sandbox."""
    known = _CODES.get(failure.code)
    if known is None:
        raise failure
    return known

