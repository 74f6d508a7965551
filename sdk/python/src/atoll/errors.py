"""The errors of the SDK: eleven classes, one for each way in which a program may want to react.

Every error has a stable `code` (the server's codes are in the API's document), a `hint` that tells the caller what to
do, `retryable` (the same call may succeed later), `may_have_run` (the server may have done what the call asked for,
although no answer came) and the `request_id` under which the server's log has the request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from .cells import CodeResult
    from .results import Result


class AtollError(Exception):
    """The base class of all errors: the server refused the call, or the client could not make it."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "client",
        hint: str | None = None,
        retryable: bool = False,
        may_have_run: bool = False,
        request_id: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.retryable = retryable
        self.may_have_run = may_have_run
        self.request_id = request_id
        self.status = status
        """Of the HTTP answer, if one came."""

    def __str__(self) -> str:
        text = f"{self.message} ({self.code})"
        if self.hint:
            text += f"; {self.hint}"
        if self.request_id:
            text += f" [request {self.request_id}]"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Programs pickle exceptions to send them to other processes. By default, pickle loses the keyword arguments.
        return (_again, (type(self), self.args, self.__dict__))


def _again(cls: type[AtollError], args: tuple[Any, ...], state: dict[str, Any]) -> AtollError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class Unreachable(AtollError):
    """The client could not connect to the server, or the connection broke before the whole answer was here."""


class TimedOut(AtollError):
    """The call took longer than its timeout. When a command reaches its own timeout, that is a result and no error."""


class InvalidRequest(AtollError):
    """The request is wrong. The message names the field."""


class NotAllowed(AtollError):
    """The key is missing or wrong, or the key or the sandbox's own permissions do not allow the call."""


class NotFound(AtollError):
    """The server has nothing with the name or id that the call gave."""


class Conflict(AtollError):
    """The call does not fit the current state: the name is taken, the sandbox failed, or the exec has ended."""


class LimitReached(AtollError):
    """A limit is reached, a budget is used up, or a disk is full."""


class ServerError(AtollError):
    """The server failed, or a system that the server depends on."""


class CommandFailed(AtollError):
    """A command did not end with 0, and the caller asked for `check`. `result` has the command's output."""

    def __init__(self, result: Result) -> None:
        super().__init__(_failure(result), code="command_failed", may_have_run=True)
        self.result = result


class CodeFailed(AtollError):
    """A cell did not run to its end, and the caller asked for `check`. `result` has the cell's output."""

    def __init__(self, result: CodeResult) -> None:
        error = result.error
        why = f"{error.name}: {error.value}" if error else (result.reason or result.state).replace("_", " ")
        super().__init__(f"the code did not run to its end: {why}", code="code_failed", may_have_run=True)
        self.result = result


def _failure(result: Result) -> str:
    text = f"the command ended with code {result.exit_code}" if result.exit_code is not None else "the command ended"
    if result.end != "exited":
        text += f" ({result.end})"
    said = (result.stderr or result.stdout).strip()
    return f"{text}: {said[-500:]}" if said else text


_BY_STATUS: dict[int, type[AtollError]] = {
    400: InvalidRequest,
    401: NotAllowed,
    402: LimitReached,
    403: NotAllowed,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    413: InvalidRequest,
    416: InvalidRequest,
    422: InvalidRequest,
    423: Conflict,
    429: LimitReached,
    504: TimedOut,
    507: LimitReached,
}
# Used when an answer does not say whether it is retryable, such as the answer of a proxy in front of the server.
_RETRYABLE = frozenset({429, 502, 503, 504})


def from_answer(status: int, body: bytes, *, changes: bool, request_id: str | None) -> AtollError:
    """Makes an error from an HTTP answer. `changes` says whether the request may change anything on the server."""
    said: Mapping[str, Any] = {}
    try:
        parsed: Any = json.loads(body)
        if isinstance(parsed, dict):
            said = cast("dict[str, Any]", parsed)
    except ValueError:
        pass
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else InvalidRequest)
    return kind(
        str(said.get("message") or f"the server answered with status {status}"),
        code=str(said.get("code") or f"http_{status}"),
        hint=said.get("hint"),
        retryable=bool(said.get("retryable", status in _RETRYABLE)),
        may_have_run=changes and status >= 500 and status != 507,
        request_id=said.get("request_id") or request_id,
        status=status,
    )


def from_body(body: Mapping[str, Any], *, may_have_run: bool = False) -> AtollError:
    """Makes an error from the JSON of an error in a stream or in one entry of a batch."""
    code = str(body.get("code", "internal"))
    kind = Conflict if code in {"sandbox_failed", "name_taken", "invalid_state"} else ServerError
    if code.endswith("_not_found"):
        kind = NotFound
    elif code in {"limit_exceeded", "budget_exhausted", "host_disk_full", "disk_full"}:
        kind = LimitReached
    elif code in {"invalid_argument", "image_invalid", "image_platform_mismatch"}:
        kind = InvalidRequest
    return kind(
        str(body.get("message", "")),
        code=code,
        hint=body.get("hint"),
        retryable=bool(body.get("retryable", False)),
        may_have_run=may_have_run,
        request_id=body.get("request_id"),
    )


__all__ = [
    "AtollError",
    "CodeFailed",
    "CommandFailed",
    "Conflict",
    "InvalidRequest",
    "LimitReached",
    "NotAllowed",
    "NotFound",
    "ServerError",
    "TimedOut",
    "Unreachable",
]
