"""mini-SWE-agent's environment over one Atoll sandbox."""

from __future__ import annotations

import platform
import weakref
from typing import Any, Literal

from atoll import Atoll, AtollError
from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

_SUBMITTED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class AtollEnvironmentConfig(BaseModel):
    """The settings that the sandbox is made from, and how commands run in it.

    Attributes:
        image: An image of the server; the server's default image when absent.
        template: A template, as `name` or `name:version`.
        cwd: Directory of commands; made when it is absent, the image's own when empty.
        env: Environment of every command.
        timeout: Seconds that a command may take.
        interpreter: The argv that runs a command; the command is appended to it.
        cpu: Cores.
        memory: Such as `2GiB`.
        isolation: `container`, `gvisor` or `microvm`; the server's default when absent.
        idle: Time after its last use at which the server deletes the sandbox, if it still exists.
    """

    image: str | None = None
    template: str | None = None
    cwd: str = ""
    env: dict[str, str] = {}
    timeout: int = 30
    interpreter: list[str] = ["bash", "-lc"]
    cpu: float | None = None
    memory: str | None = None
    isolation: Literal["container", "gvisor", "microvm"] | None = None
    idle: str = "2h"


class AtollEnvironment:
    """Runs an agent's commands in a sandbox of its own, and deletes the sandbox when this object goes away.

    A command that runs out of time is killed with everything it started; the output until then is returned.
    """

    def __init__(self, *, config_class: type = AtollEnvironmentConfig, client: Atoll | None = None, **kwargs: Any) -> None:
        """Makes the sandbox, on the server of `client`, or else the one in `ATOLL_URL` and `ATOLL_API_KEY`."""
        self.config = config_class(**kwargs)
        client = client or Atoll()
        self.sandbox = client.sandboxes.create(
            image=self.config.image,
            template=self.config.template,
            workdir=self.config.cwd or None,
            env=self.config.env or None,
            cpu=self.config.cpu,
            memory=self.config.memory,
            isolation=self.config.isolation,
            idle=self.config.idle,
            labels={"made-by": "mini-swe-agent"},
            keep=True,
        )
        # Agents do not say when they end. This deletes the sandbox when this object or the process ends.
        self._end = weakref.finalize(self, _delete, self.sandbox)

    def execute(self, action: dict, cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Runs a command.

        Raises:
            Submitted: The command's output says that the task is done.
        """
        seconds = timeout or self.config.timeout
        # The output, in the order in which the command wrote it.
        pieces: list[bytes] = []
        try:
            result = self.sandbox.run(
                [*self.config.interpreter, action.get("command", "")],
                cwd=cwd or None,
                timeout=seconds,
                on_output=lambda piece: pieces.append(getattr(piece, "data", b"")),
            )
        except AtollError as error:
            return self._failed(_text(pieces), str(error), type(error).__name__)
        if result.exit_code is None or result.end == "timed_out":
            said = f"timed out after {seconds} seconds" if result.end == "timed_out" else result.end
            return self._failed(_text(pieces), said, result.end)
        output = {"output": _text(pieces), "returncode": result.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The variables of prompt templates: the configuration, and the machine as commands see it."""
        uname = self.sandbox.run(["uname", "-srvm"], timeout=30).stdout.split()
        machine = {"system": "Linux", "release": platform.release(), "machine": platform.machine()}
        if len(uname) >= 4:
            machine = {"system": uname[0], "release": uname[1], "version": " ".join(uname[2:-1]), "machine": uname[-1]}
        return recursive_merge(self.config.model_dump(), machine, kwargs)

    def serialize(self) -> dict[str, Any]:
        """The data about this environment that a trajectory stores."""
        name = f"{type(self).__module__}.{type(self).__name__}"
        environment = self.config.model_dump(mode="json") | {"sandbox": self.sandbox.id}
        return {"info": {"config": {"environment": environment, "environment_type": name}}}

    def cleanup(self) -> None:
        """Deletes the sandbox."""
        self._end()

    @staticmethod
    def _failed(output: str, said: str, kind: str) -> dict[str, Any]:
        return {
            "output": output,
            "returncode": -1,
            "exception_info": f"An error occurred while executing the command: {said}",
            "extra": {"exception_type": kind, "exception": said},
        }

    @staticmethod
    def _check_finished(output: dict[str, Any]) -> None:
        lines = output["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == _SUBMITTED and output["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})


def _text(pieces: list[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")


def _delete(sandbox: Any) -> None:
    try:
        sandbox.delete()
    except AtollError:
        # The server deletes the sandbox `idle` after its last use.
        pass
