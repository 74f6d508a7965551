"""Starts an Atoll server as a child process of this program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from . import errors

_READY_S = 60.0
_STOP_S = 30.0

# This shell script starts the server, and ends it when the pipe from the client closes. The pipe closes also when the
# client is killed. The shell reads from the pipe; the server does not inherit it.
_GUARD = """
exec 3<&0 </dev/null
"$@" 3<&- & server=$!
exec >&-
(read -r _ <&3; kill -TERM "$server" 2>/dev/null) & waiter=$!
exec 3<&-
wait "$server"; code=$?
kill "$waiter" 2>/dev/null
exit "$code"
"""


def program() -> str:
    """The path of the program `atoll`: from `ATOLL_BIN`, from this package, or from the PATH, in this order."""
    found = os.environ.get("ATOLL_BIN") or _bundled() or shutil.which("atoll")
    if not found:
        raise errors.InvalidRequest(
            "no program 'atoll' was found", code="no_program", hint="put it on the PATH, or name it with ATOLL_BIN"
        )
    return found


def _bundled() -> str | None:
    """The program that was installed with this package. Wheels that are built for one platform have it.

    Its path comes from the package's metadata, because the directory for scripts differs between installations.
    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("atoll-sandbox") or ():
            if file.name == "atoll" and file.parent.name == "bin":
                path = Path(str(file.locate()))
                return str(path.resolve()) if path.exists() else None
    return None


class LocalServer:
    """An Atoll server that ends when this process ends. The server and its shell are one process group."""

    def __init__(self, process: subprocess.Popen[bytes], directory: tempfile.TemporaryDirectory[str]) -> None:
        self._process, self._directory = process, directory
        self.url = ""
        self.api_key = ""

    @staticmethod
    def start(args: Sequence[str] = ()) -> LocalServer:
        """Starts a server and waits until it is ready.

        Raises:
            ServerError: The server ended, or was not ready in time. The message has the end of the server's log.
        """
        command = [program(), "serve", "--ephemeral", "--listen", "127.0.0.1:0", "--ready-json"]
        directory = tempfile.TemporaryDirectory(prefix="atoll-local-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        log = Path(directory.name) / "log"
        with log.open("wb") as errors_to:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "atoll", *command, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_to,
                start_new_session=True,
            )
        server = LocalServer(process, directory)
        try:
            ready = server._first_line()
            server.url, server.api_key = ready["url"], ready["api_key"]
        except (ValueError, KeyError):
            said = log.read_text(errors="replace")[-2000:].strip()
            server.stop()
            raise errors.ServerError(f"the server did not start: {said}", code="not_started") from None
        return server

    def _first_line(self) -> dict[str, str]:
        stdout = self._process.stdout
        assert stdout is not None
        timer = threading.Timer(_READY_S, self._kill)
        timer.start()
        try:
            return json.loads(stdout.readline())
        finally:
            timer.cancel()

    def stop(self) -> None:
        """Ends the server and waits until its process is gone."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._directory.cleanup()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
