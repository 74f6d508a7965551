# Made by sdk/generate from openapi/atoll.json.
"""What requests carry, as the API's document says."""

from __future__ import annotations

from typing import Literal, TypedDict, Union

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

EgressMode = Literal[
    "enforce",
    "observe",
]
"""What happens to what may not pass."""

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

KeyFormat = Literal[
    "atoll",
    "e2b",
    "daytona",
    "runloop",
    "modal",
]
"""What a key looks like. Clients of other vendors check, or are made for, keys of a certain shape."""

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

PauseMode = Literal[
    "frozen",
    "memory",
    "filesystem",
]
"""What of a paused sandbox is kept."""

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

Scope = Literal[
    "read",
    "exec",
    "manage",
    "admin",
]
"""What a key may do. Each includes the ones before it."""

TraceMode = Literal[
    "off",
    "on",
    "strict",
]
"""How much is recorded. Ordered: a later one records no less."""

Visibility = Literal[
    "shared",
    "private",
]
"""Whether keys without a grant see a sandbox."""


CommandText = Union[str, list[str]]
"""A command: a line for the shell, or program and arguments."""


class _AccessFileRequired(TypedDict):
    path: str
    """Absolute path in the sandbox."""


class AccessFile(_AccessFileRequired, total=False):
    """A file that an access is to."""

    media_type: str | None
    """Media type to answer with, instead of `application/octet-stream`."""
    inline: bool
    """Let a browser show it rather than save it. It runs nothing either way."""


class AnswerApproval(TypedDict):
    """Answers an approval."""

    option: str
    """The id of one of its options."""


class AttachClientMessageCloseStdin(TypedDict):
    """Standard input ends here."""

    type: Literal["close_stdin"]


class AttachClientMessageResize(TypedDict):
    """The terminal has a new size."""

    cols: int
    """Columns."""
    rows: int
    """Rows."""
    type: Literal["resize"]


class _AttachClientMessageSignalRequired(TypedDict):
    signal: str
    """Name (`TERM`, `SIGINT`) or number."""
    type: Literal["signal"]


class AttachClientMessageSignal(_AttachClientMessageSignalRequired, total=False):
    """Send a signal."""

    tree: bool
    """To the whole tree rather than the process group."""


AttachClientMessage = Union[AttachClientMessageCloseStdin, AttachClientMessageResize, AttachClientMessageSignal]
"""Text message of the client on the attach WebSocket. Standard input travels in binary messages."""


class AutoCheckpoints(TypedDict):
    """Checkpoints that a sandbox takes by itself: when it was made, and after every exec."""

    keep: int
    """How many of them are kept: 1 to 1000. Those that were taken by request do not count."""


class BasicAuth(TypedDict):
    """User name and password."""

    username: str
    """User name."""
    password: str
    """Password."""


class BatchCreate(TypedDict):
    """Makes several sandboxes at once."""

    sandboxes: list[CreateSandbox]
    """At most 256."""


class Budget(TypedDict, total=False):
    """Hard limits on what a sandbox may use over its whole life. Absent ones do not limit."""

    cpu_ms: int | None
    """CPU time of everything in it, milliseconds."""
    running_ms: int | None
    """Wall time in which it runs, milliseconds. Paused time does not count."""
    egress_bytes: int | None
    """Bytes that leave it."""
    on_exhausted: OnExhausted
    """What happens then."""


class _ChmodRequired(TypedDict):
    path: str
    """The path."""


class Chmod(_ChmodRequired, total=False):
    """Changes permissions, owner or both."""

    mode: str | None
    """New permissions in octal."""
    user: str | None
    """New owner: name or id, optionally `:group`."""


_CopyStepWords = TypedDict(
    "_CopyStepWords",
    {
        "from": "str | None",
    },
    total=False,
)


class _CopyStepRequired(TypedDict):
    sources: list[str]
    """Paths or patterns in the context, as in `COPY`."""
    destination: str
    """Whereto: a directory if it ends with `/`."""


class CopyStep(_CopyStepWords, _CopyStepRequired, total=False):
    """A step that copies."""

    user: str | None
    """Owner of the copies."""
    mode: str | None
    """Permissions of the copies, octal."""
    keep_links: bool
    """Symbolic links that the sources name are copied as links, wherever they lead; otherwise what they lead to is
    copied. Below a directory links are always copied as links. Not with `from`.
    """


class CreateAccess(TypedDict, total=False):
    """Lets clients without an API key reach a port or a file. Exactly one of `port`, `all_ports` and `file`."""

    port: int | None
    """One TCP port."""
    all_ports: bool
    """Every TCP port."""
    file: AccessFile | None
    """The bytes of a file, to read."""
    public: bool
    """For everybody, without a token: ports only. Needs the scope `manage`."""
    name: str | None
    """What it is for, for people."""
    ttl_ms: int | None
    """It ends this long from now; with the sandbox when absent."""


class _CreateAgentRequired(TypedDict):
    name: str
    """Its name, unique among agents: 1 to 63 lower-case letters, digits and hyphens."""


class CreateAgent(_CreateAgentRequired, total=False):
    """Declares an agent. Give one of `argv`, `shell` and `service`, and either `sandbox` or `template`."""

    sandbox: str | None
    """The sandbox it lives in, by id or name."""
    template: str | None
    """Makes a sandbox of this template for it, with its name, which is deleted with it. Needs the scope `manage`.
    """
    egress: EgressPolicy | None
    """What that may reach; the template's, or the server's default, when absent."""
    ttl_ms: int | None
    """Delete that, and the agent with it, this long after it was made; the template's when absent."""
    argv: list[str] | None
    """Program and arguments, run once for each session when there is a message."""
    shell: str | None
    """A line for `/bin/sh -c`."""
    service: str | None
    """The service of the sandbox that is the agent's server, for the adapters `opencode` and `http`."""
    port: int | None
    """Where that listens on the sandbox's loopback; the port on which the service is ready when absent."""
    adapter: Adapter | None
    """What it speaks: on its standard input and output, or over HTTP; `jsonl` when absent."""
    env: dict[str, str]
    """Variables on top of the sandbox's."""
    cwd: str | None
    """Working directory; the sandbox's when absent."""
    user: str | None
    """User name or id, optionally `:group`; the sandbox's when absent."""
    profile: str | None
    """The profile of its sandbox that its processes begin in; the sandbox's default when absent."""
    layer: str | None
    """The agent layer that its program is in, which is mounted at `/opt/agents/LAYER`. Needs the scope `manage`."""
    version: str | None
    """The version of that; when absent the one that the sandbox has, or else the latest."""
    budget: ModelBudget | None
    """What all of its sessions together may ask of models, also those that were deleted."""
    session_budget: ModelBudget | None
    """What each of its sessions may ask of models."""


class _CreateAgentScheduleRequired(TypedDict):
    text: str
    """What to say: at most 16 KiB."""


class CreateAgentSchedule(_CreateAgentScheduleRequired, total=False):
    """Has messages sent to an agent by time. Give either `every_ms` or `cron`."""

    every_ms: int | None
    """Each time that so many milliseconds have passed since now: at least 1000."""
    cron: str | None
    """When a clock shows it: minute, hour, day of the month, month, day of the week, as `0 9 * * 1-5`."""
    time_zone: str | None
    """The clock's time zone, as the IANA database names it; `UTC` when absent."""
    thread: str | None
    """The thread of the session that gets the messages, which is begun if there is none; `main` when absent."""


class CreateAgentSession(TypedDict, total=False):
    """Begins a session."""

    thread: str | None
    """A name of yours for it: at most 128 printable ASCII characters. If the agent has a session with it, that is
    the answer.
    """


class CreateBuild(TypedDict, total=False):
    """Builds the next version of a template, from a Dockerfile or a step list."""

    name: str
    """Name of the template: lower-case letters, digits, `-` and `_`."""
    tags: list[str]
    """Tags that point to the version that it makes: names for versions, as in `name:tag`."""
    dockerfile: str | None
    """The Dockerfile."""
    steps: list[Step] | None
    """The step list, instead."""
    ignore: str | None
    """What to leave out of the context, as in a `.dockerignore`; the one in the context when absent."""
    args: dict[str, str]
    """Values of `ARG`s."""
    secrets: dict[str, str]
    """Values for `RUN --mount=type=secret`, by their `id`. Kept nowhere, and in no answer."""
    target: str | None
    """The stage that is wanted, by name or number; the last when absent."""
    no_cache: bool
    """Do every step again."""
    start: StartFrom | None
    """What runs in every sandbox of the template: `{"command": …}`, or `"image"` for `ENTRYPOINT` and `CMD`.
    Nothing when absent.
    """
    ready: Ready | None
    """When a sandbox is ready: its creation waits for it."""
    restart: Restart | None
    """When what the template starts is started again after it ended; never when absent. Each boot starts it anyway.
    """
    verify: bool
    """Start what the template starts once, in a sandbox that is deleted again, and wait until it is ready: what
    fails then fails the build, and not the first creation.
    """
    memory: bool
    """Boot one sandbox of the template until it is ready, and let the others go on from its memory."""
    isolation: IsolationLevel | None
    """Isolation level of the build and of the template."""
    resources: ResourcesDraft
    """Limits of the steps' sandbox and of the template."""
    labels: dict[str, str]
    """Labels that every sandbox of the template gets."""
    egress: EgressPolicy | None
    """What the steps may reach; the server's default when absent."""
    template_egress: EgressPolicy | None
    """What sandboxes of the template may reach; the server's default when absent."""
    ttl_ms: int | None
    """Time to live of the template's sandboxes."""
    idle_timeout_ms: int | None
    """Idle timeout of the template's sandboxes."""
    timeout_ms: int | None
    """Give up after this long; one hour when absent."""
    services: list[CreateService]
    """Services that every sandbox of the template begins with; those of the template that it is built on when there
    are none.
    """


class CreateCheckpoint(TypedDict, total=False):
    """Takes a checkpoint of a sandbox."""

    comment: str | None
    """A line of text, to remember what it is."""


class CreateContext(TypedDict, total=False):
    """Makes a context."""

    name: str | None
    """A name of yours, unique in the sandbox: 1 to 63 lower-case letters, digits and hyphens. If the sandbox has
    the same context with it already, that is the answer.
    """
    language: str | None
    """Its language; `python` when absent."""
    cwd: str | None
    """Where its cells begin; the home of the interpreter's user when absent."""
    env: dict[str, str]
    """Variables of each of its cells."""


class CreateExec(TypedDict, total=False):
    """Runs a command. Give either `argv` or `shell`."""

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
    profile: str | None
    """The sandbox's profile that it runs in; the sandbox's default when absent."""
    tty: TtySize | None
    """Run on a terminal of this size."""
    stdin: bool
    """Keep standard input open; otherwise the command reads end-of-file at once."""
    timeout_ms: int | None
    """Kill its tree this long after start."""
    idle_timeout_ms: int | None
    """Kill its tree when it has written nothing for this long."""
    kill_on_disconnect: bool
    """Kill its tree when the last attached client goes away."""
    detach_timeout_ms: int | None
    """Kill the tree when no client has been attached for this long. Clients are those that read with `attach`."""
    keep_output_bytes: int | None
    """Output kept on the host; the oldest goes first and a gap is announced."""
    idempotency_key: str | None
    """A second request with the same key in the same sandbox returns the first exec."""
    wait_ms: int | None
    """Wait up to this long for the exit before answering (at most 60,000). The answer then carries the output, if
    it is small.
    """


class _CreateKeyRequired(TypedDict):
    name: str
    """What it is for, for people."""
    scope: Scope
    """The highest thing it may do."""


class CreateKey(_CreateKeyRequired, total=False):
    """Makes a key."""

    ttl_ms: int | None
    """It stops working this long from now."""
    format: KeyFormat
    """What it looks like, for clients of other vendors that want keys of theirs. It opens the same."""
    project: str | None
    """The project that it belongs to, by id or name; none when absent. Administrators are of none."""


class _CreateProjectRequired(TypedDict):
    name: str
    """Its name."""


class CreateProject(_CreateProjectRequired, total=False):
    """Makes a project."""

    quota: Quota
    """How much it may have; what is absent is not limited."""
    defaults: ProjectDefaults
    """What its sandboxes are when neither request nor template says."""


class CreateSandbox(TypedDict, total=False):
    """Makes a sandbox. Everything is optional: `{}` makes one from the image `host`."""

    visibility: Visibility | None
    """Who sees it, from its first moment on: `private` is you, administrators, and whom you grant a role. When
    absent: `private` if it goes on from a private snapshot, else the server's default.
    """
    name: str | None
    """A name, unique among existing sandboxes: a DNS label."""
    image: str | None
    """The image: `host`, or one that was pulled, loaded or imported."""
    template: str | None
    """A template: `name` for its newest version, or `name:version`."""
    snapshot: str | None
    """A snapshot to begin with: its id, `name` or `name:tag`. It brings its image, environment and limits."""
    memory: bool
    """Go on from the snapshot's memory, too: its processes run in the new sandbox. The snapshot must have been
    taken with memory, on this host with these programs; limits can be lower than its own and not higher.
    """
    auto_checkpoints: AutoCheckpoints | None
    """Take checkpoints by itself: when it is made, and after every exec."""
    durability: Durability | None
    """On a server of several with an object store: how it outlives its node."""
    isolation: IsolationLevel | None
    """How strongly it is cut off. Never silently downgraded."""
    node_labels: dict[str, str]
    """In a cluster: labels that the node must have on which it is made."""
    resources: ResourcesDraft
    """Limits."""
    env: dict[str, str]
    """Environment of every exec."""
    labels: dict[str, str]
    """Labels, to find it again."""
    annotations: dict[str, str]
    """Texts kept beside it for you: at most 32 keys, 128 KiB together; never interpreted."""
    user: str | None
    """Default user of execs: name or id, optionally `:group`."""
    workdir: str | None
    """Default working directory; made when it is absent."""
    ttl_ms: int | None
    """Delete it this long after creation."""
    idle_timeout_ms: int | None
    """Delete it after this long without a running exec or a request."""
    secrets: dict[str, str]
    """Secrets for this sandbox alone, by name: its injection rules find them before the server's. Never returned.
    """
    egress: EgressPolicy | None
    """What it may reach; the template's, or the server's default, when absent."""
    volumes: list[VolumeMountDraft]
    """Volumes to mount."""
    on_idle: OnIdle | None
    """What the end of the idle timeout means; `delete` when absent."""
    idle_freeze_ms: int | None
    """Freeze it after this long without a running exec or a request. The next use thaws it; its state stays
    `running`. Processes that execs left behind stand still meanwhile.
    """
    hibernate_after_ms: int | None
    """Pause it as `filesystem` when it has been paused as `frozen` for this long."""
    delete_paused_after_ms: int | None
    """Delete it when it has been paused, in whatever mode, for this long."""
    budget: Budget | None
    """Hard limits on what it may use in its whole life."""
    trace: TraceMode | None
    """How much of what it does is recorded; as the server says when absent, and never less than that."""
    trace_files: TraceFiles | None
    """Files of which the journal tells when they change, by the word of the sandbox's agent. Needs a sandbox that
    is recorded.
    """
    execution: ExecutionPolicy | None
    """Which programs may run; as the template says, or all, when absent. Needs a sandbox that is recorded."""
    layers: dict[str, str]
    """Agent layers, by name: the image that is mounted read-only at `/opt/agents/NAME`. It has one layer, as those
    that `atoll agent build` and `POST /v1/images/import` make.
    """
    profiles: Profiles | None
    """Profiles of its processes; the template's, or none, when absent. They stay as they are. Containers only, and
    a sandbox that is recorded.
    """
    services: list[CreateService]
    """Services that it begins with, beside its template's: its creation waits until they have settled. One with the
    name of a template's stands in its place.
    """


class _CreateServiceRequired(TypedDict):
    name: str
    """Its name, unique in the sandbox: 1 to 63 lower-case letters, digits and hyphens."""


class CreateService(_CreateServiceRequired, total=False):
    """Declares a service. Give either `argv` or `shell`."""

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


class CreateSnapshot(TypedDict, total=False):
    """Takes a snapshot of a sandbox."""

    tags: list[str]
    """References that shall point to it, as `name` (which means `name:latest`) or `name:tag`. They leave what they
    point to now.
    """
    comment: str | None
    """A line of text, to remember what it is."""
    env: dict[str, str]
    """Variables of sandboxes that are made from it, on top of those of its sandbox."""
    user: str | None
    """Their default user, in place of its sandbox's."""
    workdir: str | None
    """Their default working directory, in place of its sandbox's."""
    memory: bool
    """With its memory and processes: at the isolation level `microvm`."""


class _CreateSshKeyRequired(TypedDict):
    name: str
    """What it is for, for people."""
    public_key: str
    """The line of a file such as `~/.ssh/id_ed25519.pub`."""


class CreateSshKey(_CreateSshKeyRequired, total=False):
    """Registers an SSH public key for the API key of the request."""

    ttl_ms: int | None
    """It stops working this long from now."""


class _CreateTemplateRequired(TypedDict):
    name: str
    """Its name: lower-case letters, digits, `-` and `_`."""


class CreateTemplate(_CreateTemplateRequired, total=False):
    """Makes a template, or the next version of an existing one."""

    image: str
    """The image. Leave it out when there is a snapshot."""
    snapshot: str | None
    """The snapshot that its sandboxes begin with: id, `name` or `name:tag`, looked up once, now."""
    isolation: IsolationLevel | None
    """The isolation level."""
    resources: ResourcesDraft
    """Limits."""
    env: dict[str, str]
    """Environment."""
    labels: dict[str, str]
    """Labels that every sandbox of it gets."""
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
    """What its sandboxes may reach; the server's default when absent."""
    start: CommandText | None
    """What runs in every sandbox from its creation on: a line for the shell, or program and arguments."""
    ready: Ready | None
    """When a sandbox is ready: its creation waits for it."""
    restart: Restart | None
    """When what runs in every sandbox is started again after it ended; never when absent. Each boot starts it
    anyway.
    """
    memory: bool
    """Boot one sandbox until it is ready, and let the others go on from its memory. Needs a start command, and an
    isolation level that can copy sandboxes with their memory.
    """
    execution: ExecutionPolicy | None
    """Which programs may run in its sandboxes; all when absent."""
    profiles: Profiles | None
    """Profiles of the processes of its sandboxes; none when absent."""
    services: list[CreateService]
    """Services that every sandbox of it begins with: its creation waits until they have settled."""


_CreateVolumeWords = TypedDict(
    "_CreateVolumeWords",
    {
        "from": "str | None",
    },
    total=False,
)


class _CreateVolumeRequired(TypedDict):
    name: str
    """Its name: 1 to 63 letters, digits, `-` and `_`."""


class CreateVolume(_CreateVolumeWords, _CreateVolumeRequired, total=False):
    """Makes a volume."""

    size_bytes: int | None
    """Its size; 10 GiB when absent. A copy has the size of its source."""
    read_only: bool
    """With `from`: it is a snapshot, which cannot be written to."""


class Durability(TypedDict, total=False):
    """How a sandbox outlives its node: what it has on its disk is copied to the object store while it runs, and
    another node goes on from the last copy.
    """

    every_ms: int | None
    """This long after the last copy was begun, milliseconds: one second or more."""
    after_exec: bool
    """After each exec."""


class EgressLimits(TypedDict, total=False):
    """How much of the network one sandbox may use."""

    connections: int | None
    """Open connections to the outside at once; 512 when absent."""
    bytes_per_s: int | None
    """Bytes per second, in each direction; unlimited when absent."""


class EgressPolicy(TypedDict, total=False):
    """What a sandbox may reach. The default is nothing."""

    internet: Internet
    """What happens where no rule speaks."""
    mode: EgressMode
    """Whether what may not pass is refused, or only told of in the journal."""
    rules: list[Rule]
    """Looked at in order; the first that matches decides."""
    inject: list[InjectRule]
    """What is put into requests on their way out: credentials that the sandbox itself does not have."""
    limits: EgressLimits
    """How much."""


class ExecutionPolicy(TypedDict, total=False):
    """Which programs may run. It is about programs that the kernel is asked to execute, by whomever and with
    whatever rights inside. What a program that may run does with its input is its own matter: an interpreter
    that may run runs any script.
    """

    programs: Programs
    """Which programs may run that no rule names."""
    mode: ExecutionMode
    """Whether others are refused, or only told of in the journal."""
    rules: list[ExecutionRule]
    """Exceptions: the first rule that names a program decides."""


class _ExecutionRuleRequired(TypedDict):
    action: ExecutionAction
    """Whether they may run."""


class ExecutionRule(_ExecutionRuleRequired, total=False):
    """What holds for some programs of the image: those at a path, those with a digest, or the one that has both;
    those of a layer, also at a path; those of a package.
    """

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


class _FindFilesRequired(TypedDict):
    path: str
    """Absolute path of the directory below which to look."""


class FindFiles(_FindFilesRequired, total=False):
    """Finds files by the pattern of their path, or lines in them."""

    pattern: str | None
    """What paths below it must look like; all when absent. `*`, `?` and `[…]` stand for characters of one name,
    `**` for any number of names.
    """
    text: str | None
    """Text to look for in the files, as it is: then lines are found, else files."""
    limit: int | None
    """Most that is found: 1 to 100,000, 1000 when absent."""


class _ForkAgentRequired(TypedDict):
    count: int
    """How many: 1 to 256."""


class ForkAgent(_ForkAgentRequired, total=False):
    """Makes forks of an agent: the same agent, each in a sandbox that goes on from where its own is and is deleted
    with it.
    """

    at: str | None
    """The point to go on from: the number of a checkpoint of its sandbox, or a snapshot. Now when absent."""
    memory: bool
    """The sandbox's processes go on in each fork, with their memory, too: at the isolation level `microvm`."""
    name: str | None
    """What the names of forks and their sandboxes begin with: `name-1`, `name-2`, …; the agent's and `-fork` when
    absent.
    """


class ForkSandbox(TypedDict, total=False):
    """Makes sandboxes that go on from where another is."""

    count: int
    """How many: 1 to 256."""
    at: str | None
    """The point to go on from: the number of a checkpoint, or a snapshot. Now when absent."""
    memory: bool
    """Its processes go on in each child, with their memory, too: at the isolation level `microvm`. There they
    belong to no exec. With `at`, that snapshot must have been taken with memory.
    """
    name: str | None
    """Name of a single child, or what the names of several begin with: `name-1`, `name-2`, …."""
    labels: dict[str, str]
    """Labels on top of the parent's."""
    env: dict[str, str]
    """Variables on top of the parent's."""
    ttl_ms: int | None
    """Time to live from the fork on; when absent as long as the parent was given, when it was made or when that was
    changed last.
    """


_InjectRuleWords = TypedDict(
    "_InjectRuleWords",
    {
        "from": "Origin | None",
    },
    total=False,
)


class _InjectRuleRequired(TypedDict):
    name: str
    """Its name, unique among the sandbox's rules; shown in refusals and in the record of uses."""
    hosts: list[str]
    """For these hosts: names, or `*.example.com` for every name below."""


class InjectRule(_InjectRuleWords, _InjectRuleRequired, total=False):
    """One rule."""

    ports: list[int]
    """On these ports; 443 (and 80 for what may travel in the clear) when empty."""
    methods: list[str]
    """With these methods; any when empty."""
    paths: list[str]
    """With paths that are one of these or lie below it; any when empty."""
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


class _MkdirRequired(TypedDict):
    path: str
    """The path."""


class Mkdir(_MkdirRequired, total=False):
    """Makes a directory."""

    mode: str | None
    """Permissions in octal; `0755` when absent."""
    user: str | None
    """Owner; the sandbox's default user when absent."""
    parents: bool
    """Make missing parents, and do not mind if it exists."""


class ModelBudget(TypedDict, total=False):
    """How much may be asked of models. What is absent is not bounded."""

    requests: int | None
    """Requests."""
    tokens: int | None
    """Tokens of both kinds. The answer with which they are used up is passed on; the next request is refused."""


_MoveFileWords = TypedDict(
    "_MoveFileWords",
    {
        "from": "str",
    },
)


class _MoveFileRequired(TypedDict):
    to: str
    """To."""


class MoveFile(_MoveFileWords, _MoveFileRequired, total=False):
    """Renames a file or directory."""

    no_replace: bool
    """Fail when `to` exists."""


class OriginProgram(TypedDict):
    """By path in the image: `/usr/bin/git`, also through links of the image; `/usr/lib/git-core/*` is every program
    in a directory, `/opt/tools/**` every one below it.
    """

    program: str
    """By path in the image: `/usr/bin/git`, also through links of the image; `/usr/lib/git-core/*` is every program
    in a directory, `/opt/tools/**` every one below it.
    """


class OriginDigest(TypedDict):
    """By content: `sha256:` or `blake3:` and 64 hexadecimal digits."""

    digest: str
    """By content: `sha256:` or `blake3:` and 64 hexadecimal digits."""


class OriginProfile(TypedDict):
    """By the profile that the process is in."""

    profile: str
    """By the profile that the process is in."""


class OriginExec(TypedDict):
    """By the exec that the process belongs to, with all that it started, by its id."""

    exec: str
    """By the exec that the process belongs to, with all that it started, by its id."""


Origin = Union[OriginProgram, OriginDigest, OriginProfile, OriginExec]
"""Whose process must have made a connection: a program of the image, as the image brought it, whatever runs in a
profile, or what one exec started. The kernel of the host says which it was.
"""


class PauseSandbox(TypedDict, total=False):
    """Pauses a sandbox."""

    mode: PauseMode | None
    """What is kept; `frozen` when absent."""


class _PlaceholderRequired(TypedDict):
    secret: str
    """The secret."""


class Placeholder(_PlaceholderRequired, total=False):
    """A text inside the sandbox that stands for a secret. It is worth nothing anywhere else."""

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


class PollDeviceLogin(TypedDict):
    """Asks what has become of a login."""

    login: str
    """As it began."""


class _PoolSpecRequired(TypedDict):
    min: int
    """Kept ready whatever the demand."""
    max: int
    """Most that are kept ready."""


class PoolSpec(_PoolSpecRequired, total=False):
    """How many members a pool keeps."""

    max_age_ms: int | None
    """Members older than this are replaced, milliseconds. One hour when absent."""


class Profile(TypedDict, total=False):
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
    limits: ProfileLimits
    """What each process may use that begins in it, or gets into it; less than the sandbox has."""


class ProfileLimits(TypedDict, total=False):
    """Limits of each process of a profile. They are inherited, and no process inside can raise them. All together
    have the sandbox's limits.
    """

    memory_bytes: int | None
    """Memory that one process may write to, bytes; asking for more fails."""
    processes: int | None
    """A process of it makes no other while its user has so many in the sandbox, threads included."""
    cpu_seconds: int | None
    """CPU time of one process, seconds; then it is killed."""


class Profiles(TypedDict, total=False):
    """The profiles of a sandbox. A process is in one from its exec's first moment on, or in none; it leaves it only
    by running a program, and only for one that the profile names.
    """

    default: str | None
    """The profile of execs that ask for none; in none when absent."""
    named: dict[str, Profile]
    """By name. What rules of the network and of secrets say is `from: {profile: NAME}` is for its processes alone.
    """


class ProjectDefaults(TypedDict, total=False):
    """What sandboxes of a project are when neither caller nor template says: before the server's own defaults."""

    image: str | None
    """The image."""
    isolation: IsolationLevel | None
    """The isolation level."""
    resources: ResourcesDraft
    """Limits."""
    visibility: Visibility | None
    """Whether the other keys of the project see a sandbox."""
    ttl_ms: int | None
    """Delete it this long after creation."""
    idle_timeout_ms: int | None
    """Delete it after this long without a running exec or a request."""
    egress: EgressPolicy | None
    """What it may reach."""


class PruneBuildCache(TypedDict, total=False):
    """How much of the cache to keep."""

    keep_bytes: int
    """The longest unused entries go until the rest has this many bytes; 0 removes all."""


class _PullImageRequired(TypedDict):
    reference: str
    """Reference, such as `docker.io/library/python:3.12`."""


class PullImage(_PullImageRequired, total=False):
    """Pulls an image."""

    credentials: RegistryCredentials | None
    """Credentials for this pull; the stored ones of the registry when absent."""
    platform: str | None
    """`os/architecture`; the host's when absent."""
    insecure_http: bool
    """Speak plain HTTP to this registry. Loopback registries may always."""
    ca_pem: str | None
    """Certificate authorities to trust for this registry besides the public ones, PEM."""


_PullSnapshotWords = TypedDict(
    "_PullSnapshotWords",
    {
        "from": "str",
    },
)


class PullSnapshot(_PullSnapshotWords, total=False):
    """Fetches a snapshot from the object store."""

    tags: list[str]
    """References here that shall point to it; the same as there when absent."""
    visibility: Visibility | None
    """Who sees it: `private` is you and administrators. The server's default when absent; what you sent as a
    private snapshot is private in any case.
    """


class PushSnapshot(TypedDict, total=False):
    """Sends a snapshot to the object store."""

    tags: list[str]
    """References there that shall name it; those that it has here when absent."""


class PutGrant(TypedDict):
    """Gives a role."""

    role: Role
    """The most it may do with the sandbox."""


class _PutPoolRequired(TypedDict):
    min: int
    """Kept ready whatever the demand."""
    max: int
    """Most that are kept ready."""


class PutPool(_PutPoolRequired, total=False):
    """Sets a pool up, or changes its size. Exactly one of `template` and `image` says what it is of."""

    template: str | None
    """Name of a template: members are made of its newest version."""
    image: str | None
    """An image: members have the default limits."""
    max_age_ms: int | None
    """Members older than this are replaced. One hour when absent."""


class PutSecret(TypedDict, total=False):
    """Makes a secret, gives it a new value, or changes its scope or note. What is absent stays as it is."""

    value: str | None
    """A new value: the next version. A new secret needs one. Never returned."""
    scope: SecretScope | None
    """Where it may go and who may use it. A new secret needs it."""
    note: str | None
    """What people should know about it."""


class Quota(TypedDict, total=False):
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


class Ready(TypedDict, total=False):
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


class RegistryCredentials(TypedDict):
    """User name and password for a registry."""

    username: str
    """User name."""
    password: str
    """Password or token. Never returned."""


class ResourcesDraft(TypedDict, total=False):
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


class RollbackSandbox(TypedDict, total=False):
    """Puts a sandbox back to an earlier state."""

    to: str | None
    """The number of a checkpoint, or a snapshot on the same image. When absent, back to before the last command
    began, as far as there is a checkpoint of that.
    """


_RuleWords = TypedDict(
    "_RuleWords",
    {
        "from": "Origin | None",
    },
    total=False,
)


class _RuleRequired(TypedDict):
    action: Action
    """What it says."""


class Rule(_RuleWords, _RuleRequired, total=False):
    """One rule. What is absent is not looked at; all that is present must match. `methods` and `path` speak of HTTP
    requests. For HTTPS they hold where the gateway opens TLS; where it does not, a rule that allows does not
    match and one that denies does.
    """

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


class _RunCellRequired(TypedDict):
    code: str
    """The code: at most 512 KiB."""


class RunCell(_RunCellRequired, total=False):
    """Runs code in a context."""

    env: dict[str, str]
    """Variables on top of the context's, for this cell."""
    timeout_ms: int | None
    """Interrupt it this long after it was asked for; never when absent."""
    idempotency_key: str | None
    """A second request with the same key in the same sandbox returns the first cell. Execs and cells share their
    keys.
    """
    wait_ms: int | None
    """Wait up to this long for its end (at most 60,000)."""


class _SecretScopeRequired(TypedDict):
    hosts: list[str]
    """Hosts that may receive it; `*` means any."""


class SecretScope(_SecretScopeRequired, total=False):
    """Where a secret may go: the lock on the secret itself, whatever a sandbox's rules say."""

    templates: list[str]
    """Names of templates whose sandboxes may use it; any sandbox when empty."""
    sandboxes: list[str]
    """Ids or names of sandboxes that may use it; any when empty."""
    keys: list[str]
    """API keys whose sandboxes may use it; any when empty."""


class _SendAgentMessageRequired(TypedDict):
    text: str
    """What to say: at most 256 KiB."""


class SendAgentMessage(_SendAgentMessageRequired, total=False):
    """Sends a message."""

    key: str | None
    """Sent again with the same key, the message is the one that was taken: at most 128 printable ASCII characters.
    """


class ServiceHealth(TypedDict, total=False):
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


class ServiceReady(TypedDict, total=False):
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


class SetTemplateTag(TypedDict, total=False):
    """Where a tag points."""

    version: int | None
    """The version; the newest when absent."""


class SetVisibility(TypedDict, total=False):
    """Sets whether keys without a grant see a sandbox."""

    visibility: Visibility | None
    """`null` leaves it to the server's default."""


class _SignalExecRequired(TypedDict):
    signal: str
    """Name (`TERM`, `SIGINT`) or number."""


class SignalExec(_SignalExecRequired, total=False):
    """Sends a signal."""

    tree: bool
    """To the whole tree rather than the process group."""


class StartFromCommand(TypedDict):
    """This command."""

    command: CommandText
    """This command."""


StartFrom = Union[StartFromCommand, Literal["image"]]
"""What the built template starts in each of its sandboxes."""


StepFrom = TypedDict(
    "StepFrom",
    {
        "from": "str",
    },
)
"""The image to begin with; only first."""


class StepRun(TypedDict):
    """Runs a command."""

    run: CommandText
    """Runs a command."""


class StepCopy(TypedDict):
    """Copies files of the context, or of an image."""

    copy: CopyStep
    """Copies files of the context, or of an image."""


class StepEnv(TypedDict):
    """Sets variables."""

    env: dict[str, str]
    """Sets variables."""


class StepLabel(TypedDict):
    """Labels, for the record."""

    label: dict[str, str]
    """Labels, for the record."""


class StepWorkdir(TypedDict):
    """Changes the working directory."""

    workdir: str
    """Changes the working directory."""


class StepUser(TypedDict):
    """Changes the user."""

    user: str
    """Changes the user."""


class StepCmd(TypedDict):
    """Sets the default command."""

    cmd: CommandText
    """Sets the default command."""


class StepEntrypoint(TypedDict):
    """Sets the entry point."""

    entrypoint: CommandText
    """Sets the entry point."""


Step = Union[StepFrom, StepRun, StepCopy, StepEnv, StepLabel, StepWorkdir, StepUser, StepCmd, StepEntrypoint]
"""One step of a step list."""


class TagSnapshot(TypedDict):
    """Makes a reference point to a snapshot."""

    tag: str
    """`name` or `name:tag`. It leaves what it points to now."""


class _TakeLeaseRequired(TypedDict):
    ttl_ms: int
    """It ends by itself this long from now; at most a day."""


class TakeLease(_TakeLeaseRequired, total=False):
    """Asks for exclusive use."""

    holder: str | None
    """The name that others are shown: 1 to 128 bytes. The key's id when absent."""


class TraceFiles(TypedDict, total=False):
    """Files of which is told when they change."""

    paths: list[str]
    """Files, and directories with all below them, from the moment on that they are there."""
    digests: bool
    """Whether the content of what was written is told by its BLAKE3, up to 64 MiB for each file."""


class TtySize(TypedDict):
    """Size of a terminal in characters."""

    cols: int
    """Columns."""
    rows: int
    """Rows."""


class UpdateAgent(TypedDict, total=False):
    """Puts another version of an agent's program in its sandbox."""

    version: str | None
    """Which; the latest when absent."""


class UpdateNode(TypedDict):
    """Changes a node."""

    draining: bool
    """Whether it takes no new sandboxes."""


class UpdateProject(TypedDict, total=False):
    """Changes a project. Absent fields stay as they are."""

    name: str | None
    """A new name."""
    quota: Quota | None
    """Replaces the whole quota. What is above it already stays: nothing more comes until there is less."""
    defaults: ProjectDefaults | None
    """Replaces all defaults."""


class UpdateSandbox(TypedDict, total=False):
    """Changes a sandbox. Absent fields stay as they are."""

    name: str | None
    """A new name. The host name inside stays."""
    env: dict[str, str | None]
    """Sets variables of later execs; `null` removes one."""
    user: str | None
    """New default user of later execs."""
    workdir: str | None
    """New default working directory of later execs. `null` is the user's home."""
    annotations: dict[str, str | None]
    """Sets annotations; `null` removes one."""
    labels: dict[str, str] | None
    """Replaces all labels."""
    ttl_ms: int | None
    """Extends (or shortens) its life: it ends this long from now. `null` removes the end."""
    idle_timeout_ms: int | None
    """New idle timeout. `null` removes it."""
    resources: ResourcesDraft
    """New limits; the disk's cannot change."""
    secrets: dict[str, str]
    """Adds secrets for this sandbox alone, or gives them new values. Never returned."""
    egress: EgressPolicy | None
    """Replaces what it may reach, at once: connections that are no longer allowed are cut."""
    on_idle: OnIdle | None
    """What the end of the idle timeout means."""
    idle_freeze_ms: int | None
    """Freeze it after this long without use. `null` removes it."""
    hibernate_after_ms: int | None
    """Pause it as `filesystem` when it has been paused as `frozen` for this long. `null` removes it."""
    delete_paused_after_ms: int | None
    """Delete it when it has been paused for this long. `null` removes it."""
    budget: Budget | None
    """Replaces the budget. What was used stays used."""
    execution: ExecutionPolicy | None
    """Replaces which programs may run, at once. What runs already goes on."""
    layers: dict[str, str | None]
    """Mounts other images as agent layers, at once: what is open in one that goes stays open. `null` takes one
    away. At the isolation level `gvisor` it has them when it is next started.
    """


class _VolumeMountDraftRequired(TypedDict):
    volume: str
    """Name or id of the volume."""
    path: str
    """Where it is mounted inside: an absolute path, made when it is absent."""


class VolumeMountDraft(_VolumeMountDraftRequired, total=False):
    """A volume that a sandbox is to have."""

    read_only: bool
    """The sandbox cannot write to it."""
    subpath: str | None
    """The directory of the volume that is mounted, made when it is absent: nothing beside it can be reached. All of
    the volume when the request does not say.
    """
