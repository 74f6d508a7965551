# Made by sdk/generate from ../_async: change that.
"""A sandbox: its commands, state, snapshots and network."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence

from .. import errors
from .. import params as p
from .. import types as t
from .._telemetry import tool_span
from .._units import Duration, maybe_ms
from ..network import Network
from ..results import OUTPUT_MAX_BYTES, Result
from ._io import OnOutput
from .code import Code
from .files import Files
from .pager import Pager
from .ports import Ports
from .process import Process, Command, command_body, run
from .terminal import Terminal
from .transport import Transport, new_key, segment


class Sandbox:
    """A sandbox. Used as a context manager, it is deleted at the end, unless it was made with `keep=True`."""

    def __init__(self, transport: Transport, info: t.Sandbox, *, keep: bool = True) -> None:
        self._transport = transport
        self.info = info
        """What the server said of it last; `refresh` asks again."""
        self.id = info.id
        self.keep = keep
        self._path = f"/v1/sandboxes/{segment(info.id)}"
        self.code = Code(transport, self._path)
        self.files = Files(transport, self._path)
        self.ports = Ports(transport, self._path)

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r}, state={self.info.state!r})"

    @property
    def name(self) -> str | None:
        """The sandbox's name, or None."""
        return self.info.name

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.keep:
            self.delete()

    def with_options(self, *, timeout: float | None = None, max_retries: int | None = None) -> Sandbox:
        """Returns an object for the same sandbox with other limits for each call."""
        return Sandbox(self._transport.with_options(timeout, max_retries), self.info, keep=self.keep)

    # Commands

    def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: Duration | None = None,
        idle_timeout: Duration | None = None,
        input: str | bytes | None = None,
        on_output: OnOutput | None = None,
        max_output: int = OUTPUT_MAX_BYTES,
        check: bool = False,
        idempotency_key: str | None = None,
    ) -> Result:
        """Runs a command to its end: a line for the shell, or a list of program and arguments.

        Broken connections never make the command run twice.

        Args:
            command: The command.
            cwd: Working directory.
            env: Environment variables in addition to the sandbox's.
            user: Name or id of the user, optionally with `:group`.
            timeout: Kill the command after this long; the result's `end` is then `timed_out`.
            idle_timeout: Kill the command when it has written nothing for this long.
            input: The command's standard input. When absent, the command reads end-of-file at once.
            on_output: Called with each piece of output as it comes.
            max_output: Most bytes of each stream that the result holds; above it, the oldest are dropped.
            check: Raise `CommandFailed` when the command does not end with 0.
            idempotency_key: A later call with the same key gets the result of the first. A random key when absent.
        """
        body = command_body(
            command,
            cwd=cwd,
            env=env,
            user=user,
            timeout=timeout,
            idle_timeout=idle_timeout,
            stdin=input is not None,
            idempotency_key=idempotency_key,
        )
        with tool_span(self.id) as span:
            result = run(
                self._transport, self.id, body, input=input, on_output=on_output, max_output=max_output
            )
            span.ended(result)
        return result.check() if check else result

    def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: Duration | None = None,
        idle_timeout: Duration | None = None,
        stdin: bool = False,
        pty: bool | tuple[int, int] = False,
        keep_output: int | None = None,
        idempotency_key: str | None = None,
    ) -> Process:
        """Starts a command and returns when it runs, without waiting for its end.

        Args:
            command: The command.
            cwd: Working directory.
            env: Environment variables in addition to the sandbox's.
            user: Name or id of the user, optionally with `:group`.
            timeout: Kill the command after this long.
            idle_timeout: Kill the command when it has written nothing for this long.
            stdin: Keep standard input open, for `Process.write`.
            pty: Run the command on a terminal: of this many columns and rows, or 80 and 24 with True.
            keep_output: Most bytes of output that the server keeps.
            idempotency_key: A later call with the same key gets the process of the first. A random key when absent.
        """
        tty = None if pty is False else (80, 24) if pty is True else pty
        body = command_body(
            command,
            cwd=cwd,
            env=env,
            user=user,
            timeout=timeout,
            idle_timeout=idle_timeout,
            stdin=stdin or tty is not None,
            tty=tty,
            keep_output=keep_output,
            idempotency_key=idempotency_key,
        )
        answer = self._transport.json("POST", f"{self._path}/execs", body=body, again="always")
        info = t.Exec.from_json(answer["exec"])
        return Process(self._transport, self.id, info.id, info)

    def exec(self, id: str) -> Process:
        """Gives a command by its id, also one that another client started. Sends no request."""
        return Process(self._transport, self.id, id)

    def execs(self, *, state: Sequence[t.ExecState] = ()) -> Pager[Process]:
        """Lists the sandbox's commands, newest first."""

        def read(one: dict[str, object]) -> Process:
            info = t.Exec.from_json(one)
            return Process(self._transport, self.id, info.id, info)

        query = [("state", one) for one in state]
        return Pager(self._transport, f"{self._path}/execs", query, read)

    def terminal(
        self,
        cols: int = 80,
        rows: int = 24,
        *,
        command: Command | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Terminal:
        """Opens a terminal with a shell or another command. Closing the terminal ends the command."""
        shell = command if command is not None else "command -v bash >/dev/null && exec bash -il || exec sh -il"
        variables = {"TERM": "xterm-256color", **(env or {})}
        process = self.start(shell, cwd=cwd, env=variables, user=user, pty=(cols, rows))
        return Terminal(self._transport, process, 0, kills=True)

    # Information and limits

    def refresh(self) -> t.Sandbox:
        """Asks the server for the sandbox's state and settings."""
        self.info = t.Sandbox.from_json(self._transport.json("GET", self._path))
        return self.info

    def update(
        self, changes: p.UpdateSandbox | None = None, *, network: Network | None = None
    ) -> t.Sandbox:
        """Changes the given settings, in the API's form: name, env, labels, limits, lifetimes; or the network."""
        body: p.UpdateSandbox = {**changes} if changes else {}
        if network is not None:
            body["egress"] = network.policy()
        self.info = t.Sandbox.from_json(self._transport.json("PATCH", self._path, body=body, again="always"))
        return self.info

    def delete(self) -> None:
        """Deletes the sandbox with everything in it. Does nothing when it is gone already."""
        try:
            self._transport.send("DELETE", self._path)
        except errors.NotFound:
            pass

    def metrics(self) -> t.Metrics:
        """Returns the resources that the sandbox uses now."""
        return t.Metrics.from_json(self._transport.json("GET", f"{self._path}/metrics"))

    def usage(self) -> t.UsageItem:
        """Returns the resources that the sandbox has used in its whole life."""
        answer = self._transport.json("GET", "/v1/usage", query=[("sandbox", self.id)])
        return t.UsageList.from_json(answer).items[0]

    def network(self) -> t.NetworkView:
        """Returns the connections that the sandbox made, and those that the server refused."""
        return t.NetworkView.from_json(self._transport.json("GET", f"{self._path}/network"))

    # States

    def pause(self, mode: t.PauseMode | None = None) -> t.Sandbox:
        """Pauses the sandbox: `frozen` keeps it in memory, `memory` and `filesystem` on disk. Any use resumes it."""
        body: p.PauseSandbox = {} if mode is None else {"mode": mode}
        answer = self._transport.json("POST", f"{self._path}/pause", body=body, again="always")
        self.info = t.Sandbox.from_json(answer)
        return self.info

    def resume(self) -> t.Sandbox:
        """Resumes the sandbox."""
        answer = self._transport.json("POST", f"{self._path}/resume", again="always")
        self.info = t.Sandbox.from_json(answer)
        return self.info

    def snapshot(self, *tags: str, memory: bool = False, comment: str | None = None) -> t.Snapshot:
        """Makes a snapshot of the disk, and with `memory` also of the processes. Tags are `name` or `name:tag`."""
        body: p.CreateSnapshot = {"tags": list(tags), "memory": memory, "comment": comment}
        answer = self._transport.json("POST", f"{self._path}/snapshots", body=body, key=new_key())
        return t.Snapshot.from_json(answer)

    def checkpoint(self, comment: str | None = None) -> t.Snapshot:
        """Makes a checkpoint: a numbered snapshot of this sandbox, for `rollback` and `diff`."""
        body: p.CreateCheckpoint = {"comment": comment}
        answer = self._transport.json("POST", f"{self._path}/checkpoints", body=body, key=new_key())
        return t.Snapshot.from_json(answer)

    def checkpoints(self) -> builtins.list[t.Snapshot]:
        """Lists the sandbox's checkpoints."""
        answer = self._transport.json("GET", f"{self._path}/checkpoints")
        return t.SnapshotList.from_json(answer).items

    def fork(
        self,
        count: int = 1,
        *,
        at: t.Snapshot | str | int | None = None,
        memory: bool = False,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        ttl: Duration | None = None,
        keep: bool = True,
    ) -> builtins.list[Sandbox]:
        """Makes copies of the sandbox as it is now, or as it was at the snapshot or checkpoint `at`.

        Raises:
            AtollError: A copy could not be made. The copies that were made are deleted.
        """
        body: p.ForkSandbox = {"count": count, "memory": memory}
        if at is not None:
            body["at"] = _snapshot(at)
        if name is not None:
            body["name"] = name
        if labels:
            body["labels"] = dict(labels)
        if env:
            body["env"] = dict(env)
        if ttl is not None:
            body["ttl_ms"] = maybe_ms(ttl)
        answer = self._transport.json("POST", f"{self._path}/fork", body=body, key=new_key())
        results = t.BatchResults.from_json(answer).results
        made = [Sandbox(self._transport, one.sandbox, keep=keep) for one in results if one.sandbox]
        failure = next((one.error for one in results if one.error), None)
        if failure is not None:
            for sandbox in made:
                sandbox.delete()
            raise errors.from_body(
                {"code": failure.code, "message": failure.message, "hint": failure.hint, "retryable": failure.retryable,
                 "request_id": failure.request_id}
            )  # fmt: skip
        return made

    def rollback(self, to: t.Snapshot | str | int | None = None) -> t.Snapshot:
        """Puts the disk back to a snapshot or checkpoint. Commands that run end.

        When `to` is absent, the disk goes back to before the last command began, as far as there is a checkpoint of
        that.
        """
        body: p.RollbackSandbox = {} if to is None else {"to": _snapshot(to)}
        answer = self._transport.json("POST", f"{self._path}/rollback", body=body, key=new_key())
        done = t.RolledBack.from_json(answer)
        self.info = done.sandbox
        return done.to

    def diff(
        self,
        start: t.Snapshot | str | int | None = None,
        end: t.Snapshot | str | int | None = None,
        *,
        text: bool = False,
    ) -> t.Comparison:
        """Lists what changed on the disk since `start`, or between `start` and `end`; with `text`, also how."""
        query: list[tuple[str, str | int | bool | None]] = [
            ("from", None if start is None else _snapshot(start)),
            ("to", None if end is None else _snapshot(end)),
            ("text", text),
        ]
        return t.Comparison.from_json(self._transport.json("GET", f"{self._path}/diff", query=query))



def _snapshot(which: t.Snapshot | str | int) -> str:
    return which.id if isinstance(which, t.Snapshot) else str(which)
