# Made by sdk/generate from openapi/atoll.json.
"""What the server answers, as the API's document says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Union

Accelerator = Literal[
    "emulated",
    "kvm",
]
"""What executes the instructions of a virtual machine. The weaker comes first."""

Action = Literal[
    "allow",
    "deny",
]
"""What a rule says."""

Adapter = Literal[
    "jsonl",
    "acp",
    "opencode",
    "http",
]
"""The protocol that an agent speaks: its process on its standard input and output, or its server over HTTP."""

BuildState = Literal[
    "waiting",
    "queued",
    "running",
    "succeeded",
    "failed",
    "cancelled",
]
"""Where a build is in its life."""

CellEventKind = Literal[
    "reset",
    "started",
    "stdout",
    "stderr",
    "result",
    "error",
    "problem",
    "end",
]
"""What an event of a cell is about."""

CellState = Literal[
    "running",
    "done",
    "error",
    "interrupted",
    "timed_out",
    "failed",
]
"""Where a cell is."""

ChangeKind = Literal[
    "added",
    "changed",
    "removed",
]
"""What happened to a file between two snapshots."""

Code = Literal[
    "invalid_json",
    "invalid_argument",
    "too_large",
    "unauthorized",
    "forbidden",
    "route_not_found",
    "method_not_allowed",
    "sandbox_not_found",
    "node_not_found",
    "exec_not_found",
    "service_not_found",
    "agent_not_found",
    "session_not_found",
    "schedule_not_found",
    "context_not_found",
    "interpreter_missing",
    "interpreter_failed",
    "template_not_found",
    "volume_not_found",
    "volume_busy",
    "pool_not_found",
    "pool_too_large",
    "snapshot_not_found",
    "image_not_found",
    "key_not_found",
    "project_not_found",
    "project_in_use",
    "access_not_found",
    "ssh_key_not_found",
    "registry_not_found",
    "secret_not_found",
    "name_taken",
    "invalid_state",
    "sandbox_failed",
    "sandbox_leased",
    "pause_unavailable",
    "budget_exhausted",
    "idempotency_mismatch",
    "limit_exceeded",
    "quota_exceeded",
    "image_platform_mismatch",
    "image_invalid",
    "image_in_use",
    "snapshot_in_use",
    "snapshot_incompatible",
    "snapshot_invalid",
    "objects_denied",
    "objects_unavailable",
    "digest_mismatch",
    "issuer_unavailable",
    "issuer_invalid",
    "registry_denied",
    "registry_unavailable",
    "registry_invalid",
    "registry_image_not_found",
    "command_not_found",
    "command_not_executable",
    "cwd_not_found",
    "user_not_found",
    "exec_ended",
    "stdin_closed",
    "not_a_terminal",
    "offset_out_of_range",
    "file_not_found",
    "file_exists",
    "not_a_directory",
    "is_a_directory",
    "directory_not_empty",
    "permission_denied",
    "disk_full",
    "path_invalid",
    "port_closed",
    "port_taken",
    "port_broken",
    "host_disk_full",
    "isolation_unavailable",
    "limit_unenforceable",
    "unenforceable",
    "guest_unavailable",
    "build_not_found",
    "build_file_invalid",
    "instruction_unsupported",
    "build_context_invalid",
    "build_file_not_found",
    "build_step_failed",
    "build_cancelled",
    "build_interrupted",
    "start_failed",
    "timeout",
    "shutting_down",
    "store_unavailable",
    "node_unavailable",
    "record_unreadable",
    "internal",
]
"""Machine-readable reason of an error. More may come."""

CopyMethod = Literal[
    "clone",
    "copy",
    "import",
]
"""How the disk of a snapshot came about."""

DeviceLoginState = Literal[
    "pending",
    "slow_down",
    "done",
]
"""How far a login is."""

EgressMode = Literal[
    "enforce",
    "observe",
]
"""What happens to what may not pass."""

Encoding = Literal[
    "utf-8",
    "base64",
]
"""How `data` of a chunk is written."""

EntryKind = Literal[
    "file",
    "directory",
    "symlink",
    "other",
]
"""What an entry of a directory is."""

EventKind = Literal[
    "message",
    "state",
    "text",
    "thought",
    "tool",
    "plan",
    "approval",
    "answer",
    "data",
    "log",
    "done",
    "error",
]
"""What an event is about."""

ExecState = Literal[
    "starting",
    "running",
    "exited",
    "lost",
]
"""Where an exec is in its life: `starting → running → exited`, or `lost`."""

ExecutionAction = Literal[
    "allow",
    "deny",
]
"""Whether a program may run."""

ExecutionMode = Literal[
    "enforce",
    "observe",
]
"""What happens to a program that may not run."""

ExitReason = Literal[
    "exited",
    "signaled",
    "out_of_memory",
    "timed_out",
    "idle_timed_out",
    "killed",
    "disconnected",
    "sandbox_paused",
    "budget_exhausted",
    "rolled_back",
    "not_started",
    "sandbox_died",
]
"""Why an exec ended."""

FileKind = Literal[
    "file",
    "directory",
    "symlink",
    "other",
]
"""What a path is."""

ImagePlace = Literal[
    "here",
    "shared",
    "elsewhere",
]
"""Where an image of a cluster with an object store is."""

Internet = Literal[
    "off",
    "on",
    "rules",
]
"""What happens where no rule speaks."""

IsolationLevel = Literal[
    "container",
    "gvisor",
    "microvm",
]
"""How strongly a sandbox is cut off. Recorded with the sandbox and never silently downgraded."""

LayerPhase = Literal[
    "download",
    "unpack",
    "done",
]
"""What happens to a layer."""

NodeState = Literal[
    "ready",
    "draining",
    "dead",
]
"""How a node is."""

OnExhausted = Literal[
    "pause",
    "delete",
]
"""What happens to a sandbox whose budget is used up, after its execs were killed."""

OnIdle = Literal[
    "delete",
    "freeze",
    "hibernate",
]
"""What happens when the idle timeout ends."""

OutputStream = Literal[
    "stdout",
    "stderr",
]
"""Which of the two outputs a piece belongs to. A terminal has only [`OutputStream::Stdout`]."""

PauseMode = Literal[
    "frozen",
    "memory",
    "filesystem",
]
"""What of a paused sandbox is kept."""

PoolOrigin = Literal[
    "server",
    "template",
    "call",
    "demand",
]
"""Who says how large a pool is."""

Programs = Literal[
    "any",
    "image",
    "listed",
]
"""Which programs may run."""

Restart = Literal[
    "always",
    "on_failure",
    "never",
]
"""When a service is started again after it has ended."""

Role = Literal[
    "read",
    "exec",
    "manage",
]
"""What a key is granted on one sandbox. Each includes the ones before it."""

SandboxState = Literal[
    "creating",
    "running",
    "pausing",
    "paused",
    "resuming",
    "deleting",
    "failed",
]
"""Where a sandbox is in its life."""

Scope = Literal[
    "read",
    "exec",
    "manage",
    "admin",
]
"""What a key may do. Each includes the ones before it."""

ServiceState = Literal[
    "waiting",
    "starting",
    "running",
    "backing_off",
    "stopped",
    "exited",
    "failed",
]
"""Where a service is."""

SessionState = Literal[
    "idle",
    "working",
    "waiting_for_approval",
    "failed",
]
"""Where a session is."""

SnapshotKind = Literal[
    "disk",
    "memory",
]
"""What is in a snapshot."""

SnapshotState = Literal[
    "creating",
    "ready",
    "deleting",
]
"""Where a snapshot is in its life."""

Stage = Literal[
    "dns",
    "connect",
    "request",
    "limit",
]
"""At which point something was refused."""

Status = Literal[
    "ok",
    "limited",
    "missing",
]
"""How a check came out."""

StepState = Literal[
    "started",
    "cached",
    "done",
    "failed",
]
"""What happens to a step."""

TemplateMemoryState = Literal[
    "saving",
    "saved",
    "failed",
    "superseded",
]
"""Where the memory of a template is."""

UsageGroup = Literal[
    "total",
    "sandbox",
    "key",
    "project",
    "hour",
]
"""What one line of usage stands for."""

Visibility = Literal[
    "shared",
    "private",
]
"""Whether keys without a grant see a sandbox."""

VolumeState = Literal[
    "creating",
    "ready",
    "deleting",
]
"""Where a volume is in its life."""

WatchChange = Literal[
    "created",
    "written",
    "removed",
    "moved",
    "attributes",
    "overflow",
]
"""What happened to a watched path."""

CommandText = str | list[str]

Origin = dict[str, Any] | dict[str, Any] | dict[str, Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """An access, without its token."""

    id: str
    """Its id."""
    sandbox: str
    """Id of the sandbox; the access ends with it."""
    port: int | None
    """The TCP port, if it is to one."""
    all_ports: bool
    """Whether it is to every TCP port."""
    file: AccessFile | None
    """The file, if it is to one."""
    public: bool
    """Whether it is for everybody."""
    name: str | None
    """What it is for."""
    url: str
    """Where it is used."""
    created_at_ms: int
    """When it was made."""
    created_by: str | None
    """Id of the key that made it."""
    expires_at_ms: int | None
    """When it ends."""

    @classmethod
    def from_json(cls, o: Any) -> Access:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["sandbox"],
            o.get("port"),
            o["all_ports"],
            AccessFile.from_json(v) if (v := o.get("file")) is not None else None,
            o["public"],
            o.get("name"),
            o["url"],
            o["created_at_ms"],
            o.get("created_by"),
            o.get("expires_at_ms"),
        )


@dataclass(frozen=True, slots=True)
class AccessCreated:
    """A new access. Its token is shown this once."""

    access: Access
    """The access."""
    token: str | None
    """What to send as `X-Atoll-Token`; absent when it is public."""
    link: str
    """The address with the token in it, to open in a browser; without one when it is public."""

    @classmethod
    def from_json(cls, o: Any) -> AccessCreated:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Access.from_json(o["access"]),
            o.get("token"),
            o["link"],
        )


@dataclass(frozen=True, slots=True)
class AccessFile:
    """A file that an access is to."""

    path: str
    """Absolute path in the sandbox."""
    media_type: str | None
    """Media type to answer with, instead of `application/octet-stream`."""
    inline: bool
    """Let a browser show it rather than save it. It runs nothing either way."""

    @classmethod
    def from_json(cls, o: Any) -> AccessFile:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["path"],
            o.get("media_type"),
            o.get("inline", False),
        )


@dataclass(frozen=True, slots=True)
class AccessList:
    """The accesses of a sandbox."""

    items: list[Access]
    """The oldest first."""

    @classmethod
    def from_json(cls, o: Any) -> AccessList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Access.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    sandbox: str
    """The sandbox it lives in."""
    own_sandbox: bool
    """That was made for it, and is deleted with it."""
    fork_of: str | None
    """The name of the agent that it was forked from."""
    command: CommandText | None
    """What runs: a line for the shell, or program and arguments. Nothing of one that is a service."""
    service: str | None
    """The service of its sandbox that is its server."""
    port: int | None
    """Where that listens on the sandbox's loopback."""
    adapter: Adapter
    """What it speaks."""
    profile: str | None
    """The profile of its sandbox that its processes begin in, where one was asked for."""
    layer: str | None
    """The agent layer that its program is in."""
    version: str | None
    """The version of that which its sandbox has."""
    usage: ModelUsage | None
    """What it asked of models, with all of its sessions."""
    budget: ModelBudget | None
    """What all of its sessions together may ask of models."""
    session_budget: ModelBudget | None
    """What each of its sessions may ask of models."""
    created_at_ms: int
    """When it was asked for."""

    @classmethod
    def from_json(cls, o: Any) -> Agent:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["sandbox"],
            o["own_sandbox"],
            o.get("fork_of"),
            o.get("command"),
            o.get("service"),
            o.get("port"),
            o["adapter"],
            o.get("profile"),
            o.get("layer"),
            o.get("version"),
            ModelUsage.from_json(v) if (v := o.get("usage")) is not None else None,
            ModelBudget.from_json(v) if (v := o.get("budget")) is not None else None,
            ModelBudget.from_json(v) if (v := o.get("session_budget")) is not None else None,
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """Something that was said or happened in a session."""

    number: int
    """Counts from 1 in its session."""
    kind: EventKind
    """What it is about."""
    data: dict[str, Any]
    """What it says: an object whose fields depend on the kind."""
    at_ms: int
    """When that was."""

    @classmethod
    def from_json(cls, o: Any) -> AgentEvent:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["number"],
            o["kind"],
            o["data"],
            o["at_ms"],
        )


@dataclass(frozen=True, slots=True)
class AgentEventPage:
    """Events of a session after a number."""

    items: list[AgentEvent]
    """The events, in order."""
    gap: bool
    """Events before the first of these are not kept any more."""
    next_after: int
    """Ask after this number next."""
    state: SessionState
    """Where the session is."""

    @classmethod
    def from_json(cls, o: Any) -> AgentEventPage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [AgentEvent.from_json(one) for one in o["items"]],
            o.get("gap", False),
            o["next_after"],
            o["state"],
        )


@dataclass(frozen=True, slots=True)
class AgentList:
    """Agents, by name."""

    items: list[Agent]
    """All that the key may know of."""

    @classmethod
    def from_json(cls, o: Any) -> AgentList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Agent.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class AgentSchedule:
    """A schedule."""

    id: str
    """Its id."""
    every_ms: int | None
    """How often, milliseconds."""
    cron: str | None
    """When, by a clock."""
    time_zone: str | None
    """The clock's time zone."""
    thread: str
    """The thread that gets the messages."""
    text: str
    """What is said."""
    next_at_ms: int
    """When the next message is due."""
    last: ScheduleRun | None
    """The last time that one was."""
    created_at_ms: int
    """When it was asked for."""

    @classmethod
    def from_json(cls, o: Any) -> AgentSchedule:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o.get("every_ms"),
            o.get("cron"),
            o.get("time_zone"),
            o["thread"],
            o["text"],
            o["next_at_ms"],
            ScheduleRun.from_json(v) if (v := o.get("last")) is not None else None,
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class AgentScheduleList:
    """The schedules of an agent, the oldest first."""

    items: list[AgentSchedule]
    """All of them."""

    @classmethod
    def from_json(cls, o: Any) -> AgentScheduleList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [AgentSchedule.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class AgentSession:
    """A session."""

    id: str
    """Its id."""
    thread: str | None
    """The name that it was begun with."""
    state: SessionState
    """Where it is."""
    message: int | None
    """Number of the message that is worked on."""
    last_event: int
    """Number of its last event."""
    usage: ModelUsage | None
    """What it asked of models."""
    created_at_ms: int
    """When it was asked for."""

    @classmethod
    def from_json(cls, o: Any) -> AgentSession:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o.get("thread"),
            o["state"],
            o.get("message"),
            o["last_event"],
            ModelUsage.from_json(v) if (v := o.get("usage")) is not None else None,
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class AgentSessionList:
    """The sessions of an agent, the oldest first."""

    items: list[AgentSession]
    """All of them."""

    @classmethod
    def from_json(cls, o: Any) -> AgentSessionList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [AgentSession.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class AttachServerMessageAttached:
    """First: what you are attached to, and where the output that follows begins."""

    exec: Exec
    """The exec."""
    offset: int
    """Offset of the first byte that follows."""
    type: Literal["attached"]

    @classmethod
    def from_json(cls, o: Any) -> AttachServerMessageAttached:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Exec.from_json(o["exec"]),
            o["offset"],
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class AttachServerMessageGap:
    """Bytes `from..to` were dropped because the log's limit was reached."""

    from_: int
    """First dropped byte."""
    to: int
    """One past the last dropped byte."""
    type: Literal["gap"]

    @classmethod
    def from_json(cls, o: Any) -> AttachServerMessageGap:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["from"],
            o["to"],
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class AttachServerMessageExit:
    """Last: all output was sent and this is how it ended. The server closes the socket."""

    state: ExecState
    """Where it ended up: `exited` or `lost`."""
    exit: Exit
    """How it ended."""
    offset: int
    """One past the last byte of output."""
    type: Literal["exit"]

    @classmethod
    def from_json(cls, o: Any) -> AttachServerMessageExit:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["state"],
            Exit.from_json(o["exit"]),
            o["offset"],
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class AttachServerMessageError:
    """Something a client message asked for failed, or the stream cannot go on."""

    error: ErrorBody
    """Why."""
    type: Literal["error"]

    @classmethod
    def from_json(cls, o: Any) -> AttachServerMessageError:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            ErrorBody.from_json(o["error"]),
            o["type"],
        )


AttachServerMessage = Union[AttachServerMessageAttached, AttachServerMessageGap, AttachServerMessageExit, AttachServerMessageError]
"""Text message of the server on the attach WebSocket. Output itself travels in binary messages, see
[`OutputFrame`].
"""


def attach_server_message_from_json(o: Any) -> AttachServerMessage:
    """Reads what the server sent."""
    if o["type"] == "attached":
        return AttachServerMessageAttached.from_json(o)
    if o["type"] == "gap":
        return AttachServerMessageGap.from_json(o)
    if o["type"] == "exit":
        return AttachServerMessageExit.from_json(o)
    return AttachServerMessageError.from_json(o)


@dataclass(frozen=True, slots=True)
class AutoCheckpoints:
    """Checkpoints that a sandbox takes by itself: when it was made, and after every exec."""

    keep: int
    """How many of them are kept: 1 to 1000. Those that were taken by request do not count."""

    @classmethod
    def from_json(cls, o: Any) -> AutoCheckpoints:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["keep"],
        )


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """User name and password."""

    username: str
    """User name."""
    password: str
    """Password."""

    @classmethod
    def from_json(cls, o: Any) -> BasicAuth:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["username"],
            o["password"],
        )


@dataclass(frozen=True, slots=True)
class BatchResult:
    """One outcome of a batch: exactly one of the two is there."""

    sandbox: Sandbox | None
    """The sandbox that was made."""
    error: ErrorBody | None
    """Why it was not."""

    @classmethod
    def from_json(cls, o: Any) -> BatchResult:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Sandbox.from_json(v) if (v := o.get("sandbox")) is not None else None,
            ErrorBody.from_json(v) if (v := o.get("error")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class BatchResults:
    """Outcomes of a batch, in the order of the request."""

    results: list[BatchResult]
    """One for each request."""

    @classmethod
    def from_json(cls, o: Any) -> BatchResults:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [BatchResult.from_json(one) for one in o["results"]],
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """Hard limits on what a sandbox may use over its whole life. Absent ones do not limit."""

    cpu_ms: int | None
    """CPU time of everything in it, milliseconds."""
    running_ms: int | None
    """Wall time in which it runs, milliseconds. Paused time does not count."""
    egress_bytes: int | None
    """Bytes that leave it."""
    on_exhausted: OnExhausted | None
    """What happens then."""

    @classmethod
    def from_json(cls, o: Any) -> Budget:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("cpu_ms"),
            o.get("running_ms"),
            o.get("egress_bytes"),
            o.get("on_exhausted"),
        )


@dataclass(frozen=True, slots=True)
class Build:
    """A build."""

    id: str
    """Its id."""
    name: str
    """Name of the template of which it makes a version."""
    state: BuildState
    """Where it is in its life."""
    needs_context: bool
    """Whether it copies files of a context: send it with `PUT …/context`."""
    template: str | None
    """What it made, as `name:version`."""
    failure: BuildFailure | None
    """Why it made nothing."""
    created_at_ms: int
    """When it was asked for."""
    started_at_ms: int | None
    """When its work began."""
    ended_at_ms: int | None
    """When it ended."""
    created_by: str | None
    """Id of the key that asked for it."""

    @classmethod
    def from_json(cls, o: Any) -> Build:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["state"],
            o["needs_context"],
            o.get("template"),
            BuildFailure.from_json(v) if (v := o.get("failure")) is not None else None,
            o["created_at_ms"],
            o.get("started_at_ms"),
            o.get("ended_at_ms"),
            o.get("created_by"),
        )


@dataclass(frozen=True, slots=True)
class BuildCacheEntry:
    """One entry of the cache."""

    key: str
    """Its key."""
    step: str
    """The step, as it is shown."""
    size_bytes: int
    """What it takes on the host, bytes. Entries share it with each other: all together count more than there is."""
    took_ms: int
    """How long the step took."""
    created_at_ms: int
    """When it was made."""
    used_at_ms: int
    """When a build last used it."""
    in_template: bool
    """Whether a template stands on it."""

    @classmethod
    def from_json(cls, o: Any) -> BuildCacheEntry:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["key"],
            o["step"],
            o["size_bytes"],
            o["took_ms"],
            o["created_at_ms"],
            o["used_at_ms"],
            o["in_template"],
        )


@dataclass(frozen=True, slots=True)
class BuildCacheList:
    """The cache, the longest unused first."""

    items: list[BuildCacheEntry]
    """The entries."""

    @classmethod
    def from_json(cls, o: Any) -> BuildCacheList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [BuildCacheEntry.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class BuildCachePruned:
    """What pruning did."""

    removed: int
    """Entries that are gone."""
    freed_bytes: int
    """What they took on the host, bytes. They share it: the disk may gain less."""

    @classmethod
    def from_json(cls, o: Any) -> BuildCachePruned:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["removed"],
            o["freed_bytes"],
        )


@dataclass(frozen=True, slots=True)
class BuildEventNote:
    """Something worth knowing."""

    at_ms: int
    """When."""
    text: str
    """What."""
    type: Literal["note"]

    @classmethod
    def from_json(cls, o: Any) -> BuildEventNote:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["at_ms"],
            o["text"],
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class BuildEventStep:
    """A step moved on."""

    at_ms: int
    """When."""
    step: int
    """Which, from 1."""
    total: int
    """Of how many."""
    stage: str | None
    """The stage that it belongs to, if it has a name."""
    text: str
    """The instruction."""
    state: StepState
    """What happened."""
    took_ms: int | None
    """How long it took, once it is done."""
    type: Literal["step"]

    @classmethod
    def from_json(cls, o: Any) -> BuildEventStep:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["at_ms"],
            o["step"],
            o["total"],
            o.get("stage"),
            o["text"],
            o["state"],
            o.get("took_ms"),
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class BuildEventOutput:
    """A command of a step wrote something."""

    at_ms: int
    """When."""
    step: int
    """Which step."""
    stream: OutputStream
    """Whereto."""
    text: str
    """What; bytes that are no UTF-8 are `U+FFFD`."""
    type: Literal["output"]

    @classmethod
    def from_json(cls, o: Any) -> BuildEventOutput:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["at_ms"],
            o["step"],
            o["stream"],
            o["text"],
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class BuildEventEnd:
    """The build ended: the last entry."""

    at_ms: int
    """When."""
    state: BuildState
    """How."""
    template: str | None
    """What it made, as `name:version`."""
    failure: BuildFailure | None
    """Why it made nothing."""
    type: Literal["end"]

    @classmethod
    def from_json(cls, o: Any) -> BuildEventEnd:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["at_ms"],
            o["state"],
            o.get("template"),
            BuildFailure.from_json(v) if (v := o.get("failure")) is not None else None,
            o["type"],
        )


BuildEvent = Union[BuildEventNote, BuildEventStep, BuildEventOutput, BuildEventEnd]
"""One entry of a build's log."""


def build_event_from_json(o: Any) -> BuildEvent:
    """Reads what the server sent."""
    if o["type"] == "note":
        return BuildEventNote.from_json(o)
    if o["type"] == "step":
        return BuildEventStep.from_json(o)
    if o["type"] == "output":
        return BuildEventOutput.from_json(o)
    return BuildEventEnd.from_json(o)


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """Why a build ended without a template version. Kept by the store."""

    code: Code
    """Why, for machines."""
    message: str
    """What is wrong and where."""
    hint: str | None
    """What to do about it."""
    step: str | None
    """The step that failed, as it is shown, if it was one."""
    exit_code: int | None
    """Exit code of its command."""
    output: str | None
    """The last lines that its command wrote."""

    @classmethod
    def from_json(cls, o: Any) -> BuildFailure:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["code"],
            o["message"],
            o.get("hint"),
            o.get("step"),
            o.get("exit_code"),
            o.get("output"),
        )


@dataclass(frozen=True, slots=True)
class BuildList:
    """A page of builds, newest first."""

    items: list[Build]
    """The page."""
    next_cursor: str | None
    """Pass it as `cursor` for the next page."""

    @classmethod
    def from_json(cls, o: Any) -> BuildList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Build.from_json(one) for one in o["items"]],
            o.get("next_cursor"),
        )


@dataclass(frozen=True, slots=True)
class BuildLogPage:
    """A piece of a build's log."""

    entries: list[BuildEvent]
    """Entries, in order."""
    next_offset: int
    """Pass it as `offset` to go on."""
    state: BuildState
    """Where the build is."""
    over: bool
    """Whether there is nothing more, and never will be."""

    @classmethod
    def from_json(cls, o: Any) -> BuildLogPage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [build_event_from_json(one) for one in o["entries"]],
            o["next_offset"],
            o["state"],
            o["over"],
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: code that a context runs, or has run."""

    id: str
    """Its id, which is the one of the exec that it is."""
    context: str
    """The context that runs it."""
    state: CellState
    """Where it is."""
    reason: str | None
    """What ended a cell that `failed`: such as `interpreter_missing`, `killed`, `out_of_memory`, `sandbox_paused`.
    """
    execution_count: int | None
    """How many cells its kernel has run, with this one; once it has ended."""
    code_digest: str
    """BLAKE3 of the code."""
    code_bytes: int
    """Length of the code."""
    created_at_ms: int
    """When it was asked for."""
    ended_at_ms: int | None
    """When it ended."""
    started_by: str | None
    """Id of the key that asked for it."""

    @classmethod
    def from_json(cls, o: Any) -> Cell:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["context"],
            o["state"],
            o.get("reason"),
            o.get("execution_count"),
            o["code_digest"],
            o["code_bytes"],
            o["created_at_ms"],
            o.get("ended_at_ms"),
            o.get("started_by"),
        )


@dataclass(frozen=True, slots=True)
class CellEvent:
    """Something that a cell said, or that happened to it."""

    number: int
    """Rises from event to event, not by one."""
    kind: CellEventKind
    """What it is about."""
    data: dict[str, Any]
    """What it says: an object whose fields depend on the kind."""

    @classmethod
    def from_json(cls, o: Any) -> CellEvent:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["number"],
            o["kind"],
            o["data"],
        )


@dataclass(frozen=True, slots=True)
class CellEventPage:
    """Events of a cell after a number."""

    items: list[CellEvent]
    """The events, in order."""
    next_after: int
    """Ask after this number next."""
    ended: bool
    """Nothing more will come."""

    @classmethod
    def from_json(cls, o: Any) -> CellEventPage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [CellEvent.from_json(one) for one in o["items"]],
            o["next_after"],
            o["ended"],
        )


@dataclass(frozen=True, slots=True)
class CellList:
    """A page of cells, newest first."""

    items: list[Cell]
    """The page; it may be empty and not the last."""
    next_cursor: str | None
    """Pass it as `cursor` for the next page."""

    @classmethod
    def from_json(cls, o: Any) -> CellList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Cell.from_json(one) for one in o["items"]],
            o.get("next_cursor"),
        )


@dataclass(frozen=True, slots=True)
class CellWithEvents:
    """A cell, with its events where that was asked for and they are few."""

    cell: Cell
    """The cell."""
    events: list[CellEvent] | None
    """All events, when the cell ended within `wait_ms` and said at most 1 MiB."""

    @classmethod
    def from_json(cls, o: Any) -> CellWithEvents:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Cell.from_json(o["cell"]),
            [CellEvent.from_json(one) for one in v] if (v := o.get("events")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two snapshots."""

    path: str
    """Absolute path. What is no UTF-8 in it is replaced."""
    kind: ChangeKind
    """What happened."""
    entry: EntryKind
    """What it is now, or was."""
    from_bytes: int | None
    """Size before, bytes."""
    to_bytes: int | None
    """Size after, bytes."""
    text: str | None
    """The difference of two small texts as `diff -u` shows it, when it was asked for."""

    @classmethod
    def from_json(cls, o: Any) -> Change:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["path"],
            o["kind"],
            o["entry"],
            o.get("from_bytes"),
            o.get("to_bytes"),
            o.get("text"),
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    """Stable name: `user_namespaces`, `limit_memory`, …"""
    status: Status
    """How it came out."""
    detail: str
    """One sentence: what was tried and seen."""
    hint: str | None
    """What to do when it is not [`Status::Ok`]."""

    @classmethod
    def from_json(cls, o: Any) -> Check:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["name"],
            o["status"],
            o["detail"],
            o.get("hint"),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two snapshots."""

    changes: list[Change]
    """The differences, by path."""
    truncated: bool
    """There is more than is shown."""

    @classmethod
    def from_json(cls, o: Any) -> Comparison:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Change.from_json(one) for one in o["changes"]],
            o["truncated"],
        )


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """An open connection."""

    number: int
    """Its number in this sandbox."""
    name: str | None
    """The name it was made to, where that is certain."""
    address: str
    """The address."""
    port: int
    """The port."""
    protocol: str
    """`tls`, `http`, `tcp`; `proxy` for one to the explicit proxy that has no destination yet."""
    opened_at_ms: int
    """When it was made."""
    sent_bytes: int
    """Bytes that left the sandbox."""
    received_bytes: int
    """Bytes that came into the sandbox."""

    @classmethod
    def from_json(cls, o: Any) -> ConnectionView:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["number"],
            o.get("name"),
            o["address"],
            o["port"],
            o["protocol"],
            o["opened_at_ms"],
            o["sent_bytes"],
            o["received_bytes"],
        )


@dataclass(frozen=True, slots=True)
class Context:
    """A context: it remembers what its cells did."""

    id: str
    """Its id."""
    sandbox: str
    """The sandbox whose interpreter it is of."""
    name: str | None
    """The name that it was made with."""
    language: str
    """Its language."""
    cwd: str | None
    """Where its cells begin; the home of the interpreter's user when absent."""
    created_at_ms: int
    """When it was asked for."""

    @classmethod
    def from_json(cls, o: Any) -> Context:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["sandbox"],
            o.get("name"),
            o["language"],
            o.get("cwd"),
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class ContextList:
    """The contexts of a sandbox, the oldest first."""

    items: list[Context]
    """All of them."""

    @classmethod
    def from_json(cls, o: Any) -> ContextList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Context.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class CreateService:
    """Declares a service. Give either `argv` or `shell`."""

    name: str
    """Its name, unique in the sandbox: 1 to 63 lower-case letters, digits and hyphens."""
    argv: list[str] | None
    """Program and arguments, run as they are."""
    shell: str | None
    """A line for `/bin/sh -c`."""
    env: dict[str, str]
    """Variables on top of the sandbox's."""
    cwd: str | None
    """Working directory; the sandbox's when absent."""
    user: str | None
    """User name or id, optionally `:group`; the sandbox's when absent."""
    keep_output_bytes: int | None
    """Output of each run that is kept on the host; the oldest goes first."""
    restart: Restart | None
    """When it is started again; `always` when absent."""
    backoff_ms: int | None
    """First pause before that; half a second when absent. Doubles with each end within ten seconds."""
    backoff_max_ms: int | None
    """Longest such pause; 30 seconds, or `backoff_ms` if that is more, when absent."""
    give_up_after: int | None
    """Ends in a row, each within ten seconds, after which it is given up; 10 when absent, 0: never."""
    stop_timeout_ms: int | None
    """What it has to end by itself after `SIGTERM` before it is killed; ten seconds when absent, at most ten
    minutes.
    """
    ready: ServiceReady | None
    """When it is ready; at once when absent."""
    health: ServiceHealth | None
    """Whether it still works; not looked at when absent."""
    after: list[str]
    """Services of the same sandbox that it is started after, each time: when they are ready, or have done their
    work.
    """

    @classmethod
    def from_json(cls, o: Any) -> CreateService:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["name"],
            o.get("argv"),
            o.get("shell"),
            o.get("env", {}),
            o.get("cwd"),
            o.get("user"),
            o.get("keep_output_bytes"),
            o.get("restart"),
            o.get("backoff_ms"),
            o.get("backoff_max_ms"),
            o.get("give_up_after"),
            o.get("stop_timeout_ms"),
            ServiceReady.from_json(v) if (v := o.get("ready")) is not None else None,
            ServiceHealth.from_json(v) if (v := o.get("health")) is not None else None,
            o.get("after", []),
        )


@dataclass(frozen=True, slots=True)
class DashboardLink:
    """A link that signs a browser in to the dashboard with the key of the request that made it."""

    link: str
    """To open in a browser, once."""
    expires_at_ms: int
    """Until then."""

    @classmethod
    def from_json(cls, o: Any) -> DashboardLink:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["link"],
            o["expires_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class DenialView:
    """Something that was refused, or would have been; equal ones are counted."""

    stage: Stage
    """At which point."""
    what: str
    """What: a name, `name:port`, `address:port`, a request."""
    why: str
    """Why."""
    ask: str | None
    """What would allow it, as arguments of the command line."""
    last_at_ms: int
    """When it happened last."""
    count: int
    """How often."""
    observed: bool
    """Whether it passed all the same, because the policy's mode is to observe."""

    @classmethod
    def from_json(cls, o: Any) -> DenialView:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["stage"],
            o["what"],
            o["why"],
            o.get("ask"),
            o["last_at_ms"],
            o["count"],
            o.get("observed", False),
        )


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """A login that has begun: a person opens an address in a browser, anywhere, and types a code."""

    user_code: str
    """What to type."""
    verification_uri: str
    """Where."""
    verification_uri_complete: str | None
    """The same with the code in it, if the issuer has such a one."""
    interval_ms: int
    """How long to wait between two questions what has become of it."""
    expires_at_ms: int
    """Until then."""
    login: str
    """To ask with what has become of it. Any client that has it gets the login."""

    @classmethod
    def from_json(cls, o: Any) -> DeviceLogin:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["user_code"],
            o["verification_uri"],
            o.get("verification_uri_complete"),
            o["interval_ms"],
            o["expires_at_ms"],
            o["login"],
        )


@dataclass(frozen=True, slots=True)
class DeviceLoginPolled:
    """What has become of a login."""

    state: DeviceLoginState
    """How far it is."""
    name: str | None
    """Who logged in, once it is done."""
    expires_at_ms: int | None
    """When it ends."""
    secret: str | None
    """What to send as `Authorization: Bearer …`, this once."""

    @classmethod
    def from_json(cls, o: Any) -> DeviceLoginPolled:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["state"],
            o.get("name"),
            o.get("expires_at_ms"),
            o.get("secret"),
        )


@dataclass(frozen=True, slots=True)
class DiskIo:
    """What was read from the disks of a sandbox and written to them since it was last started: a wake begins at
    zero.
    """

    read_bytes: int
    """Bytes read, the image's included; what was in a cache inside is not read."""
    written_bytes: int
    """Bytes written."""
    reads: int
    """Reads."""
    writes: int
    """Writes."""

    @classmethod
    def from_json(cls, o: Any) -> DiskIo:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["read_bytes"],
            o["written_bytes"],
            o["reads"],
            o["writes"],
        )


@dataclass(frozen=True, slots=True)
class Doctor:
    """What this host enforces."""

    checks: list[Check]
    """One line each."""

    @classmethod
    def from_json(cls, o: Any) -> Doctor:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Check.from_json(one) for one in o["checks"]],
        )


@dataclass(frozen=True, slots=True)
class Durability:
    """How a sandbox outlives its node: what it has on its disk is copied to the object store while it runs, and
    another node goes on from the last copy.
    """

    every_ms: int | None
    """This long after the last copy was begun, milliseconds: one second or more."""
    after_exec: bool
    """After each exec."""

    @classmethod
    def from_json(cls, o: Any) -> Durability:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("every_ms"),
            o.get("after_exec", False),
        )


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """How much of the network one sandbox may use."""

    connections: int | None
    """Open connections to the outside at once; 512 when absent."""
    bytes_per_s: int | None
    """Bytes per second, in each direction; unlimited when absent."""

    @classmethod
    def from_json(cls, o: Any) -> EgressLimits:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("connections"),
            o.get("bytes_per_s"),
        )


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What a sandbox may reach. The default is nothing."""

    internet: Internet | None
    """What happens where no rule speaks."""
    mode: EgressMode | None
    """Whether what may not pass is refused, or only told of in the journal."""
    rules: list[Rule]
    """Looked at in order; the first that matches decides."""
    inject: list[InjectRule]
    """What is put into requests on their way out: credentials that the sandbox itself does not have."""
    limits: EgressLimits | None
    """How much."""

    @classmethod
    def from_json(cls, o: Any) -> EgressPolicy:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("internet"),
            o.get("mode"),
            [Rule.from_json(one) for one in o.get("rules", [])],
            [InjectRule.from_json(one) for one in o.get("inject", [])],
            EgressLimits.from_json(v) if (v := o.get("limits")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Body of every error."""

    code: Code
    """Why, for machines. Stable."""
    message: str
    """What is wrong and where, for people."""
    hint: str | None
    """What to do about it."""
    retryable: bool
    """Whether the same request may succeed later."""
    request_id: str | None
    """The request's id, also in the server's log and in the `x-request-id` header."""

    @classmethod
    def from_json(cls, o: Any) -> ErrorBody:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["code"],
            o["message"],
            o.get("hint"),
            o["retryable"],
            o.get("request_id"),
        )


@dataclass(frozen=True, slots=True)
class Exec:
    """An exec."""

    id: str
    """Its id."""
    sandbox: str
    """The sandbox it runs in."""
    argv: list[str]
    """Program and arguments."""
    state: ExecState
    """Where it is in its life."""
    pid: int | None
    """Process id inside the sandbox."""
    user: str
    """User it runs as."""
    profile: str | None
    """The profile that it runs in, where it is in one."""
    cwd: str | None
    """Working directory."""
    tty: bool
    """Whether it runs on a terminal."""
    exit: Exit | None
    """How it ended."""
    output_bytes: int
    """Output bytes so far, both streams together."""
    cpu_us: int
    """CPU time of its processes as reported from inside the sandbox, once it has ended, microseconds."""
    output_first: int
    """First output byte that is still kept."""
    created_at_ms: int
    """When it was asked for."""
    ended_at_ms: int | None
    """When it ended."""
    started_by: str | None
    """Id of the key that started it."""

    @classmethod
    def from_json(cls, o: Any) -> Exec:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["sandbox"],
            o["argv"],
            o["state"],
            o.get("pid"),
            o["user"],
            o.get("profile"),
            o.get("cwd"),
            o["tty"],
            Exit.from_json(v) if (v := o.get("exit")) is not None else None,
            o["output_bytes"],
            o.get("cpu_us", 0),
            o["output_first"],
            o["created_at_ms"],
            o.get("ended_at_ms"),
            o.get("started_by"),
        )


@dataclass(frozen=True, slots=True)
class ExecList:
    """A page of execs, newest first."""

    items: list[Exec]
    """The page."""
    next_cursor: str | None
    """Pass it as `cursor` for the next page."""

    @classmethod
    def from_json(cls, o: Any) -> ExecList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Exec.from_json(one) for one in o["items"]],
            o.get("next_cursor"),
        )


@dataclass(frozen=True, slots=True)
class ExecWithOutput:
    """An exec, with its output where that was asked for and is small."""

    exec: Exec
    """The exec."""
    output: list[OutputChunk] | None
    """All output, when the exec ended within `wait_ms` and wrote at most 1 MiB."""

    @classmethod
    def from_json(cls, o: Any) -> ExecWithOutput:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Exec.from_json(o["exec"]),
            [OutputChunk.from_json(one) for one in v] if (v := o.get("output")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """Which programs may run. It is about programs that the kernel is asked to execute, by whomever and with
    whatever rights inside. What a program that may run does with its input is its own matter: an interpreter
    that may run runs any script.
    """

    programs: Programs | None
    """Which programs may run that no rule names."""
    mode: ExecutionMode | None
    """Whether others are refused, or only told of in the journal."""
    rules: list[ExecutionRule]
    """Exceptions: the first rule that names a program decides."""

    @classmethod
    def from_json(cls, o: Any) -> ExecutionPolicy:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("programs"),
            o.get("mode"),
            [ExecutionRule.from_json(one) for one in o.get("rules", [])],
        )


@dataclass(frozen=True, slots=True)
class ExecutionRule:
    """What holds for some programs of the image: those at a path, those with a digest, or the one that has both;
    those of a layer, also at a path; those of a package.
    """

    action: ExecutionAction
    """Whether they may run."""
    path: str | None
    """Where the image has them: `/usr/bin/git`, also through links of the image; `/opt/tools/*` is every program in
    a directory, `/opt/tools/**` every one below it. Looked up when the sandbox is made, woken or changed, in the
    image as its template left it: what processes inside did to names since changes nothing.
    """
    digest: str | None
    """Their content: `sha256:` or `blake3:` and 64 hexadecimal digits. Without a path it is every program of the
    image with this content, which takes reading all of them once. With a path the image must have exactly this
    there.
    """
    layer: str | None
    """The layer that brought them: `sha256:` and 64 hexadecimal digits, the digest of its content as the image's
    configuration has it, which is also what the journal calls it.
    """
    package: str | None
    """The Debian package that brought them: `git`, or `git:amd64`, as the image's own list of files has it
    (`/var/lib/dpkg/info/git.list`).
    """
    message: str | None
    """What the journal says of a refusal by this rule."""

    @classmethod
    def from_json(cls, o: Any) -> ExecutionRule:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["action"],
            o.get("path"),
            o.get("digest"),
            o.get("layer"),
            o.get("package"),
            o.get("message"),
        )


@dataclass(frozen=True, slots=True)
class Exit:
    """How an exec ended."""

    reason: ExitReason
    """Why."""
    code: int | None
    """Exit code as a shell would see it: the process's own, 128 + signal, 126 or 127 when it could not be started.
    `None` when the sandbox died or was paused under it.
    """
    signal: int | None
    """The signal that ended it, if one did."""
    error: Code | None
    """Why it could not be started: [`Code::CommandNotFound`] or [`Code::CommandNotExecutable`]."""

    @classmethod
    def from_json(cls, o: Any) -> Exit:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["reason"],
            o.get("code"),
            o.get("signal"),
            o.get("error"),
        )


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file, directory or link."""

    path: str
    """Full path."""
    kind: FileKind
    """What it is."""
    size_bytes: int
    """Size in bytes."""
    mode: str
    """Permissions in octal, such as `0644`."""
    uid: int
    """Owner id."""
    gid: int
    """Group id."""
    user: str | None
    """Owner name, where the sandbox has one."""
    group: str | None
    """Group name, where the sandbox has one."""
    modified_at_ms: int
    """Last modification."""
    target: str | None
    """Where a symbolic link points."""

    @classmethod
    def from_json(cls, o: Any) -> FileEntry:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["path"],
            o["kind"],
            o["size_bytes"],
            o["mode"],
            o["uid"],
            o["gid"],
            o.get("user"),
            o.get("group"),
            o["modified_at_ms"],
            o.get("target"),
        )


@dataclass(frozen=True, slots=True)
class FileList:
    """Entries of a directory."""

    items: list[FileEntry]
    """The entries."""
    truncated: bool
    """Whether there are more than could be listed."""

    @classmethod
    def from_json(cls, o: Any) -> FileList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [FileEntry.from_json(one) for one in o["items"]],
            o["truncated"],
        )


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A file was written."""

    bytes: int
    """Bytes written."""

    @classmethod
    def from_json(cls, o: Any) -> FileWritten:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["bytes"],
        )


@dataclass(frozen=True, slots=True)
class ForkedAgent:
    """One fork, or why there is none."""

    agent: Agent | None
    """The fork."""
    error: ErrorBody | None
    """Why there is none."""

    @classmethod
    def from_json(cls, o: Any) -> ForkedAgent:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Agent.from_json(v) if (v := o.get("agent")) is not None else None,
            ErrorBody.from_json(v) if (v := o.get("error")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ForkedAgents:
    """What became of each fork, in order."""

    results: list[ForkedAgent]
    """All of them."""

    @classmethod
    def from_json(cls, o: Any) -> ForkedAgents:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [ForkedAgent.from_json(one) for one in o["results"]],
        )


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file, or a line in it."""

    file: FileEntry
    """The file."""
    line: int | None
    """Number of the line, from 1."""
    text: str | None
    """The line; of one that is longer than 4 KiB, the beginning."""

    @classmethod
    def from_json(cls, o: Any) -> FoundFile:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            FileEntry.from_json(o["file"]),
            o.get("line"),
            o.get("text"),
        )


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """What was found."""

    items: list[FoundFile]
    """In the order of their paths, a directory's own files before those below it."""
    truncated: bool
    """There was more."""

    @classmethod
    def from_json(cls, o: Any) -> FoundFiles:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [FoundFile.from_json(one) for one in o["items"]],
            o["truncated"],
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """A role that a key has on a sandbox."""

    key: str
    """Id of the key."""
    role: Role
    """The most it may do with the sandbox, if its scope goes as far."""

    @classmethod
    def from_json(cls, o: Any) -> Grant:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["key"],
            o["role"],
        )


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server works."""

    status: str
    """`ok`; `draining` while it shuts down; `store_unavailable` while nothing can be stored; `host_disk_full` while
    every sandbox stands still because of that, and only what removes something is done.
    """

    @classmethod
    def from_json(cls, o: Any) -> Health:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["status"],
        )


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is ready to be used."""

    digest: str
    """Digest of its manifest."""
    names: list[str]
    """Names it goes by."""
    size_bytes: int
    """Unpacked size, bytes. Layers are shared between images."""
    layers: int
    """Number of layers."""
    architecture: str
    """Processor architecture."""
    env: dict[str, str]
    """Default environment."""
    user: str | None
    """Default user."""
    workdir: str | None
    """Default working directory."""
    command: list[str]
    """Its entry point and command, for reference: a sandbox runs execs instead."""
    created: str | None
    """When it was made, as it says (RFC 3339)."""
    place: ImagePlace | None
    """Where it is; absent where servers do not share images."""

    @classmethod
    def from_json(cls, o: Any) -> Image:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["digest"],
            o["names"],
            o["size_bytes"],
            o["layers"],
            o["architecture"],
            o["env"],
            o.get("user"),
            o.get("workdir"),
            o["command"],
            o.get("created"),
            o.get("place"),
        )


@dataclass(frozen=True, slots=True)
class ImageList:
    """All images."""

    items: list[Image]
    """The images."""

    @classmethod
    def from_json(cls, o: Any) -> ImageList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Image.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class ImageProgressLayer:
    """A layer moved on."""

    digest: str
    """Its digest."""
    phase: LayerPhase
    """What happens to it."""
    done_bytes: int
    """Bytes done."""
    total_bytes: int
    """Bytes in all; 0 when not known."""
    type: Literal["layer"]

    @classmethod
    def from_json(cls, o: Any) -> ImageProgressLayer:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["digest"],
            o["phase"],
            o["done_bytes"],
            o["total_bytes"],
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class ImageProgressDone:
    """The image is ready."""

    image: Image
    """The image."""
    type: Literal["done"]

    @classmethod
    def from_json(cls, o: Any) -> ImageProgressDone:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Image.from_json(o["image"]),
            o["type"],
        )


@dataclass(frozen=True, slots=True)
class ImageProgressError:
    """It failed."""

    error: ErrorBody
    """Why."""
    type: Literal["error"]

    @classmethod
    def from_json(cls, o: Any) -> ImageProgressError:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            ErrorBody.from_json(o["error"]),
            o["type"],
        )


ImageProgress = Union[ImageProgressLayer, ImageProgressDone, ImageProgressError]
"""One line of the progress stream (newline-delimited JSON). The last is `done` or `error`."""


def image_progress_from_json(o: Any) -> ImageProgress:
    """Reads what the server sent."""
    if o["type"] == "layer":
        return ImageProgressLayer.from_json(o)
    if o["type"] == "done":
        return ImageProgressDone.from_json(o)
    return ImageProgressError.from_json(o)


@dataclass(frozen=True, slots=True)
class InjectRule:
    """One rule."""

    name: str
    """Its name, unique among the sandbox's rules; shown in refusals and in the record of uses."""
    hosts: list[str]
    """For these hosts: names, or `*.example.com` for every name below."""
    ports: list[int]
    """On these ports; 443 (and 80 for what may travel in the clear) when empty."""
    methods: list[str]
    """With these methods; any when empty."""
    paths: list[str]
    """With paths that are one of these or lie below it; any when empty."""
    from_: Origin | None
    """On connections that this program made; any when absent. Needs a sandbox whose programs the host's kernel sees
    (containers).
    """
    headers: dict[str, str]
    """Headers to set, in place of what the request has. `{secret:NAME}` in a value stands for a secret."""
    add_headers: dict[str, str]
    """Headers to add beside those that are there."""
    remove_headers: list[str]
    """Headers to take out."""
    query: dict[str, str]
    """Query parameters to set."""
    bearer: str | None
    """Sets `Authorization: Bearer …`, unless a placeholder of this rule was replaced in the request's head: then
    the client has put the credential where it belongs.
    """
    basic: BasicAuth | None
    """Sets `Authorization: Basic …`, under the same condition."""
    placeholders: list[Placeholder]
    """Placeholders that stand for secrets inside the sandbox."""
    env: dict[str, str]
    """Variables for every command in the sandbox, as they are. The sandbox's own variables win."""
    mask_responses: bool
    """Replace this rule's secrets by asterisks wherever an answer shows them. In the headers of answers to requests
    that carried them that is always so.
    """
    allow_plaintext: bool
    """Secrets may also be sent over plain HTTP, where everybody on the way can read them."""

    @classmethod
    def from_json(cls, o: Any) -> InjectRule:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["name"],
            o["hosts"],
            o.get("ports", []),
            o.get("methods", []),
            o.get("paths", []),
            o.get("from"),
            o.get("headers", {}),
            o.get("add_headers", {}),
            o.get("remove_headers", []),
            o.get("query", {}),
            o.get("bearer"),
            BasicAuth.from_json(v) if (v := o.get("basic")) is not None else None,
            [Placeholder.from_json(one) for one in o.get("placeholders", [])],
            o.get("env", {}),
            o.get("mask_responses", False),
            o.get("allow_plaintext", False),
        )


@dataclass(frozen=True, slots=True)
class Key:
    """A key, without its secret."""

    id: str
    """Its id."""
    name: str
    """What it is for."""
    scope: Scope
    """The highest thing it may do."""
    created_at_ms: int
    """When it was made."""
    expires_at_ms: int | None
    """When it stops working."""
    last_used_at_ms: int | None
    """When it was last used, to the minute."""
    project: str | None
    """Id of the project that it belongs to."""
    person: KeyPerson | None
    """Who it is, if it is not a key that was created but a person who logged in. The scope is what rules give them
    now, and `expires_at_ms` when their last login ends.
    """

    @classmethod
    def from_json(cls, o: Any) -> Key:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["scope"],
            o["created_at_ms"],
            o.get("expires_at_ms"),
            o.get("last_used_at_ms"),
            o.get("project"),
            KeyPerson.from_json(v) if (v := o.get("person")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class KeyCreated:
    """A new key. The secret is shown this once."""

    key: Key
    """The key."""
    secret: str
    """What to send as `Authorization: Bearer …`."""

    @classmethod
    def from_json(cls, o: Any) -> KeyCreated:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Key.from_json(o["key"]),
            o["secret"],
        )


@dataclass(frozen=True, slots=True)
class KeyList:
    """All keys."""

    items: list[Key]
    """The keys."""

    @classmethod
    def from_json(cls, o: Any) -> KeyList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Key.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class KeyPerson:
    """A person, as the issuer of identities named them when they last logged in."""

    issuer: str
    """The issuer."""
    subject: str
    """Its name for them, which is never given to another person."""
    email: str | None
    """Their address for mail, if the issuer has verified it."""
    allowed: bool
    """Whether a rule names them now: without one they may do nothing."""

    @classmethod
    def from_json(cls, o: Any) -> KeyPerson:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["issuer"],
            o["subject"],
            o.get("email"),
            o["allowed"],
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that a sandbox has."""

    image: str
    """The image as it was named."""
    digest: str
    """The image, exactly."""

    @classmethod
    def from_json(cls, o: Any) -> Layer:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["image"],
            o["digest"],
        )


@dataclass(frozen=True, slots=True)
class Leak:
    """Something on the host that belongs to no known sandbox."""

    sandbox: str | None
    """The sandbox id it carries."""
    snapshot: str | None
    """The snapshot id it carries."""
    kind: str
    """`process`, `cgroup`, `directory`, `artifact`, …"""
    name: str
    """Its name on the host."""
    removed: bool
    """Whether it was removed."""

    @classmethod
    def from_json(cls, o: Any) -> Leak:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("sandbox"),
            o.get("snapshot"),
            o["kind"],
            o["name"],
            o["removed"],
        )


@dataclass(frozen=True, slots=True)
class LeakList:
    """Everything that belongs to no known sandbox or snapshot."""

    items: list[Leak]
    """The leaks; empty is good."""

    @classmethod
    def from_json(cls, o: Any) -> LeakList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Leak.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """Exclusive use of a sandbox."""

    key: str
    """Id of the key that took it."""
    holder: str
    """The name it was taken under."""
    taken_at_ms: int
    """When it was taken."""
    expires_at_ms: int
    """When it ends by itself."""

    @classmethod
    def from_json(cls, o: Any) -> Lease:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["key"],
            o["holder"],
            o["taken_at_ms"],
            o["expires_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Who has a sandbox for itself."""

    lease: Lease | None
    """Absent when no key has."""

    @classmethod
    def from_json(cls, o: Any) -> LeaseStatus:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Lease.from_json(v) if (v := o.get("lease")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class LiveUsage:
    """What one sandbox uses, measured by its host. What only grows is counted since the sandbox was made."""

    id: str
    """Its id."""
    name: str | None
    """Its name."""
    state: SandboxState
    """Its state."""
    paused: PauseMode | None
    """How it is paused, while it is."""
    created_at_ms: int
    """When it was asked for."""
    at_ms: int
    """When it was measured."""
    cpu_us: int
    """Processor time, microseconds: two measurements say how busy it is."""
    cpu_limit_millis: int
    """Processor time that it may use, thousandths of a processor."""
    memory_bytes: int
    """Memory now, bytes."""
    memory_limit_bytes: int
    """Memory that it may use, bytes."""
    disk_bytes: int
    """Space of its writable disk on the host, bytes."""
    pids: int
    """Processes and threads now."""
    execs: int
    """Commands that run now."""
    sent_bytes: int
    """Bytes that left it since its server was started."""
    received_bytes: int
    """Bytes that came into it since its server was started."""

    @classmethod
    def from_json(cls, o: Any) -> LiveUsage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o.get("name"),
            o["state"],
            o.get("paused"),
            o["created_at_ms"],
            o["at_ms"],
            o["cpu_us"],
            o["cpu_limit_millis"],
            o["memory_bytes"],
            o["memory_limit_bytes"],
            o["disk_bytes"],
            o["pids"],
            o["execs"],
            o["sent_bytes"],
            o["received_bytes"],
        )


@dataclass(frozen=True, slots=True)
class LiveUsageList:
    """What all of them use."""

    items: list[LiveUsage]
    """One for each, on every node."""

    @classmethod
    def from_json(cls, o: Any) -> LiveUsageList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [LiveUsage.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a sandbox uses."""

    cpu_us: int
    """CPU time since creation, microseconds."""
    memory_bytes: int
    """Memory now, bytes."""
    memory_peak_bytes: int
    """Highest memory so far, bytes."""
    memory_limit_bytes: int
    """Memory limit, bytes."""
    pids: int
    """Processes and threads now."""
    oom_kills: int
    """Times the kernel killed something because memory ran out."""
    disk_host_bytes: int
    """Space of the writable disk on the host, bytes."""
    disk_total_bytes: int
    """Size of the file system as seen inside, bytes."""
    disk_used_bytes: int
    """Used of it, bytes."""
    uptime_s: int
    """Seconds since the guest started."""
    disk_io: DiskIo | None
    """What was read from its disks and written to them. Counted at the level `microvm` while it runs, and not while
    it is paused or copied.
    """

    @classmethod
    def from_json(cls, o: Any) -> Metrics:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["cpu_us"],
            o["memory_bytes"],
            o["memory_peak_bytes"],
            o["memory_limit_bytes"],
            o["pids"],
            o["oom_kills"],
            o["disk_host_bytes"],
            o["disk_total_bytes"],
            o["disk_used_bytes"],
            o["uptime_s"],
            DiskIo.from_json(v) if (v := o.get("disk_io")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """How much may be asked of models. What is absent is not bounded."""

    requests: int | None
    """Requests."""
    tokens: int | None
    """Tokens of both kinds. The answer with which they are used up is passed on; the next request is refused."""

    @classmethod
    def from_json(cls, o: Any) -> ModelBudget:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("requests"),
            o.get("tokens"),
        )


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What was asked of models, as the gateway saw it in their answers."""

    requests: int
    """Requests that were sent to models."""
    input_tokens: int
    """Tokens that models read, those of their caches included."""
    output_tokens: int
    """Tokens that models wrote."""
    untold: int
    """Requests whose answers did not say how many tokens they took; those are counted by their size, a token for
    four bytes.
    """

    @classmethod
    def from_json(cls, o: Any) -> ModelUsage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("requests", 0),
            o.get("input_tokens", 0),
            o.get("output_tokens", 0),
            o.get("untold", 0),
        )


@dataclass(frozen=True, slots=True)
class NetworkView:
    """The network of a sandbox."""

    internet: Internet
    """What happens where no rule speaks."""
    transferred: Transferred
    """Since the sandbox was made, or since the last start of the server."""
    connections: list[ConnectionView]
    """Open connections, oldest first."""
    totals: list[TotalView]
    """By destination, most bytes first."""
    denials: list[DenialView]
    """What was refused, newest first."""

    @classmethod
    def from_json(cls, o: Any) -> NetworkView:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["internet"],
            Transferred.from_json(o["transferred"]),
            [ConnectionView.from_json(one) for one in o["connections"]],
            [TotalView.from_json(one) for one in o["totals"]],
            [DenialView.from_json(one) for one in o["denials"]],
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A node."""

    id: str
    """Its id, which stands in its data directory."""
    name: str
    """What people call it."""
    address: str
    """Where the other nodes reach it."""
    version: str
    """Version of its program."""
    state: NodeState
    """How it is."""
    is_this: bool
    """Whether it is the one that answers."""
    levels: list[IsolationLevel]
    """Isolation levels that it has."""
    labels: dict[str, str]
    """What its operator says of it."""
    sandboxes: int
    """Sandboxes that it has, as it said with its last sign of life."""
    sandboxes_max: int
    """Most that it takes."""
    memory_available_bytes: int | None
    """Memory that is available there, bytes; absent where that cannot be told."""
    lease_ms: int
    """How long the others wait for a sign of life, milliseconds."""
    seen_ms: int
    """Its last sign of life, by the database's clock, milliseconds since the epoch."""
    created_ms: int
    """When it entered the cluster first, milliseconds since the epoch."""

    @classmethod
    def from_json(cls, o: Any) -> Node:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["address"],
            o["version"],
            o["state"],
            o["is_this"],
            o["levels"],
            o["labels"],
            o["sandboxes"],
            o["sandboxes_max"],
            o.get("memory_available_bytes"),
            o["lease_ms"],
            o["seen_ms"],
            o["created_ms"],
        )


@dataclass(frozen=True, slots=True)
class NodeDrain:
    """What a node still has that takes no new sandboxes."""

    state: NodeState
    """How the node is."""
    sandboxes: int
    """Sandboxes that it has now."""
    staying: int
    """Those of them that stay; the others are on their way."""
    items: list[StayingSandbox]
    """Which those are, and why: the first hundred."""

    @classmethod
    def from_json(cls, o: Any) -> NodeDrain:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["state"],
            o["sandboxes"],
            o["staying"],
            [StayingSandbox.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class NodeList:
    """Every node, by name."""

    items: list[Node]
    """The nodes; none where the database belongs to one server."""

    @classmethod
    def from_json(cls, o: Any) -> NodeList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Node.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of output in JSON."""

    offset: int
    """Offset of its first byte in the exec's output, both streams together."""
    stream: OutputStream
    """Which stream."""
    data: str
    """The bytes."""
    encoding: Encoding
    """How they are written."""

    @classmethod
    def from_json(cls, o: Any) -> OutputChunk:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["offset"],
            o["stream"],
            o["data"],
            o["encoding"],
        )


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Answer of the long-poll: what there is from an offset on."""

    chunks: list[OutputChunk]
    """The chunks, contiguous."""
    gap_until: int | None
    """Set when bytes between the asked offset and this one were dropped."""
    next_offset: int
    """Ask with this offset next."""
    state: ExecState
    """Where the exec is in its life. Final and without chunks: there is no more."""
    exit: Exit | None
    """How it ended."""

    @classmethod
    def from_json(cls, o: Any) -> OutputPage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [OutputChunk.from_json(one) for one in o["chunks"]],
            o.get("gap_until"),
            o["next_offset"],
            o["state"],
            Exit.from_json(v) if (v := o.get("exit")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A text inside the sandbox that stands for a secret. It is worth nothing anywhere else."""

    secret: str
    """The secret."""
    env: str | None
    """The variable that holds the placeholder in every command of the sandbox."""
    prefix: str | None
    """What the placeholder starts with, for programs that insist on a form such as `sk-`."""
    headers: list[str]
    """Headers in which it is replaced, besides `Authorization` and the usual ones for keys, such as `X-Api-Key`."""
    path: bool
    """Replace it in the path, too. Servers repeat paths in answers and write them down."""
    query: bool
    """Replace it in the query, too. Servers repeat queries in answers and write them down."""
    body: bool
    """Replace it in request bodies, too. What a server stores of a body can be read again."""
    value: str | None
    """The placeholder itself; made when absent, kept while the rule names the same secret."""

    @classmethod
    def from_json(cls, o: Any) -> Placeholder:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["secret"],
            o.get("env"),
            o.get("prefix"),
            o.get("headers", []),
            o.get("path", False),
            o.get("query", False),
            o.get("body", False),
            o.get("value"),
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of running sandboxes that wait to be handed out."""

    name: str
    """What tells it from the others."""
    template: str | None
    """The template it is of."""
    version: int | None
    """The version of it that members are made of."""
    image: str | None
    """The image it is of."""
    isolation: IsolationLevel | None
    """The isolation level of its members, where they can be made."""
    min: int
    """Kept ready whatever the demand."""
    max: int
    """Most that are kept ready."""
    max_age_ms: int
    """Members older than this are replaced."""
    origin: PoolOrigin
    """Who says so."""
    ready: int
    """Members that wait."""
    making: int
    """Members being made."""
    target: int
    """Members that should wait, by the demand of late and the memory there is."""
    hits: int
    """Requests that got a member, since the server started."""
    misses: int
    """Requests that found none and made a sandbox instead."""
    made: int
    """Members made."""
    failed: int
    """Attempts at making one that failed."""
    oldest_age_ms: int | None
    """Age of the oldest member that waits."""
    make_ms: int
    """How long making one takes on average."""
    member_bytes: int
    """Memory that one takes, as measured; 0 when none was made yet."""
    problem: str | None
    """Why it cannot be filled."""

    @classmethod
    def from_json(cls, o: Any) -> Pool:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["name"],
            o.get("template"),
            o.get("version"),
            o.get("image"),
            o.get("isolation"),
            o["min"],
            o["max"],
            o["max_age_ms"],
            o["origin"],
            o["ready"],
            o["making"],
            o["target"],
            o["hits"],
            o["misses"],
            o["made"],
            o["failed"],
            o.get("oldest_age_ms"),
            o["make_ms"],
            o["member_bytes"],
            o.get("problem"),
        )


@dataclass(frozen=True, slots=True)
class PoolList:
    """All pools."""

    items: list[Pool]
    """The pools."""
    memory_bytes: int
    """Memory that members take now."""
    memory_max_bytes: int
    """Memory that the members of all pools may take together."""

    @classmethod
    def from_json(cls, o: Any) -> PoolList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Pool.from_json(one) for one in o["items"]],
            o["memory_bytes"],
            o["memory_max_bytes"],
        )


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """How many members a pool keeps."""

    min: int
    """Kept ready whatever the demand."""
    max: int
    """Most that are kept ready."""
    max_age_ms: int | None
    """Members older than this are replaced, milliseconds. One hour when absent."""

    @classmethod
    def from_json(cls, o: Any) -> PoolSpec:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["min"],
            o["max"],
            o.get("max_age_ms"),
        )


@dataclass(frozen=True, slots=True)
class Port:
    """A port on which something listens inside a sandbox."""

    port: int
    """The TCP port."""
    url: str
    """Where clients that are allowed to reach it do so from outside."""
    public: bool
    """Whether everybody may."""

    @classmethod
    def from_json(cls, o: Any) -> Port:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["port"],
            o["url"],
            o["public"],
        )


@dataclass(frozen=True, slots=True)
class PortList:
    """Ports on which something listens inside a sandbox."""

    items: list[Port]
    """Ascending."""

    @classmethod
    def from_json(cls, o: Any) -> PortList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Port.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """What the processes of a profile may do."""

    user: str | None
    """User of its execs, unless one says another; the sandbox's when absent."""
    timeout_ms: int | None
    """Its execs are killed this long after their start, unless one asks for less."""
    hide: list[str]
    """Files and directories whose content it does not see, and below which it changes nothing."""
    read_only: list[str]
    """Files and directories below which it changes nothing."""
    on_exec: dict[str, str]
    """The profile in which a program runs that its processes execute: by path in the image, as rules about programs
    name them, and `*` for all others. The profile's own name lets a program stay in it. Nothing changes the
    profile when this is empty.
    """
    may_run: list[str]
    """The profiles that its processes may ask for with `atoll-run --profile NAME -- COMMAND`, beside the one to
    which `*` leads in `on_exec`.
    """
    limits: ProfileLimits | None
    """What each process may use that begins in it, or gets into it; less than the sandbox has."""

    @classmethod
    def from_json(cls, o: Any) -> Profile:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("user"),
            o.get("timeout_ms"),
            o.get("hide", []),
            o.get("read_only", []),
            o.get("on_exec", {}),
            o.get("may_run", []),
            ProfileLimits.from_json(v) if (v := o.get("limits")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ProfileLimits:
    """Limits of each process of a profile. They are inherited, and no process inside can raise them. All together
    have the sandbox's limits.
    """

    memory_bytes: int | None
    """Memory that one process may write to, bytes; asking for more fails."""
    processes: int | None
    """A process of it makes no other while its user has so many in the sandbox, threads included."""
    cpu_seconds: int | None
    """CPU time of one process, seconds; then it is killed."""

    @classmethod
    def from_json(cls, o: Any) -> ProfileLimits:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("memory_bytes"),
            o.get("processes"),
            o.get("cpu_seconds"),
        )


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles of a sandbox. A process is in one from its exec's first moment on, or in none; it leaves it only
    by running a program, and only for one that the profile names.
    """

    default: str | None
    """The profile of execs that ask for none; in none when absent."""
    named: dict[str, Profile]
    """By name. What rules of the network and of secrets say is `from: {profile: NAME}` is for its processes alone.
    """

    @classmethod
    def from_json(cls, o: Any) -> Profiles:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("default"),
            {key: Profile.from_json(one) for key, one in o.get("named", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class Project:
    """A project."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    quota: Quota
    """How much it may have."""
    defaults: ProjectDefaults
    """What its sandboxes are when neither the request nor the template says."""
    used: QuotaUsed | None
    """How much of its quota it has. Absent in listings."""
    has: ProjectContent | None
    """What belongs to it. Absent in listings."""
    created_at_ms: int
    """When it was made."""

    @classmethod
    def from_json(cls, o: Any) -> Project:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            Quota.from_json(o["quota"]),
            ProjectDefaults.from_json(o["defaults"]),
            QuotaUsed.from_json(v) if (v := o.get("used")) is not None else None,
            ProjectContent.from_json(v) if (v := o.get("has")) is not None else None,
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class ProjectContent:
    """What belongs to a project: while anything does it is not removed."""

    keys: int
    """Keys."""
    sandboxes: int
    """Sandboxes."""
    snapshots: int
    """Snapshots, also such as something else holds."""
    volumes: int
    """Volumes."""
    secrets: int
    """Secrets."""

    @classmethod
    def from_json(cls, o: Any) -> ProjectContent:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["keys"],
            o["sandboxes"],
            o["snapshots"],
            o["volumes"],
            o["secrets"],
        )


@dataclass(frozen=True, slots=True)
class ProjectDefaults:
    """What sandboxes of a project are when neither caller nor template says: before the server's own defaults."""

    image: str | None
    """The image."""
    isolation: IsolationLevel | None
    """The isolation level."""
    resources: ResourcesDraft | None
    """Limits."""
    visibility: Visibility | None
    """Whether the other keys of the project see a sandbox."""
    ttl_ms: int | None
    """Delete it this long after creation."""
    idle_timeout_ms: int | None
    """Delete it after this long without a running exec or a request."""
    egress: EgressPolicy | None
    """What it may reach."""

    @classmethod
    def from_json(cls, o: Any) -> ProjectDefaults:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("image"),
            o.get("isolation"),
            ResourcesDraft.from_json(v) if (v := o.get("resources")) is not None else None,
            o.get("visibility"),
            o.get("ttl_ms"),
            o.get("idle_timeout_ms"),
            EgressPolicy.from_json(v) if (v := o.get("egress")) is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ProjectList:
    """All projects."""

    items: list[Project]
    """The projects, by age."""

    @classmethod
    def from_json(cls, o: Any) -> ProjectList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Project.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What pruning did."""

    removed: list[str]
    """Digests of removed images."""
    freed_bytes: int
    """Space freed, bytes."""

    @classmethod
    def from_json(cls, o: Any) -> PruneResult:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["removed"],
            o["freed_bytes"],
        )


@dataclass(frozen=True, slots=True)
class PushedSnapshot:
    """What came of sending a snapshot."""

    digest: str
    """The digest under which it is there."""
    tags: list[str]
    """References there that name it now."""
    sent_bytes: int
    """Bytes that were sent; 0 when it was there already."""

    @classmethod
    def from_json(cls, o: Any) -> PushedSnapshot:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["digest"],
            o["tags"],
            o["sent_bytes"],
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a project may have. What is absent has no limit of the project's."""

    sandboxes: int | None
    """Sandboxes that exist."""
    running: int | None
    """Sandboxes that run: all but those that are paused or have failed."""
    cpu_millis: int | None
    """The CPU limits of those that run together, thousandths of a core."""
    memory_bytes: int | None
    """The memory limits of those that run together, bytes."""
    disk_bytes: int | None
    """The disk limits of those that exist together, bytes."""

    @classmethod
    def from_json(cls, o: Any) -> Quota:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("sandboxes"),
            o.get("running"),
            o.get("cpu_millis"),
            o.get("memory_bytes"),
            o.get("disk_bytes"),
        )


@dataclass(frozen=True, slots=True)
class QuotaUsed:
    """How much of its quota a project has."""

    sandboxes: int
    """See [`Quota::sandboxes`]."""
    running: int
    """See [`Quota::running`]."""
    cpu_millis: int
    """See [`Quota::cpu_millis`]."""
    memory_bytes: int
    """See [`Quota::memory_bytes`]."""
    disk_bytes: int
    """See [`Quota::disk_bytes`]."""

    @classmethod
    def from_json(cls, o: Any) -> QuotaUsed:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["sandboxes"],
            o["running"],
            o["cpu_millis"],
            o["memory_bytes"],
            o["disk_bytes"],
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """When a sandbox of a template is ready for its first caller: when a command succeeds, or a port is listened
    on.
    """

    command: CommandText | None
    """Tried until it exits with 0."""
    port: int | None
    """Looked at until something listens on it."""
    timeout_ms: int | None
    """Give up after this long; 60 seconds when absent, at most ten minutes."""
    interval_ms: int | None
    """Longest pause between attempts, of which the first come faster; 100 milliseconds when absent."""

    @classmethod
    def from_json(cls, o: Any) -> Ready:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("command"),
            o.get("port"),
            o.get("timeout_ms"),
            o.get("interval_ms"),
        )


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A registry with stored credentials."""

    host: str
    """Host and port."""
    username: str
    """User name. The password is never returned."""
    updated_at_ms: int
    """When they were stored."""

    @classmethod
    def from_json(cls, o: Any) -> RegistryEntry:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["host"],
            o["username"],
            o["updated_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class RegistryList:
    """All registries with stored credentials."""

    items: list[RegistryEntry]
    """The registries."""

    @classmethod
    def from_json(cls, o: Any) -> RegistryList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [RegistryEntry.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """What removing did."""

    removed: bool
    """Whether the image itself is gone; otherwise only a name was taken off."""
    freed_bytes: int
    """Space freed, bytes."""

    @classmethod
    def from_json(cls, o: Any) -> RemovedImage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["removed"],
            o["freed_bytes"],
        )


@dataclass(frozen=True, slots=True)
class RemovedSnapshot:
    """What a removal did."""

    tags: list[str]
    """References that are gone."""
    snapshot: str | None
    """Id of the snapshot, if it is gone too and not only one of its references."""

    @classmethod
    def from_json(cls, o: Any) -> RemovedSnapshot:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["tags"],
            o.get("snapshot"),
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """Limits of a sandbox, all enforced by the kernel or by the machine that it is in."""

    cpu_millis: int
    """CPU time per wall time, thousandths of a core."""
    memory_bytes: int
    """Memory with page cache and tmpfs, bytes. Beyond it the kernel kills inside the sandbox."""
    pids: int
    """Processes and threads."""
    disk_bytes: int
    """Writable disk, bytes. Beyond it writes get `ENOSPC`."""
    io_bytes_per_second: int | None
    """What is read from its disks and written to them together, bytes per second; beyond it they are slower.
    Absent: as fast as the host can.
    """
    io_operations_per_second: int | None
    """Reads and writes of its disks together, per second, however large each is. Absent: no limit."""

    @classmethod
    def from_json(cls, o: Any) -> Resources:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["cpu_millis"],
            o["memory_bytes"],
            o["pids"],
            o["disk_bytes"],
            o.get("io_bytes_per_second"),
            o.get("io_operations_per_second"),
        )


@dataclass(frozen=True, slots=True)
class ResourcesDraft:
    """Limits as asked: what is absent comes from the template or the default."""

    cpu_millis: int | None
    """See [`Resources::cpu_millis`]."""
    memory_bytes: int | None
    """See [`Resources::memory_bytes`]."""
    pids: int | None
    """See [`Resources::pids`]."""
    disk_bytes: int | None
    """See [`Resources::disk_bytes`]."""
    io_bytes_per_second: int | None
    """See [`Resources::io_bytes_per_second`]. `null` is no limit, whatever was there before."""
    io_operations_per_second: int | None
    """See [`Resources::io_operations_per_second`]. `null` is no limit, whatever was there before."""

    @classmethod
    def from_json(cls, o: Any) -> ResourcesDraft:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("cpu_millis"),
            o.get("memory_bytes"),
            o.get("pids"),
            o.get("disk_bytes"),
            o.get("io_bytes_per_second"),
            o.get("io_operations_per_second"),
        )


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A sandbox that was put back."""

    sandbox: Sandbox
    """The sandbox, under its old id."""
    to: Snapshot
    """What it was put back to."""

    @classmethod
    def from_json(cls, o: Any) -> RolledBack:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            Sandbox.from_json(o["sandbox"]),
            Snapshot.from_json(o["to"]),
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. What is absent is not looked at; all that is present must match. `methods` and `path` speak of HTTP
    requests. For HTTPS they hold where the gateway opens TLS; where it does not, a rule that allows does not
    match and one that denies does.
    """

    action: Action
    """What it says."""
    name: str | None
    """A name for it, shown in refusals."""
    domain: str | None
    """Names: `example.com`, `*.example.com` (everything below it), `*`."""
    cidr: str | None
    """Addresses: `192.0.2.0/24`, or one address. Private ones are reached only through such a rule."""
    ports: list[str]
    """Ports: numbers, or texts such as `8000-8999`."""
    methods: list[str]
    """Methods of HTTP, in capitals."""
    path: str | None
    """Paths of HTTP; `*` stands for any characters."""
    from_: Origin | None
    """Only connections that this program made; of rules that allow. Needs a sandbox whose programs the host's
    kernel sees (containers).
    """

    @classmethod
    def from_json(cls, o: Any) -> Rule:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["action"],
            o.get("name"),
            o.get("domain"),
            o.get("cidr"),
            o.get("ports", []),
            o.get("methods", []),
            o.get("path"),
            o.get("from"),
        )


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox."""

    id: str
    """Its id."""
    name: str | None
    """Its name, if it has one."""
    state: SandboxState
    """Where it is in its life."""
    reason: str | None
    """Why it failed, or was paused by Atoll."""
    paused: PauseMode | None
    """How it is paused, while it is."""
    paused_at_ms: int | None
    """Since when."""
    kept_at_ms: int | None
    """Since when everything that it needs to be woken on another node is in the object store, too. Absent while it
    runs, as long as it is not, and where there are no nodes.
    """
    boot_id: str
    """Names the boot it is in. Another one means that every process in it was started anew."""
    image: str
    """The image as it was named."""
    image_digest: str | None
    """Digest of the image's manifest; absent for `host`."""
    template: str | None
    """The template version it came from."""
    snapshot: str | None
    """Id of the snapshot it began with."""
    auto_checkpoints: AutoCheckpoints | None
    """Checkpoints that it takes by itself."""
    durability: Durability | None
    """How it outlives its node."""
    restored_from_ms: int | None
    """Its node died, and it was brought back from a copy of this moment: what was done afterwards is lost."""
    restored_at_ms: int | None
    """When that was."""
    isolation: IsolationLevel
    """The isolation level."""
    accelerator: Accelerator | None
    """What executes its machine, at the level `microvm`: `kvm`, or `emulated`, which is no security boundary."""
    resources: Resources
    """Limits."""
    env: dict[str, str]
    """Environment of every exec."""
    labels: dict[str, str]
    """Labels."""
    annotations: dict[str, str]
    """Texts kept beside it."""
    user: str
    """Default user of execs."""
    workdir: str | None
    """Default working directory of execs."""
    created_at_ms: int
    """When it was made."""
    expires_at_ms: int | None
    """When it will be deleted at the latest."""
    idle_timeout_ms: int | None
    """See [`idle_timeout_ms`]."""
    egress: EgressPolicy | None
    """What it may reach."""
    execution: ExecutionPolicy | None
    """Which programs may run."""
    profiles: Profiles | None
    """Profiles of its processes."""
    on_idle: OnIdle | None
    """See [`on_idle`]."""
    idle_freeze_ms: int | None
    """See [`idle_freeze_ms`]."""
    hibernate_after_ms: int | None
    """See [`hibernate_after_ms`]."""
    delete_paused_after_ms: int | None
    """See [`delete_paused_after_ms`]."""
    budget: Budget | None
    """See [`budget`]."""
    last_active_at_ms: int
    """When it was last used."""
    owner: str | None
    """Id of the key that made it."""
    project: str | None
    """Id of the project that it belongs to."""
    volumes: list[VolumeMount]
    """Volumes that are mounted in it."""
    layers: dict[str, Layer]
    """Agent layers that are mounted in it below `/opt/agents`, by name."""

    @classmethod
    def from_json(cls, o: Any) -> Sandbox:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o.get("name"),
            o["state"],
            o.get("reason"),
            o.get("paused"),
            o.get("paused_at_ms"),
            o.get("kept_at_ms"),
            o.get("boot_id", ""),
            o["image"],
            o.get("image_digest"),
            o.get("template"),
            o.get("snapshot"),
            AutoCheckpoints.from_json(v) if (v := o.get("auto_checkpoints")) is not None else None,
            Durability.from_json(v) if (v := o.get("durability")) is not None else None,
            o.get("restored_from_ms"),
            o.get("restored_at_ms"),
            o["isolation"],
            o.get("accelerator"),
            Resources.from_json(o["resources"]),
            o["env"],
            o["labels"],
            o.get("annotations", {}),
            o["user"],
            o.get("workdir"),
            o["created_at_ms"],
            o.get("expires_at_ms"),
            o.get("idle_timeout_ms"),
            EgressPolicy.from_json(v) if (v := o.get("egress")) is not None else None,
            ExecutionPolicy.from_json(v) if (v := o.get("execution")) is not None else None,
            Profiles.from_json(v) if (v := o.get("profiles")) is not None else None,
            o.get("on_idle"),
            o.get("idle_freeze_ms"),
            o.get("hibernate_after_ms"),
            o.get("delete_paused_after_ms"),
            Budget.from_json(v) if (v := o.get("budget")) is not None else None,
            o["last_active_at_ms"],
            o.get("owner"),
            o.get("project"),
            [VolumeMount.from_json(one) for one in o.get("volumes", [])],
            {key: Layer.from_json(one) for key, one in o.get("layers", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class SandboxAccess:
    """Who may use a sandbox."""

    owner: str | None
    """Id of the key that made it: may do everything that its scope allows."""
    visibility: Visibility
    """Whether keys without a grant see it."""
    is_default: bool
    """Whether that is the server's default."""
    grants: list[Grant]
    """Roles by key."""

    @classmethod
    def from_json(cls, o: Any) -> SandboxAccess:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("owner"),
            o["visibility"],
            o["is_default"],
            [Grant.from_json(one) for one in o["grants"]],
        )


@dataclass(frozen=True, slots=True)
class SandboxList:
    """A page of sandboxes, newest first."""

    items: list[Sandbox]
    """The page."""
    next_cursor: str | None
    """Pass it as `cursor` for the next page."""

    @classmethod
    def from_json(cls, o: Any) -> SandboxList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Sandbox.from_json(one) for one in o["items"]],
            o.get("next_cursor"),
        )


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """One time that a message was due."""

    due_at_ms: int
    """When it was due, milliseconds since the epoch."""
    message: int | None
    """The number of the message in its session; absent when it was not taken."""
    error: str | None
    """Why it was not taken: the code of an error."""

    @classmethod
    def from_json(cls, o: Any) -> ScheduleRun:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["due_at_ms"],
            o.get("message"),
            o.get("error"),
        )


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, without its value."""

    name: str
    """Its name."""
    scope: SecretScope
    """Where it may go and who may use it."""
    note: str
    """What people wrote about it."""
    versions: list[SecretVersion]
    """The versions that are kept, oldest first."""
    created_at_ms: int
    """When it was made."""
    created_by: str | None
    """Id of the key that made it."""

    @classmethod
    def from_json(cls, o: Any) -> Secret:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["name"],
            SecretScope.from_json(o["scope"]),
            o["note"],
            [SecretVersion.from_json(one) for one in o["versions"]],
            o["created_at_ms"],
            o.get("created_by"),
        )


@dataclass(frozen=True, slots=True)
class SecretList:
    """All secrets."""

    items: list[Secret]
    """By name."""

    @classmethod
    def from_json(cls, o: Any) -> SecretList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Secret.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class SecretScope:
    """Where a secret may go: the lock on the secret itself, whatever a sandbox's rules say."""

    hosts: list[str]
    """Hosts that may receive it; `*` means any."""
    templates: list[str]
    """Names of templates whose sandboxes may use it; any sandbox when empty."""
    sandboxes: list[str]
    """Ids or names of sandboxes that may use it; any when empty."""
    keys: list[str]
    """API keys whose sandboxes may use it; any when empty."""

    @classmethod
    def from_json(cls, o: Any) -> SecretScope:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["hosts"],
            o.get("templates", []),
            o.get("sandboxes", []),
            o.get("keys", []),
        )


@dataclass(frozen=True, slots=True)
class SecretUse:
    """One use of a secret."""

    at_ms: int
    """When."""
    secret: str
    """The secret."""
    version: int
    """Which version."""
    sandbox: str
    """Id of the sandbox."""
    host: str
    """The host that received it."""
    method: str
    """The request's method."""
    path: str
    """The request's path, without its query."""
    rule: str
    """The rule that put it in."""

    @classmethod
    def from_json(cls, o: Any) -> SecretUse:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["at_ms"],
            o["secret"],
            o["version"],
            o["sandbox"],
            o["host"],
            o["method"],
            o["path"],
            o["rule"],
        )


@dataclass(frozen=True, slots=True)
class SecretUseList:
    """Uses of secrets."""

    items: list[SecretUse]
    """The newest first."""

    @classmethod
    def from_json(cls, o: Any) -> SecretUseList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [SecretUse.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """A version of a secret."""

    version: int
    """Counts from 1. Rules may pin it: `NAME@3`."""
    created_at_ms: int
    """When it was set."""

    @classmethod
    def from_json(cls, o: Any) -> SecretVersion:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["version"],
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What this server is."""

    version: str
    """Version of the program."""
    installation: str
    """Random id of this installation."""
    isolation: list[str]
    """Isolation levels it can give."""
    accelerator: Accelerator | None
    """What executes machines of the level `microvm`, if it has that."""
    sandboxes: int
    """Sandboxes that exist now, in any state."""
    sandboxes_max: int
    """Most sandboxes it will have at once."""

    @classmethod
    def from_json(cls, o: Any) -> ServerInfo:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["version"],
            o["installation"],
            o["isolation"],
            o.get("accelerator"),
            o["sandboxes"],
            o["sandboxes_max"],
        )


@dataclass(frozen=True, slots=True)
class Service:
    """A service."""

    id: str
    """Its id."""
    name: str
    """Its name, unique in the sandbox."""
    sandbox: str
    """The sandbox it runs in."""
    command: CommandText
    """What it runs: a line for the shell, or program and arguments."""
    user: str | None
    """User it runs as; the sandbox's when absent."""
    cwd: str | None
    """Working directory; the sandbox's when absent."""
    restart: Restart
    """When it is started again."""
    backoff_ms: int
    """First pause before that."""
    backoff_max_ms: int
    """Longest such pause."""
    give_up_after: int
    """Early ends in a row after which it is given up; 0: never."""
    stop_timeout_ms: int
    """What it has to end by itself before it is killed."""
    ready: ServiceReady | None
    """When it is ready."""
    health: ServiceHealth | None
    """Whether it still works."""
    after: list[str]
    """Services that it is started after."""
    state: ServiceState
    """Where it is."""
    reason: str | None
    """Why, where there is something to say."""
    run: int
    """Number of its last run; 0 before the first."""
    exec: str | None
    """The exec of that run."""
    last_exit: Exit | None
    """How the last run that has ended did."""
    next_start_at_ms: int | None
    """When it is started again, while it is backing off."""
    created_at_ms: int
    """When it was asked for."""

    @classmethod
    def from_json(cls, o: Any) -> Service:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["sandbox"],
            o["command"],
            o.get("user"),
            o.get("cwd"),
            o["restart"],
            o["backoff_ms"],
            o["backoff_max_ms"],
            o["give_up_after"],
            o["stop_timeout_ms"],
            ServiceReady.from_json(v) if (v := o.get("ready")) is not None else None,
            ServiceHealth.from_json(v) if (v := o.get("health")) is not None else None,
            o.get("after", []),
            o["state"],
            o.get("reason"),
            o["run"],
            o.get("exec"),
            Exit.from_json(v) if (v := o.get("last_exit")) is not None else None,
            o.get("next_start_at_ms"),
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """Whether a service that is ready still works. One of `command` and `port`; with `path` the port is asked over
    HTTP.
    """

    command: CommandText | None
    """Must end with code 0."""
    port: int | None
    """Something must listen on it."""
    path: str | None
    """Asked for over HTTP on the port; the status must be 200 to 399."""
    interval_ms: int | None
    """Pause between looks; ten seconds when absent."""
    timeout_ms: int | None
    """Longest that one look may take; five seconds when absent, at most ten minutes."""
    failures: int | None
    """The service is killed, and counts as failed, after so many bad looks in a row; 3 when absent."""

    @classmethod
    def from_json(cls, o: Any) -> ServiceHealth:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("command"),
            o.get("port"),
            o.get("path"),
            o.get("interval_ms"),
            o.get("timeout_ms"),
            o.get("failures"),
        )


@dataclass(frozen=True, slots=True)
class ServiceList:
    """The services of a sandbox, by name."""

    items: list[Service]
    """All of them."""

    @classmethod
    def from_json(cls, o: Any) -> ServiceList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Service.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class ServiceLogChunk:
    """A piece of a service's log."""

    offset: int
    """Offset of its first byte in the service's log, over all runs and both streams."""
    run: int
    """Number of the run that wrote it."""
    stream: OutputStream
    """Which stream."""
    data: str
    """The bytes."""
    encoding: Encoding
    """How they are written."""

    @classmethod
    def from_json(cls, o: Any) -> ServiceLogChunk:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["offset"],
            o["run"],
            o["stream"],
            o["data"],
            o["encoding"],
        )


@dataclass(frozen=True, slots=True)
class ServiceLogPage:
    """What there is of a service's log from an offset on."""

    chunks: list[ServiceLogChunk]
    """The chunks, contiguous."""
    gap_until: int | None
    """Set when bytes between the asked offset and this one are not kept any more."""
    next_offset: int
    """Ask with this offset next."""
    state: ServiceState
    """Where the service is. More may come whatever it is."""

    @classmethod
    def from_json(cls, o: Any) -> ServiceLogPage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [ServiceLogChunk.from_json(one) for one in o["chunks"]],
            o.get("gap_until"),
            o["next_offset"],
            o["state"],
        )


@dataclass(frozen=True, slots=True)
class ServiceReady:
    """When a service that was started is ready. One of `command` and `port`; with `path` the port is asked over
    HTTP.
    """

    command: CommandText | None
    """Tried until it ends with code 0."""
    port: int | None
    """Looked at until something listens on it."""
    path: str | None
    """Asked for over HTTP on the port until the status is 200 to 399."""
    interval_ms: int | None
    """Longest pause between attempts, of which the first come faster; 200 milliseconds when absent."""
    timeout_ms: int | None
    """It counts as failed when it is not ready after this long; 60 seconds when absent, at most ten minutes."""

    @classmethod
    def from_json(cls, o: Any) -> ServiceReady:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o.get("command"),
            o.get("port"),
            o.get("path"),
            o.get("interval_ms"),
            o.get("timeout_ms"),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: the writable disk of a sandbox at one moment, and its memory when that was asked for. It never
    changes.
    """

    id: str
    """Its id."""
    state: SnapshotState
    """Where it is in its life."""
    kind: SnapshotKind
    """What is in it."""
    tags: list[str]
    """References that point to it now, as `name:tag`."""
    checkpoint: int | None
    """Its number among the checkpoints of its sandbox, if it is one."""
    automatic: bool
    """Its sandbox took it by itself."""
    comment: str | None
    """A note by the caller who made it."""
    sandbox: str | None
    """The sandbox it was taken of, which may be gone; absent when it was imported."""
    image: str
    """The image it stands on, as it was named."""
    image_digest: str | None
    """The image, exactly; absent for `host`."""
    isolation: IsolationLevel
    """The isolation level it was taken at and can be used at."""
    resources: Resources
    """Limits that a sandbox made from it has, unless it is asked for others. The disk cannot be smaller."""
    env: dict[str, str]
    """Environment that a sandbox made from it has."""
    user: str
    """Default user."""
    workdir: str | None
    """Default working directory."""
    format: int
    """Version of the form that its data has."""
    digest: str | None
    """Digest of manifest and data, as `blake3:…`; found out a moment after it was taken."""
    stored_bytes: int
    """What it takes on the host, bytes. A clone shares most of it with its sandbox."""
    method: CopyMethod | None
    """How its disk came about: a clone takes no time, a copy takes as long as there is data."""
    paused_us: int | None
    """How long the sandbox could not write while it was taken, microseconds."""
    created_at_ms: int
    """When it was taken."""
    created_by: str | None
    """Id of the key that took it."""

    @classmethod
    def from_json(cls, o: Any) -> Snapshot:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["state"],
            o["kind"],
            o["tags"],
            o.get("checkpoint"),
            o.get("automatic", False),
            o.get("comment"),
            o.get("sandbox"),
            o["image"],
            o.get("image_digest"),
            o["isolation"],
            Resources.from_json(o["resources"]),
            o["env"],
            o["user"],
            o.get("workdir"),
            o["format"],
            o.get("digest"),
            o["stored_bytes"],
            o.get("method"),
            o.get("paused_us"),
            o["created_at_ms"],
            o.get("created_by"),
        )


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """A page of snapshots, newest first."""

    items: list[Snapshot]
    """The page."""
    next_cursor: str | None
    """Pass it as `cursor` for the next page."""

    @classmethod
    def from_json(cls, o: Any) -> SnapshotList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Snapshot.from_json(one) for one in o["items"]],
            o.get("next_cursor"),
        )


@dataclass(frozen=True, slots=True)
class SshInfo:
    """Where SSH clients connect. The login name is the sandbox, or `SANDBOX+USER`."""

    host_key: str
    """The public host key, as it stands in `known_hosts` without names."""
    host_key_alias: str
    """A name for this server that does not change with its address."""

    @classmethod
    def from_json(cls, o: Any) -> SshInfo:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["host_key"],
            o["host_key_alias"],
        )


@dataclass(frozen=True, slots=True)
class SshKey:
    """An SSH public key. Who logs in with it may do what its API key may."""

    id: str
    """Its id."""
    name: str
    """What it is for."""
    public_key: str
    """Kind and key, as in `authorized_keys`."""
    fingerprint: str
    """As SSH programs show it."""
    owner: str
    """Id of the API key it stands for."""
    created_at_ms: int
    """When it was registered."""
    expires_at_ms: int | None
    """When it stops working."""

    @classmethod
    def from_json(cls, o: Any) -> SshKey:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["public_key"],
            o["fingerprint"],
            o["owner"],
            o["created_at_ms"],
            o.get("expires_at_ms"),
        )


@dataclass(frozen=True, slots=True)
class SshKeyList:
    """SSH keys."""

    items: list[SshKey]
    """The oldest first."""

    @classmethod
    def from_json(cls, o: Any) -> SshKeyList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [SshKey.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class StayingSandbox:
    """A sandbox that stays on a node which is drained."""

    id: str
    """Its id."""
    name: str | None
    """Its name, if it has one."""
    reason: str
    """Why it does not go to another node."""

    @classmethod
    def from_json(cls, o: Any) -> StayingSandbox:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o.get("name"),
            o["reason"],
        )


@dataclass(frozen=True, slots=True)
class StdinWritten:
    """Standard input was taken."""

    bytes: int
    """Bytes taken."""

    @classmethod
    def from_json(cls, o: Any) -> StdinWritten:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["bytes"],
        )


@dataclass(frozen=True, slots=True)
class Template:
    """One version of a template."""

    id: str
    """Id of this version."""
    name: str
    """Its name."""
    version: int
    """Its version, from 1."""
    image: str
    """The image."""
    snapshot: str | None
    """Id of the snapshot that its sandboxes begin with."""
    isolation: IsolationLevel | None
    """The isolation level."""
    resources: ResourcesDraft
    """Limits."""
    env: dict[str, str]
    """Environment."""
    labels: dict[str, str]
    """Labels."""
    user: str | None
    """Default user."""
    workdir: str | None
    """Default working directory."""
    ttl_ms: int | None
    """Time to live of its sandboxes."""
    idle_timeout_ms: int | None
    """Idle timeout of its sandboxes."""
    pool: PoolSpec | None
    """How many of its sandboxes wait warm."""
    egress: EgressPolicy | None
    """What its sandboxes may reach."""
    start: CommandText | None
    """What runs in every sandbox."""
    ready: Ready | None
    """When a sandbox is ready."""
    restart: Restart | None
    """When what runs in every sandbox is started again after it ended."""
    execution: ExecutionPolicy | None
    """Which programs may run in its sandboxes."""
    profiles: Profiles | None
    """Profiles of the processes of its sandboxes."""
    services: list[CreateService]
    """Services that every sandbox begins with."""
    memory: TemplateMemory | None
    """The memory that its sandboxes go on from, where it was asked for."""
    created_at_ms: int
    """When this version was made."""

    @classmethod
    def from_json(cls, o: Any) -> Template:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["version"],
            o["image"],
            o.get("snapshot"),
            o.get("isolation"),
            ResourcesDraft.from_json(o["resources"]),
            o["env"],
            o["labels"],
            o.get("user"),
            o.get("workdir"),
            o.get("ttl_ms"),
            o.get("idle_timeout_ms"),
            PoolSpec.from_json(v) if (v := o.get("pool")) is not None else None,
            EgressPolicy.from_json(v) if (v := o.get("egress")) is not None else None,
            o.get("start"),
            Ready.from_json(v) if (v := o.get("ready")) is not None else None,
            o.get("restart"),
            ExecutionPolicy.from_json(v) if (v := o.get("execution")) is not None else None,
            Profiles.from_json(v) if (v := o.get("profiles")) is not None else None,
            [CreateService.from_json(one) for one in o.get("services", [])],
            TemplateMemory.from_json(v) if (v := o.get("memory")) is not None else None,
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class TemplateList:
    """Templates, newest version of each."""

    items: list[Template]
    """The templates."""

    @classmethod
    def from_json(cls, o: Any) -> TemplateList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Template.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class TemplateMemory:
    """The memory that sandboxes of a template go on from."""

    state: TemplateMemoryState
    """Where it is."""
    problem: str | None
    """What failed last. Sandboxes boot then."""
    saved_at_ms: int | None
    """When it was saved."""
    stored_bytes: int | None
    """What it takes on the host, bytes."""

    @classmethod
    def from_json(cls, o: Any) -> TemplateMemory:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["state"],
            o.get("problem"),
            o.get("saved_at_ms"),
            o.get("stored_bytes"),
        )


@dataclass(frozen=True, slots=True)
class TemplateTag:
    """A name for one version of a template: `NAME:TAG` stands wherever `NAME:VERSION` can."""

    tag: str
    """The tag."""
    version: int
    """The version that it means."""
    set_at_ms: int
    """When it was pointed there."""

    @classmethod
    def from_json(cls, o: Any) -> TemplateTag:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["tag"],
            o["version"],
            o["set_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class TemplateTagList:
    """The tags of a template, by name."""

    items: list[TemplateTag]
    """The tags."""

    @classmethod
    def from_json(cls, o: Any) -> TemplateTagList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [TemplateTag.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class TotalView:
    """Bytes to one destination since the sandbox's network was taken up."""

    destination: str
    """`name:port`, or `address:port` where there is no name; `(others)` for those beyond the limit."""
    connections: int
    """Connections made."""
    sent_bytes: int
    """Bytes that left the sandbox."""
    received_bytes: int
    """Bytes that came into the sandbox."""

    @classmethod
    def from_json(cls, o: Any) -> TotalView:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["destination"],
            o["connections"],
            o["sent_bytes"],
            o["received_bytes"],
        )


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event of a sandbox. What else it has depends on its kind; see the documentation of the recorder."""

    sandbox: str
    """The sandbox."""
    number: int
    """Counts the events of a sandbox, from 1."""
    at_us: int
    """When, microseconds since the epoch."""
    witness: str
    """Who saw it: `host`, `sentry`, `gateway`, `server` or `guest`."""
    kind: str
    """What happened, such as `exec_started`."""

    @classmethod
    def from_json(cls, o: Any) -> TraceEvent:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["sandbox"],
            o["number"],
            o["at_us"],
            o["witness"],
            o["kind"],
        )


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """Something in a journal that is not as the recorder wrote it."""

    segment: str
    """Name of the file."""
    offset: int
    """Offset in the unpacked segment, bytes."""
    after: int
    """The last event before it that is as it was written."""
    what: str
    """What is wrong."""

    @classmethod
    def from_json(cls, o: Any) -> TraceFinding:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["segment"],
            o["offset"],
            o["after"],
            o["what"],
        )


@dataclass(frozen=True, slots=True)
class TraceGap:
    """A gap that the recorder itself announced."""

    number: int
    """Number of the event that announces it."""
    what: str
    """What is missing and why."""

    @classmethod
    def from_json(cls, o: Any) -> TraceGap:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["number"],
            o["what"],
        )


@dataclass(frozen=True, slots=True)
class TracePage:
    """Events in order."""

    items: list[TraceEvent]
    """The events."""
    next: int
    """Number from which to ask for the next page."""

    @classmethod
    def from_json(cls, o: Any) -> TracePage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [TraceEvent.from_json(one) for one in o["items"]],
            o["next"],
        )


@dataclass(frozen=True, slots=True)
class TraceReport:
    """Whether a journal is as the recorder wrote it."""

    sandbox: str
    """The sandbox."""
    key: str
    """The public key that signatures were verified with."""
    events: int
    """Events that were read."""
    first: int
    """Number of the first event that is kept."""
    last: int
    """Number of the last event."""
    signed: int
    """Number of the last event that a good signature covers."""
    ended: bool
    """Whether the journal was ended: nothing can be missing at its end."""
    head: str | None
    """The last signed statement as `number:link`, to be kept elsewhere."""
    gaps: list[TraceGap]
    """Gaps that the recorder itself announced."""
    findings: list[TraceFinding]
    """What is not as it was written; none when all is well."""

    @classmethod
    def from_json(cls, o: Any) -> TraceReport:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["sandbox"],
            o["key"],
            o["events"],
            o["first"],
            o["last"],
            o["signed"],
            o["ended"],
            o.get("head"),
            [TraceGap.from_json(one) for one in o["gaps"]],
            [TraceFinding.from_json(one) for one in o["findings"]],
        )


@dataclass(frozen=True, slots=True)
class Transferred:
    """Bytes of a sandbox."""

    sent_bytes: int
    """Bytes that left the sandbox."""
    received_bytes: int
    """Bytes that came into the sandbox."""

    @classmethod
    def from_json(cls, o: Any) -> Transferred:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["sent_bytes"],
            o["received_bytes"],
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used. Everything only grows."""

    cpu_us: int
    """CPU time of everything in the sandbox, microseconds, as the host's kernel counts it."""
    memory_byte_seconds: int
    """Memory charged to the sandbox × time: what is shared with others is charged to one of them."""
    disk_byte_seconds: int
    """Space of the writable disk on the host × time."""
    running_ms: int
    """Wall time in which it ran, milliseconds. Paused time does not count."""
    egress_bytes: int
    """Bytes that left it through the egress gateway."""
    requests: int
    """Times that it was used: execs, files, ports."""
    execs: int
    """Execs started."""
    exec_cpu_us: int
    """CPU time of execs as the guest reports it, microseconds."""

    @classmethod
    def from_json(cls, o: Any) -> Usage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["cpu_us"],
            o["memory_byte_seconds"],
            o["disk_byte_seconds"],
            o["running_ms"],
            o["egress_bytes"],
            o["requests"],
            o["execs"],
            o["exec_cpu_us"],
        )


@dataclass(frozen=True, slots=True)
class UsageItem:
    """One line of usage. What it is not grouped by is absent."""

    cpu_us: int
    """CPU time of everything in the sandbox, microseconds, as the host's kernel counts it."""
    memory_byte_seconds: int
    """Memory charged to the sandbox × time: what is shared with others is charged to one of them."""
    disk_byte_seconds: int
    """Space of the writable disk on the host × time."""
    running_ms: int
    """Wall time in which it ran, milliseconds. Paused time does not count."""
    egress_bytes: int
    """Bytes that left it through the egress gateway."""
    requests: int
    """Times that it was used: execs, files, ports."""
    execs: int
    """Execs started."""
    exec_cpu_us: int
    """CPU time of execs as the guest reports it, microseconds."""
    sandbox: str | None
    """Id of the sandbox, which may be gone."""
    key: str | None
    """Id of the key, which may be gone."""
    project: str | None
    """Id of the project, which may be gone."""
    hour_at_ms: int | None
    """When the hour began."""

    @classmethod
    def from_json(cls, o: Any) -> UsageItem:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["cpu_us"],
            o["memory_byte_seconds"],
            o["disk_byte_seconds"],
            o["running_ms"],
            o["egress_bytes"],
            o["requests"],
            o["execs"],
            o["exec_cpu_us"],
            o.get("sandbox"),
            o.get("key"),
            o.get("project"),
            o.get("hour_at_ms"),
        )


@dataclass(frozen=True, slots=True)
class UsageList:
    """What was used, the newest first."""

    items: list[UsageItem]
    """The lines."""

    @classmethod
    def from_json(cls, o: Any) -> UsageList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [UsageItem.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class VaultRotated:
    """The vault's key was changed."""

    resealed: int
    """How many values were sealed anew."""

    @classmethod
    def from_json(cls, o: Any) -> VaultRotated:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["resealed"],
        )


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    state: VolumeState
    """Where it is in its life."""
    size_bytes: int
    """Its size."""
    read_only: bool
    """It cannot be written to."""
    from_: str | None
    """Name of the volume it was copied from."""
    total_bytes: int | None
    """Space for files, as sandboxes see it. In listings absent."""
    used_bytes: int | None
    """Used of it."""
    stored_bytes: int | None
    """What it takes on the host; shared with copies and counted in full."""
    used_by: list[str]
    """Ids of the sandboxes that have it."""
    owner: str | None
    """Id of the key that made it."""
    created_at_ms: int
    """When it was made."""

    @classmethod
    def from_json(cls, o: Any) -> Volume:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["state"],
            o["size_bytes"],
            o["read_only"],
            o.get("from"),
            o.get("total_bytes"),
            o.get("used_bytes"),
            o.get("stored_bytes"),
            o["used_by"],
            o.get("owner"),
            o["created_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class VolumeList:
    """All volumes, by name."""

    items: list[Volume]
    """The volumes."""

    @classmethod
    def from_json(cls, o: Any) -> VolumeList:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            [Volume.from_json(one) for one in o["items"]],
        )


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume that a sandbox has."""

    id: str
    """The volume."""
    name: str
    """Its name when the sandbox was made."""
    path: str
    """Where it is mounted inside."""
    read_only: bool
    """The sandbox cannot write to it."""
    subpath: str | None
    """The directory of the volume that is mounted, as a path from the volume's root; all of it when absent."""

    @classmethod
    def from_json(cls, o: Any) -> VolumeMount:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["id"],
            o["name"],
            o["path"],
            o["read_only"],
            o.get("subpath"),
        )


@dataclass(frozen=True, slots=True)
class WatchMessage:
    """Event on the watch stream (SSE)."""

    change: WatchChange
    """What happened."""
    path: str
    """The path."""
    from_: str | None
    """Where a moved path came from."""

    @classmethod
    def from_json(cls, o: Any) -> WatchMessage:
        """Reads what the server sent; fields it does not know are left out."""
        return cls(
            o["change"],
            o["path"],
            o.get("from"),
        )
