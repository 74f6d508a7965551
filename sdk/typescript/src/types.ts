// Made by sdk/generate from openapi/atoll.json.

/** What executes the instructions of a virtual machine. The weaker comes first. */
export type Accelerator =
  | "emulated"
  | "kvm";

/** An access, without its token. */
export interface Access {
  /** Its id. */
  id: string;
  /** Id of the sandbox; the access ends with it. */
  sandbox: string;
  /** The TCP port, if it is to one. */
  port?: number | null;
  /** Whether it is to every TCP port. */
  all_ports: boolean;
  /** The file, if it is to one. */
  file?: AccessFile | null;
  /** Whether it is for everybody. */
  public: boolean;
  /** What it is for. */
  name?: string | null;
  /** Where it is used. */
  url: string;
  /** When it was made. */
  created_at_ms: number;
  /** Id of the key that made it. */
  created_by?: string | null;
  /** When it ends. */
  expires_at_ms?: number | null;
}

/** A new access. Its token is shown this once. */
export interface AccessCreated {
  /** The access. */
  access: Access;
  /** What to send as `X-Atoll-Token`; absent when it is public. */
  token?: string | null;
  /** The address with the token in it, to open in a browser; without one when it is public. */
  link: string;
}

/** A file that an access is to. */
export interface AccessFile {
  /** Absolute path in the sandbox. */
  path: string;
  /** Media type to answer with, instead of `application/octet-stream`. */
  media_type?: string | null;
  /** Let a browser show it rather than save it. It runs nothing either way. */
  inline?: boolean;
}

/** The accesses of a sandbox. */
export interface AccessList {
  /** The oldest first. */
  items: Access[];
}

/** What a rule says. */
export type Action =
  | "allow"
  | "deny";

/** The protocol that an agent speaks: its process on its standard input and output, or its server over HTTP. */
export type Adapter =
  | "jsonl"
  | "acp"
  | "opencode"
  | "http";

/** An agent. */
export interface Agent {
  /** Its id. */
  id: string;
  /** Its name. */
  name: string;
  /** The sandbox it lives in. */
  sandbox: string;
  /** That was made for it, and is deleted with it. */
  own_sandbox: boolean;
  /** The name of the agent that it was forked from. */
  fork_of?: string | null;
  /** What runs: a line for the shell, or program and arguments. Nothing of one that is a service. */
  command?: CommandText | null;
  /** The service of its sandbox that is its server. */
  service?: string | null;
  /** Where that listens on the sandbox's loopback. */
  port?: number | null;
  /** What it speaks. */
  adapter: Adapter;
  /** The profile of its sandbox that its processes begin in, where one was asked for. */
  profile?: string | null;
  /** The agent layer that its program is in. */
  layer?: string | null;
  /** The version of that which its sandbox has. */
  version?: string | null;
  /** What it asked of models, with all of its sessions. */
  usage?: ModelUsage;
  /** What all of its sessions together may ask of models. */
  budget?: ModelBudget | null;
  /** What each of its sessions may ask of models. */
  session_budget?: ModelBudget | null;
  /** When it was asked for. */
  created_at_ms: number;
}

/** Something that was said or happened in a session. */
export interface AgentEvent {
  /** Counts from 1 in its session. */
  number: number;
  /** What it is about. */
  kind: EventKind;
  /** What it says: an object whose fields depend on the kind. */
  data: Record<string, unknown>;
  /** When that was. */
  at_ms: number;
}

/** Events of a session after a number. */
export interface AgentEventPage {
  /** The events, in order. */
  items: AgentEvent[];
  /** Events before the first of these are not kept any more. */
  gap?: boolean;
  /** Ask after this number next. */
  next_after: number;
  /** Where the session is. */
  state: SessionState;
}

/** Agents, by name. */
export interface AgentList {
  /** All that the key may know of. */
  items: Agent[];
}

/** A schedule. */
export interface AgentSchedule {
  /** Its id. */
  id: string;
  /** How often, milliseconds. */
  every_ms?: number | null;
  /** When, by a clock. */
  cron?: string | null;
  /** The clock's time zone. */
  time_zone?: string | null;
  /** The thread that gets the messages. */
  thread: string;
  /** What is said. */
  text: string;
  /** When the next message is due. */
  next_at_ms: number;
  /** The last time that one was. */
  last?: ScheduleRun | null;
  /** When it was asked for. */
  created_at_ms: number;
}

/** The schedules of an agent, the oldest first. */
export interface AgentScheduleList {
  /** All of them. */
  items: AgentSchedule[];
}

/** A session. */
export interface AgentSession {
  /** Its id. */
  id: string;
  /** The name that it was begun with. */
  thread?: string | null;
  /** Where it is. */
  state: SessionState;
  /** Number of the message that is worked on. */
  message?: number | null;
  /** Number of its last event. */
  last_event: number;
  /** What it asked of models. */
  usage?: ModelUsage;
  /** When it was asked for. */
  created_at_ms: number;
}

/** The sessions of an agent, the oldest first. */
export interface AgentSessionList {
  /** All of them. */
  items: AgentSession[];
}

/** Answers an approval. */
export interface AnswerApproval {
  /** The id of one of its options. */
  option: string;
}

/** Standard input ends here. */
export interface AttachClientMessageCloseStdin {
  type: "close_stdin";
}

/** The terminal has a new size. */
export interface AttachClientMessageResize {
  /** Columns. */
  cols: number;
  /** Rows. */
  rows: number;
  type: "resize";
}

/** Send a signal. */
export interface AttachClientMessageSignal {
  /** Name (`TERM`, `SIGINT`) or number. */
  signal: string;
  /** To the whole tree rather than the process group. */
  tree?: boolean;
  type: "signal";
}

/** Text message of the client on the attach WebSocket. Standard input travels in binary messages. */
export type AttachClientMessage = AttachClientMessageCloseStdin | AttachClientMessageResize | AttachClientMessageSignal;

/** First: what you are attached to, and where the output that follows begins. */
export interface AttachServerMessageAttached {
  /** The exec. */
  exec: Exec;
  /** Offset of the first byte that follows. */
  offset: number;
  type: "attached";
}

/** Bytes `from..to` were dropped because the log's limit was reached. */
export interface AttachServerMessageGap {
  /** First dropped byte. */
  from: number;
  /** One past the last dropped byte. */
  to: number;
  type: "gap";
}

/** Last: all output was sent and this is how it ended. The server closes the socket. */
export interface AttachServerMessageExit {
  /** Where it ended up: `exited` or `lost`. */
  state: ExecState;
  /** How it ended. */
  exit: Exit;
  /** One past the last byte of output. */
  offset: number;
  type: "exit";
}

/** Something a client message asked for failed, or the stream cannot go on. */
export interface AttachServerMessageError {
  /** Why. */
  error: ErrorBody;
  type: "error";
}

/**
 * Text message of the server on the attach WebSocket. Output itself travels in binary messages, see
 * [`OutputFrame`].
 */
export type AttachServerMessage = AttachServerMessageAttached | AttachServerMessageGap | AttachServerMessageExit | AttachServerMessageError;

/** Checkpoints that a sandbox takes by itself: when it was made, and after every exec. */
export interface AutoCheckpoints {
  /** How many of them are kept: 1 to 1000. Those that were taken by request do not count. */
  keep: number;
}

/** User name and password. */
export interface BasicAuth {
  /** User name. */
  username: string;
  /** Password. */
  password: string;
}

/** Makes several sandboxes at once. */
export interface BatchCreate {
  /** At most 256. */
  sandboxes: CreateSandbox[];
}

/** One outcome of a batch: exactly one of the two is there. */
export interface BatchResult {
  /** The sandbox that was made. */
  sandbox?: Sandbox | null;
  /** Why it was not. */
  error?: ErrorBody | null;
}

/** Outcomes of a batch, in the order of the request. */
export interface BatchResults {
  /** One for each request. */
  results: BatchResult[];
}

/** Hard limits on what a sandbox may use over its whole life. Absent ones do not limit. */
export interface Budget {
  /** CPU time of everything in it, milliseconds. */
  cpu_ms?: number | null;
  /** Wall time in which it runs, milliseconds. Paused time does not count. */
  running_ms?: number | null;
  /** Bytes that leave it. */
  egress_bytes?: number | null;
  /** What happens then. */
  on_exhausted?: OnExhausted;
}

/** A build. */
export interface Build {
  /** Its id. */
  id: string;
  /** Name of the template of which it makes a version. */
  name: string;
  /** Where it is in its life. */
  state: BuildState;
  /** Whether it copies files of a context: send it with `PUT …/context`. */
  needs_context: boolean;
  /** What it made, as `name:version`. */
  template?: string | null;
  /** Why it made nothing. */
  failure?: BuildFailure | null;
  /** When it was asked for. */
  created_at_ms: number;
  /** When its work began. */
  started_at_ms?: number | null;
  /** When it ended. */
  ended_at_ms?: number | null;
  /** Id of the key that asked for it. */
  created_by?: string | null;
}

/** One entry of the cache. */
export interface BuildCacheEntry {
  /** Its key. */
  key: string;
  /** The step, as it is shown. */
  step: string;
  /** What it takes on the host, bytes. Entries share it with each other: all together count more than there is. */
  size_bytes: number;
  /** How long the step took. */
  took_ms: number;
  /** When it was made. */
  created_at_ms: number;
  /** When a build last used it. */
  used_at_ms: number;
  /** Whether a template stands on it. */
  in_template: boolean;
}

/** The cache, the longest unused first. */
export interface BuildCacheList {
  /** The entries. */
  items: BuildCacheEntry[];
}

/** What pruning did. */
export interface BuildCachePruned {
  /** Entries that are gone. */
  removed: number;
  /** What they took on the host, bytes. They share it: the disk may gain less. */
  freed_bytes: number;
}

/** Something worth knowing. */
export interface BuildEventNote {
  /** When. */
  at_ms: number;
  /** What. */
  text: string;
  type: "note";
}

/** A step moved on. */
export interface BuildEventStep {
  /** When. */
  at_ms: number;
  /** Which, from 1. */
  step: number;
  /** Of how many. */
  total: number;
  /** The stage that it belongs to, if it has a name. */
  stage?: string | null;
  /** The instruction. */
  text: string;
  /** What happened. */
  state: StepState;
  /** How long it took, once it is done. */
  took_ms?: number | null;
  type: "step";
}

/** A command of a step wrote something. */
export interface BuildEventOutput {
  /** When. */
  at_ms: number;
  /** Which step. */
  step: number;
  /** Whereto. */
  stream: OutputStream;
  /** What; bytes that are no UTF-8 are `U+FFFD`. */
  text: string;
  type: "output";
}

/** The build ended: the last entry. */
export interface BuildEventEnd {
  /** When. */
  at_ms: number;
  /** How. */
  state: BuildState;
  /** What it made, as `name:version`. */
  template?: string | null;
  /** Why it made nothing. */
  failure?: BuildFailure | null;
  type: "end";
}

/** One entry of a build's log. */
export type BuildEvent = BuildEventNote | BuildEventStep | BuildEventOutput | BuildEventEnd;

/** Why a build ended without a template version. Kept by the store. */
export interface BuildFailure {
  /** Why, for machines. */
  code: Code;
  /** What is wrong and where. */
  message: string;
  /** What to do about it. */
  hint?: string | null;
  /** The step that failed, as it is shown, if it was one. */
  step?: string | null;
  /** Exit code of its command. */
  exit_code?: number | null;
  /** The last lines that its command wrote. */
  output?: string | null;
}

/** A page of builds, newest first. */
export interface BuildList {
  /** The page. */
  items: Build[];
  /** Pass it as `cursor` for the next page. */
  next_cursor?: string | null;
}

/** A piece of a build's log. */
export interface BuildLogPage {
  /** Entries, in order. */
  entries: BuildEvent[];
  /** Pass it as `offset` to go on. */
  next_offset: number;
  /** Where the build is. */
  state: BuildState;
  /** Whether there is nothing more, and never will be. */
  over: boolean;
}

/** Where a build is in its life. */
export type BuildState =
  | "waiting"
  | "queued"
  | "running"
  | "succeeded"
  | "failed"
  | "cancelled";

/** A cell: code that a context runs, or has run. */
export interface Cell {
  /** Its id, which is the one of the exec that it is. */
  id: string;
  /** The context that runs it. */
  context: string;
  /** Where it is. */
  state: CellState;
  /**
   * What ended a cell that `failed`: such as `interpreter_missing`, `killed`, `out_of_memory`, `sandbox_paused`.
   */
  reason?: string | null;
  /** How many cells its kernel has run, with this one; once it has ended. */
  execution_count?: number | null;
  /** BLAKE3 of the code. */
  code_digest: string;
  /** Length of the code. */
  code_bytes: number;
  /** When it was asked for. */
  created_at_ms: number;
  /** When it ended. */
  ended_at_ms?: number | null;
  /** Id of the key that asked for it. */
  started_by?: string | null;
}

/** Something that a cell said, or that happened to it. */
export interface CellEvent {
  /** Rises from event to event, not by one. */
  number: number;
  /** What it is about. */
  kind: CellEventKind;
  /** What it says: an object whose fields depend on the kind. */
  data: Record<string, unknown>;
}

/** What an event of a cell is about. */
export type CellEventKind =
  | "reset"
  | "started"
  | "stdout"
  | "stderr"
  | "result"
  | "error"
  | "problem"
  | "end";

/** Events of a cell after a number. */
export interface CellEventPage {
  /** The events, in order. */
  items: CellEvent[];
  /** Ask after this number next. */
  next_after: number;
  /** Nothing more will come. */
  ended: boolean;
}

/** A page of cells, newest first. */
export interface CellList {
  /** The page; it may be empty and not the last. */
  items: Cell[];
  /** Pass it as `cursor` for the next page. */
  next_cursor?: string | null;
}

/** Where a cell is. */
export type CellState =
  | "running"
  | "done"
  | "error"
  | "interrupted"
  | "timed_out"
  | "failed";

/** A cell, with its events where that was asked for and they are few. */
export interface CellWithEvents {
  /** The cell. */
  cell: Cell;
  /** All events, when the cell ended within `wait_ms` and said at most 1 MiB. */
  events?: CellEvent[] | null;
}

/** One difference between two snapshots. */
export interface Change {
  /** Absolute path. What is no UTF-8 in it is replaced. */
  path: string;
  /** What happened. */
  kind: ChangeKind;
  /** What it is now, or was. */
  entry: EntryKind;
  /** Size before, bytes. */
  from_bytes?: number | null;
  /** Size after, bytes. */
  to_bytes?: number | null;
  /** The difference of two small texts as `diff -u` shows it, when it was asked for. */
  text?: string | null;
}

/** What happened to a file between two snapshots. */
export type ChangeKind =
  | "added"
  | "changed"
  | "removed";

/** One line of the report. */
export interface Check {
  /** Stable name: `user_namespaces`, `limit_memory`, … */
  name: string;
  /** How it came out. */
  status: Status;
  /** One sentence: what was tried and seen. */
  detail: string;
  /** What to do when it is not [`Status::Ok`]. */
  hint?: string | null;
}

/** Changes permissions, owner or both. */
export interface Chmod {
  /** The path. */
  path: string;
  /** New permissions in octal. */
  mode?: string | null;
  /** New owner: name or id, optionally `:group`. */
  user?: string | null;
}

/** Machine-readable reason of an error. More may come. */
export type Code =
  | "invalid_json"
  | "invalid_argument"
  | "too_large"
  | "unauthorized"
  | "forbidden"
  | "route_not_found"
  | "method_not_allowed"
  | "sandbox_not_found"
  | "node_not_found"
  | "exec_not_found"
  | "service_not_found"
  | "agent_not_found"
  | "session_not_found"
  | "schedule_not_found"
  | "context_not_found"
  | "interpreter_missing"
  | "interpreter_failed"
  | "template_not_found"
  | "volume_not_found"
  | "volume_busy"
  | "pool_not_found"
  | "pool_too_large"
  | "snapshot_not_found"
  | "image_not_found"
  | "key_not_found"
  | "project_not_found"
  | "project_in_use"
  | "access_not_found"
  | "ssh_key_not_found"
  | "registry_not_found"
  | "secret_not_found"
  | "name_taken"
  | "invalid_state"
  | "sandbox_failed"
  | "sandbox_leased"
  | "pause_unavailable"
  | "budget_exhausted"
  | "idempotency_mismatch"
  | "limit_exceeded"
  | "quota_exceeded"
  | "image_platform_mismatch"
  | "image_invalid"
  | "image_in_use"
  | "snapshot_in_use"
  | "snapshot_incompatible"
  | "snapshot_invalid"
  | "objects_denied"
  | "objects_unavailable"
  | "digest_mismatch"
  | "issuer_unavailable"
  | "issuer_invalid"
  | "registry_denied"
  | "registry_unavailable"
  | "registry_invalid"
  | "registry_image_not_found"
  | "command_not_found"
  | "command_not_executable"
  | "cwd_not_found"
  | "user_not_found"
  | "exec_ended"
  | "stdin_closed"
  | "not_a_terminal"
  | "offset_out_of_range"
  | "file_not_found"
  | "file_exists"
  | "not_a_directory"
  | "is_a_directory"
  | "directory_not_empty"
  | "permission_denied"
  | "disk_full"
  | "path_invalid"
  | "port_closed"
  | "port_taken"
  | "port_broken"
  | "host_disk_full"
  | "isolation_unavailable"
  | "limit_unenforceable"
  | "unenforceable"
  | "guest_unavailable"
  | "build_not_found"
  | "build_file_invalid"
  | "instruction_unsupported"
  | "build_context_invalid"
  | "build_file_not_found"
  | "build_step_failed"
  | "build_cancelled"
  | "build_interrupted"
  | "start_failed"
  | "timeout"
  | "shutting_down"
  | "store_unavailable"
  | "node_unavailable"
  | "record_unreadable"
  | "internal";

/** A command: a line for the shell, or program and arguments. */
export type CommandText = string | string[];

/** What differs between two snapshots. */
export interface Comparison {
  /** The differences, by path. */
  changes: Change[];
  /** There is more than is shown. */
  truncated: boolean;
}

/** An open connection. */
export interface ConnectionView {
  /** Its number in this sandbox. */
  number: number;
  /** The name it was made to, where that is certain. */
  name?: string | null;
  /** The address. */
  address: string;
  /** The port. */
  port: number;
  /** `tls`, `http`, `tcp`; `proxy` for one to the explicit proxy that has no destination yet. */
  protocol: string;
  /** When it was made. */
  opened_at_ms: number;
  /** Bytes that left the sandbox. */
  sent_bytes: number;
  /** Bytes that came into the sandbox. */
  received_bytes: number;
}

/** A context: it remembers what its cells did. */
export interface Context {
  /** Its id. */
  id: string;
  /** The sandbox whose interpreter it is of. */
  sandbox: string;
  /** The name that it was made with. */
  name?: string | null;
  /** Its language. */
  language: string;
  /** Where its cells begin; the home of the interpreter's user when absent. */
  cwd?: string | null;
  /** When it was asked for. */
  created_at_ms: number;
}

/** The contexts of a sandbox, the oldest first. */
export interface ContextList {
  /** All of them. */
  items: Context[];
}

/** How the disk of a snapshot came about. */
export type CopyMethod =
  | "clone"
  | "copy"
  | "import";

/** A step that copies. */
export interface CopyStep {
  /** Paths or patterns in the context, as in `COPY`. */
  sources: string[];
  /** Whereto: a directory if it ends with `/`. */
  destination: string;
  /** An image to copy from instead of the context. */
  from?: string | null;
  /** Owner of the copies. */
  user?: string | null;
  /** Permissions of the copies, octal. */
  mode?: string | null;
  /**
   * Symbolic links that the sources name are copied as links, wherever they lead; otherwise what they lead to is
   * copied. Below a directory links are always copied as links. Not with `from`.
   */
  keep_links?: boolean;
}

/** Lets clients without an API key reach a port or a file. Exactly one of `port`, `all_ports` and `file`. */
export interface CreateAccess {
  /** One TCP port. */
  port?: number | null;
  /** Every TCP port. */
  all_ports?: boolean;
  /** The bytes of a file, to read. */
  file?: AccessFile | null;
  /** For everybody, without a token: ports only. Needs the scope `manage`. */
  public?: boolean;
  /** What it is for, for people. */
  name?: string | null;
  /** It ends this long from now; with the sandbox when absent. */
  ttl_ms?: number | null;
}

/** Declares an agent. Give one of `argv`, `shell` and `service`, and either `sandbox` or `template`. */
export interface CreateAgent {
  /** Its name, unique among agents: 1 to 63 lower-case letters, digits and hyphens. */
  name: string;
  /** The sandbox it lives in, by id or name. */
  sandbox?: string | null;
  /** Makes a sandbox of this template for it, with its name, which is deleted with it. Needs the scope `manage`. */
  template?: string | null;
  /** What that may reach; the template's, or the server's default, when absent. */
  egress?: EgressPolicy | null;
  /** Delete that, and the agent with it, this long after it was made; the template's when absent. */
  ttl_ms?: number | null;
  /** Program and arguments, run once for each session when there is a message. */
  argv?: string[] | null;
  /** A line for `/bin/sh -c`. */
  shell?: string | null;
  /** The service of the sandbox that is the agent's server, for the adapters `opencode` and `http`. */
  service?: string | null;
  /** Where that listens on the sandbox's loopback; the port on which the service is ready when absent. */
  port?: number | null;
  /** What it speaks: on its standard input and output, or over HTTP; `jsonl` when absent. */
  adapter?: Adapter | null;
  /** Variables on top of the sandbox's. */
  env?: Record<string, string>;
  /** Working directory; the sandbox's when absent. */
  cwd?: string | null;
  /** User name or id, optionally `:group`; the sandbox's when absent. */
  user?: string | null;
  /** The profile of its sandbox that its processes begin in; the sandbox's default when absent. */
  profile?: string | null;
  /** The agent layer that its program is in, which is mounted at `/opt/agents/LAYER`. Needs the scope `manage`. */
  layer?: string | null;
  /** The version of that; when absent the one that the sandbox has, or else the latest. */
  version?: string | null;
  /** What all of its sessions together may ask of models, also those that were deleted. */
  budget?: ModelBudget | null;
  /** What each of its sessions may ask of models. */
  session_budget?: ModelBudget | null;
}

/** Has messages sent to an agent by time. Give either `every_ms` or `cron`. */
export interface CreateAgentSchedule {
  /** Each time that so many milliseconds have passed since now: at least 1000. */
  every_ms?: number | null;
  /** When a clock shows it: minute, hour, day of the month, month, day of the week, as `0 9 * * 1-5`. */
  cron?: string | null;
  /** The clock's time zone, as the IANA database names it; `UTC` when absent. */
  time_zone?: string | null;
  /** The thread of the session that gets the messages, which is begun if there is none; `main` when absent. */
  thread?: string | null;
  /** What to say: at most 16 KiB. */
  text: string;
}

/** Begins a session. */
export interface CreateAgentSession {
  /**
   * A name of yours for it: at most 128 printable ASCII characters. If the agent has a session with it, that is the
   * answer.
   */
  thread?: string | null;
}

/** Builds the next version of a template, from a Dockerfile or a step list. */
export interface CreateBuild {
  /** Name of the template: lower-case letters, digits, `-` and `_`. */
  name?: string;
  /** Tags that point to the version that it makes: names for versions, as in `name:tag`. */
  tags?: string[];
  /** The Dockerfile. */
  dockerfile?: string | null;
  /** The step list, instead. */
  steps?: Step[] | null;
  /** What to leave out of the context, as in a `.dockerignore`; the one in the context when absent. */
  ignore?: string | null;
  /** Values of `ARG`s. */
  args?: Record<string, string>;
  /** Values for `RUN --mount=type=secret`, by their `id`. Kept nowhere, and in no answer. */
  secrets?: Record<string, string>;
  /** The stage that is wanted, by name or number; the last when absent. */
  target?: string | null;
  /** Do every step again. */
  no_cache?: boolean;
  /**
   * What runs in every sandbox of the template: `{"command": …}`, or `"image"` for `ENTRYPOINT` and `CMD`. Nothing
   * when absent.
   */
  start?: StartFrom | null;
  /** When a sandbox is ready: its creation waits for it. */
  ready?: Ready | null;
  /**
   * When what the template starts is started again after it ended; never when absent. Each boot starts it anyway.
   */
  restart?: Restart | null;
  /**
   * Start what the template starts once, in a sandbox that is deleted again, and wait until it is ready: what fails
   * then fails the build, and not the first creation.
   */
  verify?: boolean;
  /** Boot one sandbox of the template until it is ready, and let the others go on from its memory. */
  memory?: boolean;
  /** Isolation level of the build and of the template. */
  isolation?: IsolationLevel | null;
  /** Limits of the steps' sandbox and of the template. */
  resources?: ResourcesDraft;
  /** Labels that every sandbox of the template gets. */
  labels?: Record<string, string>;
  /** What the steps may reach; the server's default when absent. */
  egress?: EgressPolicy | null;
  /** What sandboxes of the template may reach; the server's default when absent. */
  template_egress?: EgressPolicy | null;
  /** Time to live of the template's sandboxes. */
  ttl_ms?: number | null;
  /** Idle timeout of the template's sandboxes. */
  idle_timeout_ms?: number | null;
  /** Give up after this long; one hour when absent. */
  timeout_ms?: number | null;
  /**
   * Services that every sandbox of the template begins with; those of the template that it is built on when there
   * are none.
   */
  services?: CreateService[];
}

/** Takes a checkpoint of a sandbox. */
export interface CreateCheckpoint {
  /** A line of text, to remember what it is. */
  comment?: string | null;
}

/** Makes a context. */
export interface CreateContext {
  /**
   * A name of yours, unique in the sandbox: 1 to 63 lower-case letters, digits and hyphens. If the sandbox has the
   * same context with it already, that is the answer.
   */
  name?: string | null;
  /** Its language; `python` when absent. */
  language?: string | null;
  /** Where its cells begin; the home of the interpreter's user when absent. */
  cwd?: string | null;
  /** Variables of each of its cells. */
  env?: Record<string, string>;
}

/** Runs a command. Give either `argv` or `shell`. */
export interface CreateExec {
  /** Program and arguments, run as they are. */
  argv?: string[] | null;
  /** A line for `/bin/sh -c`. */
  shell?: string | null;
  /** Variables on top of the sandbox's. */
  env?: Record<string, string>;
  /** Working directory; the sandbox's when absent. */
  cwd?: string | null;
  /** User name or id, optionally `:group`; the sandbox's when absent. */
  user?: string | null;
  /** The sandbox's profile that it runs in; the sandbox's default when absent. */
  profile?: string | null;
  /** Run on a terminal of this size. */
  tty?: TtySize | null;
  /** Keep standard input open; otherwise the command reads end-of-file at once. */
  stdin?: boolean;
  /** Kill its tree this long after start. */
  timeout_ms?: number | null;
  /** Kill its tree when it has written nothing for this long. */
  idle_timeout_ms?: number | null;
  /** Kill its tree when the last attached client goes away. */
  kill_on_disconnect?: boolean;
  /** Kill the tree when no client has been attached for this long. Clients are those that read with `attach`. */
  detach_timeout_ms?: number | null;
  /** Output kept on the host; the oldest goes first and a gap is announced. */
  keep_output_bytes?: number | null;
  /** A second request with the same key in the same sandbox returns the first exec. */
  idempotency_key?: string | null;
  /**
   * Wait up to this long for the exit before answering (at most 60,000). The answer then carries the output, if it
   * is small.
   */
  wait_ms?: number | null;
}

/** Makes a key. */
export interface CreateKey {
  /** What it is for, for people. */
  name: string;
  /** The highest thing it may do. */
  scope: Scope;
  /** It stops working this long from now. */
  ttl_ms?: number | null;
  /** What it looks like, for clients of other vendors that want keys of theirs. It opens the same. */
  format?: KeyFormat;
  /** The project that it belongs to, by id or name; none when absent. Administrators are of none. */
  project?: string | null;
}

/** Makes a project. */
export interface CreateProject {
  /** Its name. */
  name: string;
  /** How much it may have; what is absent is not limited. */
  quota?: Quota;
  /** What its sandboxes are when neither request nor template says. */
  defaults?: ProjectDefaults;
}

/** Makes a sandbox. Everything is optional: `{}` makes one from the image `host`. */
export interface CreateSandbox {
  /**
   * Who sees it, from its first moment on: `private` is you, administrators, and whom you grant a role. When
   * absent: `private` if it goes on from a private snapshot, else the server's default.
   */
  visibility?: Visibility | null;
  /** A name, unique among existing sandboxes: a DNS label. */
  name?: string | null;
  /** The image: `host`, or one that was pulled, loaded or imported. */
  image?: string | null;
  /** A template: `name` for its newest version, or `name:version`. */
  template?: string | null;
  /** A snapshot to begin with: its id, `name` or `name:tag`. It brings its image, environment and limits. */
  snapshot?: string | null;
  /**
   * Go on from the snapshot's memory, too: its processes run in the new sandbox. The snapshot must have been taken
   * with memory, on this host with these programs; limits can be lower than its own and not higher.
   */
  memory?: boolean;
  /** Take checkpoints by itself: when it is made, and after every exec. */
  auto_checkpoints?: AutoCheckpoints | null;
  /** On a server of several with an object store: how it outlives its node. */
  durability?: Durability | null;
  /** How strongly it is cut off. Never silently downgraded. */
  isolation?: IsolationLevel | null;
  /** In a cluster: labels that the node must have on which it is made. */
  node_labels?: Record<string, string>;
  /** Limits. */
  resources?: ResourcesDraft;
  /** Environment of every exec. */
  env?: Record<string, string>;
  /** Labels, to find it again. */
  labels?: Record<string, string>;
  /** Texts kept beside it for you: at most 32 keys, 128 KiB together; never interpreted. */
  annotations?: Record<string, string>;
  /** Default user of execs: name or id, optionally `:group`. */
  user?: string | null;
  /** Default working directory; made when it is absent. */
  workdir?: string | null;
  /** Delete it this long after creation. */
  ttl_ms?: number | null;
  /** Delete it after this long without a running exec or a request. */
  idle_timeout_ms?: number | null;
  /** Secrets for this sandbox alone, by name: its injection rules find them before the server's. Never returned. */
  secrets?: Record<string, string>;
  /** What it may reach; the template's, or the server's default, when absent. */
  egress?: EgressPolicy | null;
  /** Volumes to mount. */
  volumes?: VolumeMountDraft[];
  /** What the end of the idle timeout means; `delete` when absent. */
  on_idle?: OnIdle | null;
  /**
   * Freeze it after this long without a running exec or a request. The next use thaws it; its state stays
   * `running`. Processes that execs left behind stand still meanwhile.
   */
  idle_freeze_ms?: number | null;
  /** Pause it as `filesystem` when it has been paused as `frozen` for this long. */
  hibernate_after_ms?: number | null;
  /** Delete it when it has been paused, in whatever mode, for this long. */
  delete_paused_after_ms?: number | null;
  /** Hard limits on what it may use in its whole life. */
  budget?: Budget | null;
  /** How much of what it does is recorded; as the server says when absent, and never less than that. */
  trace?: TraceMode | null;
  /**
   * Files of which the journal tells when they change, by the word of the sandbox's agent. Needs a sandbox that is
   * recorded.
   */
  trace_files?: TraceFiles | null;
  /** Which programs may run; as the template says, or all, when absent. Needs a sandbox that is recorded. */
  execution?: ExecutionPolicy | null;
  /**
   * Agent layers, by name: the image that is mounted read-only at `/opt/agents/NAME`. It has one layer, as those
   * that `atoll agent build` and `POST /v1/images/import` make.
   */
  layers?: Record<string, string>;
  /**
   * Profiles of its processes; the template's, or none, when absent. They stay as they are. Containers only, and a
   * sandbox that is recorded.
   */
  profiles?: Profiles | null;
  /**
   * Services that it begins with, beside its template's: its creation waits until they have settled. One with the
   * name of a template's stands in its place.
   */
  services?: CreateService[];
}

/** Declares a service. Give either `argv` or `shell`. */
export interface CreateService {
  /** Its name, unique in the sandbox: 1 to 63 lower-case letters, digits and hyphens. */
  name: string;
  /** Program and arguments, run as they are. */
  argv?: string[] | null;
  /** A line for `/bin/sh -c`. */
  shell?: string | null;
  /** Variables on top of the sandbox's. */
  env?: Record<string, string>;
  /** Working directory; the sandbox's when absent. */
  cwd?: string | null;
  /** User name or id, optionally `:group`; the sandbox's when absent. */
  user?: string | null;
  /** Output of each run that is kept on the host; the oldest goes first. */
  keep_output_bytes?: number | null;
  /** When it is started again; `always` when absent. */
  restart?: Restart | null;
  /** First pause before that; half a second when absent. Doubles with each end within ten seconds. */
  backoff_ms?: number | null;
  /** Longest such pause; 30 seconds, or `backoff_ms` if that is more, when absent. */
  backoff_max_ms?: number | null;
  /** Ends in a row, each within ten seconds, after which it is given up; 10 when absent, 0: never. */
  give_up_after?: number | null;
  /**
   * What it has to end by itself after `SIGTERM` before it is killed; ten seconds when absent, at most ten minutes.
   */
  stop_timeout_ms?: number | null;
  /** When it is ready; at once when absent. */
  ready?: ServiceReady | null;
  /** Whether it still works; not looked at when absent. */
  health?: ServiceHealth | null;
  /**
   * Services of the same sandbox that it is started after, each time: when they are ready, or have done their work.
   */
  after?: string[];
}

/** Takes a snapshot of a sandbox. */
export interface CreateSnapshot {
  /**
   * References that shall point to it, as `name` (which means `name:latest`) or `name:tag`. They leave what they
   * point to now.
   */
  tags?: string[];
  /** A line of text, to remember what it is. */
  comment?: string | null;
  /** Variables of sandboxes that are made from it, on top of those of its sandbox. */
  env?: Record<string, string>;
  /** Their default user, in place of its sandbox's. */
  user?: string | null;
  /** Their default working directory, in place of its sandbox's. */
  workdir?: string | null;
  /** With its memory and processes: at the isolation level `microvm`. */
  memory?: boolean;
}

/** Registers an SSH public key for the API key of the request. */
export interface CreateSshKey {
  /** What it is for, for people. */
  name: string;
  /** The line of a file such as `~/.ssh/id_ed25519.pub`. */
  public_key: string;
  /** It stops working this long from now. */
  ttl_ms?: number | null;
}

/** Makes a template, or the next version of an existing one. */
export interface CreateTemplate {
  /** Its name: lower-case letters, digits, `-` and `_`. */
  name: string;
  /** The image. Leave it out when there is a snapshot. */
  image?: string;
  /** The snapshot that its sandboxes begin with: id, `name` or `name:tag`, looked up once, now. */
  snapshot?: string | null;
  /** The isolation level. */
  isolation?: IsolationLevel | null;
  /** Limits. */
  resources?: ResourcesDraft;
  /** Environment. */
  env?: Record<string, string>;
  /** Labels that every sandbox of it gets. */
  labels?: Record<string, string>;
  /** Default user. */
  user?: string | null;
  /** Default working directory. */
  workdir?: string | null;
  /** Time to live of its sandboxes. */
  ttl_ms?: number | null;
  /** Idle timeout of its sandboxes. */
  idle_timeout_ms?: number | null;
  /** How many of its sandboxes wait warm. */
  pool?: PoolSpec | null;
  /** What its sandboxes may reach; the server's default when absent. */
  egress?: EgressPolicy | null;
  /** What runs in every sandbox from its creation on: a line for the shell, or program and arguments. */
  start?: CommandText | null;
  /** When a sandbox is ready: its creation waits for it. */
  ready?: Ready | null;
  /**
   * When what runs in every sandbox is started again after it ended; never when absent. Each boot starts it anyway.
   */
  restart?: Restart | null;
  /**
   * Boot one sandbox until it is ready, and let the others go on from its memory. Needs a start command, and an
   * isolation level that can copy sandboxes with their memory.
   */
  memory?: boolean;
  /** Which programs may run in its sandboxes; all when absent. */
  execution?: ExecutionPolicy | null;
  /** Profiles of the processes of its sandboxes; none when absent. */
  profiles?: Profiles | null;
  /** Services that every sandbox of it begins with: its creation waits until they have settled. */
  services?: CreateService[];
}

/** Makes a volume. */
export interface CreateVolume {
  /** Its name: 1 to 63 letters, digits, `-` and `_`. */
  name: string;
  /** Its size; 10 GiB when absent. A copy has the size of its source. */
  size_bytes?: number | null;
  /** Name or id of a volume: begins with what that holds at this moment, while it is in use. */
  from?: string | null;
  /** With `from`: it is a snapshot, which cannot be written to. */
  read_only?: boolean;
}

/** A link that signs a browser in to the dashboard with the key of the request that made it. */
export interface DashboardLink {
  /** To open in a browser, once. */
  link: string;
  /** Until then. */
  expires_at_ms: number;
}

/** Something that was refused, or would have been; equal ones are counted. */
export interface DenialView {
  /** At which point. */
  stage: Stage;
  /** What: a name, `name:port`, `address:port`, a request. */
  what: string;
  /** Why. */
  why: string;
  /** What would allow it, as arguments of the command line. */
  ask?: string | null;
  /** When it happened last. */
  last_at_ms: number;
  /** How often. */
  count: number;
  /** Whether it passed all the same, because the policy's mode is to observe. */
  observed?: boolean;
}

/** A login that has begun: a person opens an address in a browser, anywhere, and types a code. */
export interface DeviceLogin {
  /** What to type. */
  user_code: string;
  /** Where. */
  verification_uri: string;
  /** The same with the code in it, if the issuer has such a one. */
  verification_uri_complete?: string | null;
  /** How long to wait between two questions what has become of it. */
  interval_ms: number;
  /** Until then. */
  expires_at_ms: number;
  /** To ask with what has become of it. Any client that has it gets the login. */
  login: string;
}

/** What has become of a login. */
export interface DeviceLoginPolled {
  /** How far it is. */
  state: DeviceLoginState;
  /** Who logged in, once it is done. */
  name?: string | null;
  /** When it ends. */
  expires_at_ms?: number | null;
  /** What to send as `Authorization: Bearer …`, this once. */
  secret?: string | null;
}

/** How far a login is. */
export type DeviceLoginState =
  | "pending"
  | "slow_down"
  | "done";

/**
 * What was read from the disks of a sandbox and written to them since it was last started: a wake begins at zero.
 */
export interface DiskIo {
  /** Bytes read, the image's included; what was in a cache inside is not read. */
  read_bytes: number;
  /** Bytes written. */
  written_bytes: number;
  /** Reads. */
  reads: number;
  /** Writes. */
  writes: number;
}

/** What this host enforces. */
export interface Doctor {
  /** One line each. */
  checks: Check[];
}

/**
 * How a sandbox outlives its node: what it has on its disk is copied to the object store while it runs, and another
 * node goes on from the last copy.
 */
export interface Durability {
  /** This long after the last copy was begun, milliseconds: one second or more. */
  every_ms?: number | null;
  /** After each exec. */
  after_exec?: boolean;
}

/** How much of the network one sandbox may use. */
export interface EgressLimits {
  /** Open connections to the outside at once; 512 when absent. */
  connections?: number | null;
  /** Bytes per second, in each direction; unlimited when absent. */
  bytes_per_s?: number | null;
}

/** What happens to what may not pass. */
export type EgressMode =
  | "enforce"
  | "observe";

/** What a sandbox may reach. The default is nothing. */
export interface EgressPolicy {
  /** What happens where no rule speaks. */
  internet?: Internet;
  /** Whether what may not pass is refused, or only told of in the journal. */
  mode?: EgressMode;
  /** Looked at in order; the first that matches decides. */
  rules?: Rule[];
  /** What is put into requests on their way out: credentials that the sandbox itself does not have. */
  inject?: InjectRule[];
  /** How much. */
  limits?: EgressLimits;
}

/** How `data` of a chunk is written. */
export type Encoding =
  | "utf-8"
  | "base64";

/** What an entry of a directory is. */
export type EntryKind =
  | "file"
  | "directory"
  | "symlink"
  | "other";

/** Body of every error. */
export interface ErrorBody {
  /** Why, for machines. Stable. */
  code: Code;
  /** What is wrong and where, for people. */
  message: string;
  /** What to do about it. */
  hint?: string | null;
  /** Whether the same request may succeed later. */
  retryable: boolean;
  /** The request's id, also in the server's log and in the `x-request-id` header. */
  request_id?: string | null;
}

/** What an event is about. */
export type EventKind =
  | "message"
  | "state"
  | "text"
  | "thought"
  | "tool"
  | "plan"
  | "approval"
  | "answer"
  | "data"
  | "log"
  | "done"
  | "error";

/** An exec. */
export interface Exec {
  /** Its id. */
  id: string;
  /** The sandbox it runs in. */
  sandbox: string;
  /** Program and arguments. */
  argv: string[];
  /** Where it is in its life. */
  state: ExecState;
  /** Process id inside the sandbox. */
  pid?: number | null;
  /** User it runs as. */
  user: string;
  /** The profile that it runs in, where it is in one. */
  profile?: string | null;
  /** Working directory. */
  cwd?: string | null;
  /** Whether it runs on a terminal. */
  tty: boolean;
  /** How it ended. */
  exit?: Exit | null;
  /** Output bytes so far, both streams together. */
  output_bytes: number;
  /** CPU time of its processes as reported from inside the sandbox, once it has ended, microseconds. */
  cpu_us?: number;
  /** First output byte that is still kept. */
  output_first: number;
  /** When it was asked for. */
  created_at_ms: number;
  /** When it ended. */
  ended_at_ms?: number | null;
  /** Id of the key that started it. */
  started_by?: string | null;
}

/** A page of execs, newest first. */
export interface ExecList {
  /** The page. */
  items: Exec[];
  /** Pass it as `cursor` for the next page. */
  next_cursor?: string | null;
}

/** Where an exec is in its life: `starting → running → exited`, or `lost`. */
export type ExecState =
  | "starting"
  | "running"
  | "exited"
  | "lost";

/** An exec, with its output where that was asked for and is small. */
export interface ExecWithOutput {
  /** The exec. */
  exec: Exec;
  /** All output, when the exec ended within `wait_ms` and wrote at most 1 MiB. */
  output?: OutputChunk[] | null;
}

/** Whether a program may run. */
export type ExecutionAction =
  | "allow"
  | "deny";

/** What happens to a program that may not run. */
export type ExecutionMode =
  | "enforce"
  | "observe";

/**
 * Which programs may run. It is about programs that the kernel is asked to execute, by whomever and with whatever
 * rights inside. What a program that may run does with its input is its own matter: an interpreter that may run
 * runs any script.
 */
export interface ExecutionPolicy {
  /** Which programs may run that no rule names. */
  programs?: Programs;
  /** Whether others are refused, or only told of in the journal. */
  mode?: ExecutionMode;
  /** Exceptions: the first rule that names a program decides. */
  rules?: ExecutionRule[];
}

/**
 * What holds for some programs of the image: those at a path, those with a digest, or the one that has both; those
 * of a layer, also at a path; those of a package.
 */
export interface ExecutionRule {
  /** Whether they may run. */
  action: ExecutionAction;
  /**
   * Where the image has them: `/usr/bin/git`, also through links of the image; `/opt/tools/*` is every program in a
   * directory, `/opt/tools/**` every one below it. Looked up when the sandbox is made, woken or changed, in the
   * image as its template left it: what processes inside did to names since changes nothing.
   */
  path?: string | null;
  /**
   * Their content: `sha256:` or `blake3:` and 64 hexadecimal digits. Without a path it is every program of the
   * image with this content, which takes reading all of them once. With a path the image must have exactly this
   * there.
   */
  digest?: string | null;
  /**
   * The layer that brought them: `sha256:` and 64 hexadecimal digits, the digest of its content as the image's
   * configuration has it, which is also what the journal calls it.
   */
  layer?: string | null;
  /**
   * The Debian package that brought them: `git`, or `git:amd64`, as the image's own list of files has it
   * (`/var/lib/dpkg/info/git.list`).
   */
  package?: string | null;
  /** What the journal says of a refusal by this rule. */
  message?: string | null;
}

/** How an exec ended. */
export interface Exit {
  /** Why. */
  reason: ExitReason;
  /**
   * Exit code as a shell would see it: the process's own, 128 + signal, 126 or 127 when it could not be started.
   * `None` when the sandbox died or was paused under it.
   */
  code?: number | null;
  /** The signal that ended it, if one did. */
  signal?: number | null;
  /** Why it could not be started: [`Code::CommandNotFound`] or [`Code::CommandNotExecutable`]. */
  error?: Code | null;
}

/** Why an exec ended. */
export type ExitReason =
  | "exited"
  | "signaled"
  | "out_of_memory"
  | "timed_out"
  | "idle_timed_out"
  | "killed"
  | "disconnected"
  | "sandbox_paused"
  | "budget_exhausted"
  | "rolled_back"
  | "not_started"
  | "sandbox_died";

/** A file, directory or link. */
export interface FileEntry {
  /** Full path. */
  path: string;
  /** What it is. */
  kind: FileKind;
  /** Size in bytes. */
  size_bytes: number;
  /** Permissions in octal, such as `0644`. */
  mode: string;
  /** Owner id. */
  uid: number;
  /** Group id. */
  gid: number;
  /** Owner name, where the sandbox has one. */
  user?: string | null;
  /** Group name, where the sandbox has one. */
  group?: string | null;
  /** Last modification. */
  modified_at_ms: number;
  /** Where a symbolic link points. */
  target?: string | null;
}

/** What a path is. */
export type FileKind =
  | "file"
  | "directory"
  | "symlink"
  | "other";

/** Entries of a directory. */
export interface FileList {
  /** The entries. */
  items: FileEntry[];
  /** Whether there are more than could be listed. */
  truncated: boolean;
}

/** A file was written. */
export interface FileWritten {
  /** Bytes written. */
  bytes: number;
}

/** Finds files by the pattern of their path, or lines in them. */
export interface FindFiles {
  /** Absolute path of the directory below which to look. */
  path: string;
  /**
   * What paths below it must look like; all when absent. `*`, `?` and `[…]` stand for characters of one name, `**`
   * for any number of names.
   */
  pattern?: string | null;
  /** Text to look for in the files, as it is: then lines are found, else files. */
  text?: string | null;
  /** Most that is found: 1 to 100,000, 1000 when absent. */
  limit?: number | null;
}

/**
 * Makes forks of an agent: the same agent, each in a sandbox that goes on from where its own is and is deleted with
 * it.
 */
export interface ForkAgent {
  /** How many: 1 to 256. */
  count: number;
  /** The point to go on from: the number of a checkpoint of its sandbox, or a snapshot. Now when absent. */
  at?: string | null;
  /** The sandbox's processes go on in each fork, with their memory, too: at the isolation level `microvm`. */
  memory?: boolean;
  /**
   * What the names of forks and their sandboxes begin with: `name-1`, `name-2`, …; the agent's and `-fork` when
   * absent.
   */
  name?: string | null;
}

/** Makes sandboxes that go on from where another is. */
export interface ForkSandbox {
  /** How many: 1 to 256. */
  count?: number;
  /** The point to go on from: the number of a checkpoint, or a snapshot. Now when absent. */
  at?: string | null;
  /**
   * Its processes go on in each child, with their memory, too: at the isolation level `microvm`. There they belong
   * to no exec. With `at`, that snapshot must have been taken with memory.
   */
  memory?: boolean;
  /** Name of a single child, or what the names of several begin with: `name-1`, `name-2`, …. */
  name?: string | null;
  /** Labels on top of the parent's. */
  labels?: Record<string, string>;
  /** Variables on top of the parent's. */
  env?: Record<string, string>;
  /**
   * Time to live from the fork on; when absent as long as the parent was given, when it was made or when that was
   * changed last.
   */
  ttl_ms?: number | null;
}

/** One fork, or why there is none. */
export interface ForkedAgent {
  /** The fork. */
  agent?: Agent | null;
  /** Why there is none. */
  error?: ErrorBody | null;
}

/** What became of each fork, in order. */
export interface ForkedAgents {
  /** All of them. */
  results: ForkedAgent[];
}

/** A file, or a line in it. */
export interface FoundFile {
  /** The file. */
  file: FileEntry;
  /** Number of the line, from 1. */
  line?: number | null;
  /** The line; of one that is longer than 4 KiB, the beginning. */
  text?: string | null;
}

/** What was found. */
export interface FoundFiles {
  /** In the order of their paths, a directory's own files before those below it. */
  items: FoundFile[];
  /** There was more. */
  truncated: boolean;
}

/** A role that a key has on a sandbox. */
export interface Grant {
  /** Id of the key. */
  key: string;
  /** The most it may do with the sandbox, if its scope goes as far. */
  role: Role;
}

/** Whether the server works. */
export interface Health {
  /**
   * `ok`; `draining` while it shuts down; `store_unavailable` while nothing can be stored; `host_disk_full` while
   * every sandbox stands still because of that, and only what removes something is done.
   */
  status: string;
}

/** An image that is ready to be used. */
export interface Image {
  /** Digest of its manifest. */
  digest: string;
  /** Names it goes by. */
  names: string[];
  /** Unpacked size, bytes. Layers are shared between images. */
  size_bytes: number;
  /** Number of layers. */
  layers: number;
  /** Processor architecture. */
  architecture: string;
  /** Default environment. */
  env: Record<string, string>;
  /** Default user. */
  user?: string | null;
  /** Default working directory. */
  workdir?: string | null;
  /** Its entry point and command, for reference: a sandbox runs execs instead. */
  command: string[];
  /** When it was made, as it says (RFC 3339). */
  created?: string | null;
  /** Where it is; absent where servers do not share images. */
  place?: ImagePlace | null;
}

/** All images. */
export interface ImageList {
  /** The images. */
  items: Image[];
}

/** Where an image of a cluster with an object store is. */
export type ImagePlace =
  | "here"
  | "shared"
  | "elsewhere";

/** A layer moved on. */
export interface ImageProgressLayer {
  /** Its digest. */
  digest: string;
  /** What happens to it. */
  phase: LayerPhase;
  /** Bytes done. */
  done_bytes: number;
  /** Bytes in all; 0 when not known. */
  total_bytes: number;
  type: "layer";
}

/** The image is ready. */
export interface ImageProgressDone {
  /** The image. */
  image: Image;
  type: "done";
}

/** It failed. */
export interface ImageProgressError {
  /** Why. */
  error: ErrorBody;
  type: "error";
}

/** One line of the progress stream (newline-delimited JSON). The last is `done` or `error`. */
export type ImageProgress = ImageProgressLayer | ImageProgressDone | ImageProgressError;

/** One rule. */
export interface InjectRule {
  /** Its name, unique among the sandbox's rules; shown in refusals and in the record of uses. */
  name: string;
  /** For these hosts: names, or `*.example.com` for every name below. */
  hosts: string[];
  /** On these ports; 443 (and 80 for what may travel in the clear) when empty. */
  ports?: number[];
  /** With these methods; any when empty. */
  methods?: string[];
  /** With paths that are one of these or lie below it; any when empty. */
  paths?: string[];
  /**
   * On connections that this program made; any when absent. Needs a sandbox whose programs the host's kernel sees
   * (containers).
   */
  from?: Origin | null;
  /** Headers to set, in place of what the request has. `{secret:NAME}` in a value stands for a secret. */
  headers?: Record<string, string>;
  /** Headers to add beside those that are there. */
  add_headers?: Record<string, string>;
  /** Headers to take out. */
  remove_headers?: string[];
  /** Query parameters to set. */
  query?: Record<string, string>;
  /**
   * Sets `Authorization: Bearer …`, unless a placeholder of this rule was replaced in the request's head: then the
   * client has put the credential where it belongs.
   */
  bearer?: string | null;
  /** Sets `Authorization: Basic …`, under the same condition. */
  basic?: BasicAuth | null;
  /** Placeholders that stand for secrets inside the sandbox. */
  placeholders?: Placeholder[];
  /** Variables for every command in the sandbox, as they are. The sandbox's own variables win. */
  env?: Record<string, string>;
  /**
   * Replace this rule's secrets by asterisks wherever an answer shows them. In the headers of answers to requests
   * that carried them that is always so.
   */
  mask_responses?: boolean;
  /** Secrets may also be sent over plain HTTP, where everybody on the way can read them. */
  allow_plaintext?: boolean;
}

/** What happens where no rule speaks. */
export type Internet =
  | "off"
  | "on"
  | "rules";

/** How strongly a sandbox is cut off. Recorded with the sandbox and never silently downgraded. */
export type IsolationLevel =
  | "container"
  | "gvisor"
  | "microvm";

/** A key, without its secret. */
export interface Key {
  /** Its id. */
  id: string;
  /** What it is for. */
  name: string;
  /** The highest thing it may do. */
  scope: Scope;
  /** When it was made. */
  created_at_ms: number;
  /** When it stops working. */
  expires_at_ms?: number | null;
  /** When it was last used, to the minute. */
  last_used_at_ms?: number | null;
  /** Id of the project that it belongs to. */
  project?: string | null;
  /**
   * Who it is, if it is not a key that was created but a person who logged in. The scope is what rules give them
   * now, and `expires_at_ms` when their last login ends.
   */
  person?: KeyPerson | null;
}

/** A new key. The secret is shown this once. */
export interface KeyCreated {
  /** The key. */
  key: Key;
  /** What to send as `Authorization: Bearer …`. */
  secret: string;
}

/** What a key looks like. Clients of other vendors check, or are made for, keys of a certain shape. */
export type KeyFormat =
  | "atoll"
  | "e2b"
  | "daytona"
  | "runloop"
  | "modal";

/** All keys. */
export interface KeyList {
  /** The keys. */
  items: Key[];
}

/** A person, as the issuer of identities named them when they last logged in. */
export interface KeyPerson {
  /** The issuer. */
  issuer: string;
  /** Its name for them, which is never given to another person. */
  subject: string;
  /** Their address for mail, if the issuer has verified it. */
  email?: string | null;
  /** Whether a rule names them now: without one they may do nothing. */
  allowed: boolean;
}

/** A layer that a sandbox has. */
export interface Layer {
  /** The image as it was named. */
  image: string;
  /** The image, exactly. */
  digest: string;
}

/** What happens to a layer. */
export type LayerPhase =
  | "download"
  | "unpack"
  | "done";

/** Something on the host that belongs to no known sandbox. */
export interface Leak {
  /** The sandbox id it carries. */
  sandbox?: string | null;
  /** The snapshot id it carries. */
  snapshot?: string | null;
  /** `process`, `cgroup`, `directory`, `artifact`, … */
  kind: string;
  /** Its name on the host. */
  name: string;
  /** Whether it was removed. */
  removed: boolean;
}

/** Everything that belongs to no known sandbox or snapshot. */
export interface LeakList {
  /** The leaks; empty is good. */
  items: Leak[];
}

/** Exclusive use of a sandbox. */
export interface Lease {
  /** Id of the key that took it. */
  key: string;
  /** The name it was taken under. */
  holder: string;
  /** When it was taken. */
  taken_at_ms: number;
  /** When it ends by itself. */
  expires_at_ms: number;
}

/** Who has a sandbox for itself. */
export interface LeaseStatus {
  /** Absent when no key has. */
  lease?: Lease | null;
}

/** What one sandbox uses, measured by its host. What only grows is counted since the sandbox was made. */
export interface LiveUsage {
  /** Its id. */
  id: string;
  /** Its name. */
  name?: string | null;
  /** Its state. */
  state: SandboxState;
  /** How it is paused, while it is. */
  paused?: PauseMode | null;
  /** When it was asked for. */
  created_at_ms: number;
  /** When it was measured. */
  at_ms: number;
  /** Processor time, microseconds: two measurements say how busy it is. */
  cpu_us: number;
  /** Processor time that it may use, thousandths of a processor. */
  cpu_limit_millis: number;
  /** Memory now, bytes. */
  memory_bytes: number;
  /** Memory that it may use, bytes. */
  memory_limit_bytes: number;
  /** Space of its writable disk on the host, bytes. */
  disk_bytes: number;
  /** Processes and threads now. */
  pids: number;
  /** Commands that run now. */
  execs: number;
  /** Bytes that left it since its server was started. */
  sent_bytes: number;
  /** Bytes that came into it since its server was started. */
  received_bytes: number;
}

/** What all of them use. */
export interface LiveUsageList {
  /** One for each, on every node. */
  items: LiveUsage[];
}

/** What a sandbox uses. */
export interface Metrics {
  /** CPU time since creation, microseconds. */
  cpu_us: number;
  /** Memory now, bytes. */
  memory_bytes: number;
  /** Highest memory so far, bytes. */
  memory_peak_bytes: number;
  /** Memory limit, bytes. */
  memory_limit_bytes: number;
  /** Processes and threads now. */
  pids: number;
  /** Times the kernel killed something because memory ran out. */
  oom_kills: number;
  /** Space of the writable disk on the host, bytes. */
  disk_host_bytes: number;
  /** Size of the file system as seen inside, bytes. */
  disk_total_bytes: number;
  /** Used of it, bytes. */
  disk_used_bytes: number;
  /** Seconds since the guest started. */
  uptime_s: number;
  /**
   * What was read from its disks and written to them. Counted at the level `microvm` while it runs, and not while
   * it is paused or copied.
   */
  disk_io?: DiskIo | null;
}

/** Makes a directory. */
export interface Mkdir {
  /** The path. */
  path: string;
  /** Permissions in octal; `0755` when absent. */
  mode?: string | null;
  /** Owner; the sandbox's default user when absent. */
  user?: string | null;
  /** Make missing parents, and do not mind if it exists. */
  parents?: boolean;
}

/** How much may be asked of models. What is absent is not bounded. */
export interface ModelBudget {
  /** Requests. */
  requests?: number | null;
  /** Tokens of both kinds. The answer with which they are used up is passed on; the next request is refused. */
  tokens?: number | null;
}

/** What was asked of models, as the gateway saw it in their answers. */
export interface ModelUsage {
  /** Requests that were sent to models. */
  requests?: number;
  /** Tokens that models read, those of their caches included. */
  input_tokens?: number;
  /** Tokens that models wrote. */
  output_tokens?: number;
  /**
   * Requests whose answers did not say how many tokens they took; those are counted by their size, a token for four
   * bytes.
   */
  untold?: number;
}

/** Renames a file or directory. */
export interface MoveFile {
  /** From. */
  from: string;
  /** To. */
  to: string;
  /** Fail when `to` exists. */
  no_replace?: boolean;
}

/** The network of a sandbox. */
export interface NetworkView {
  /** What happens where no rule speaks. */
  internet: Internet;
  /** Since the sandbox was made, or since the last start of the server. */
  transferred: Transferred;
  /** Open connections, oldest first. */
  connections: ConnectionView[];
  /** By destination, most bytes first. */
  totals: TotalView[];
  /** What was refused, newest first. */
  denials: DenialView[];
}

/** A node. */
export interface Node {
  /** Its id, which stands in its data directory. */
  id: string;
  /** What people call it. */
  name: string;
  /** Where the other nodes reach it. */
  address: string;
  /** Version of its program. */
  version: string;
  /** How it is. */
  state: NodeState;
  /** Whether it is the one that answers. */
  is_this: boolean;
  /** Isolation levels that it has. */
  levels: IsolationLevel[];
  /** What its operator says of it. */
  labels: Record<string, string>;
  /** Sandboxes that it has, as it said with its last sign of life. */
  sandboxes: number;
  /** Most that it takes. */
  sandboxes_max: number;
  /** Memory that is available there, bytes; absent where that cannot be told. */
  memory_available_bytes?: number | null;
  /** How long the others wait for a sign of life, milliseconds. */
  lease_ms: number;
  /** Its last sign of life, by the database's clock, milliseconds since the epoch. */
  seen_ms: number;
  /** When it entered the cluster first, milliseconds since the epoch. */
  created_ms: number;
}

/** What a node still has that takes no new sandboxes. */
export interface NodeDrain {
  /** How the node is. */
  state: NodeState;
  /** Sandboxes that it has now. */
  sandboxes: number;
  /** Those of them that stay; the others are on their way. */
  staying: number;
  /** Which those are, and why: the first hundred. */
  items: StayingSandbox[];
}

/** Every node, by name. */
export interface NodeList {
  /** The nodes; none where the database belongs to one server. */
  items: Node[];
}

/** How a node is. */
export type NodeState =
  | "ready"
  | "draining"
  | "dead";

/** What happens to a sandbox whose budget is used up, after its execs were killed. */
export type OnExhausted =
  | "pause"
  | "delete";

/** What happens when the idle timeout ends. */
export type OnIdle =
  | "delete"
  | "freeze"
  | "hibernate";

/**
 * Whose process must have made a connection: a program of the image, as the image brought it, whatever runs in a
 * profile, or what one exec started. The kernel of the host says which it was.
 */
export type Origin = { program: string } | { digest: string } | { profile: string } | { exec: string };

/** A piece of output in JSON. */
export interface OutputChunk {
  /** Offset of its first byte in the exec's output, both streams together. */
  offset: number;
  /** Which stream. */
  stream: OutputStream;
  /** The bytes. */
  data: string;
  /** How they are written. */
  encoding: Encoding;
}

/** Answer of the long-poll: what there is from an offset on. */
export interface OutputPage {
  /** The chunks, contiguous. */
  chunks: OutputChunk[];
  /** Set when bytes between the asked offset and this one were dropped. */
  gap_until?: number | null;
  /** Ask with this offset next. */
  next_offset: number;
  /** Where the exec is in its life. Final and without chunks: there is no more. */
  state: ExecState;
  /** How it ended. */
  exit?: Exit | null;
}

/** Which of the two outputs a piece belongs to. A terminal has only [`OutputStream::Stdout`]. */
export type OutputStream =
  | "stdout"
  | "stderr";

/** What of a paused sandbox is kept. */
export type PauseMode =
  | "frozen"
  | "memory"
  | "filesystem";

/** Pauses a sandbox. */
export interface PauseSandbox {
  /** What is kept; `frozen` when absent. */
  mode?: PauseMode | null;
}

/** A text inside the sandbox that stands for a secret. It is worth nothing anywhere else. */
export interface Placeholder {
  /** The secret. */
  secret: string;
  /** The variable that holds the placeholder in every command of the sandbox. */
  env?: string | null;
  /** What the placeholder starts with, for programs that insist on a form such as `sk-`. */
  prefix?: string | null;
  /** Headers in which it is replaced, besides `Authorization` and the usual ones for keys, such as `X-Api-Key`. */
  headers?: string[];
  /** Replace it in the path, too. Servers repeat paths in answers and write them down. */
  path?: boolean;
  /** Replace it in the query, too. Servers repeat queries in answers and write them down. */
  query?: boolean;
  /** Replace it in request bodies, too. What a server stores of a body can be read again. */
  body?: boolean;
  /** The placeholder itself; made when absent, kept while the rule names the same secret. */
  value?: string | null;
}

/** Asks what has become of a login. */
export interface PollDeviceLogin {
  /** As it began. */
  login: string;
}

/** A pool of running sandboxes that wait to be handed out. */
export interface Pool {
  /** What tells it from the others. */
  name: string;
  /** The template it is of. */
  template?: string | null;
  /** The version of it that members are made of. */
  version?: number | null;
  /** The image it is of. */
  image?: string | null;
  /** The isolation level of its members, where they can be made. */
  isolation?: IsolationLevel | null;
  /** Kept ready whatever the demand. */
  min: number;
  /** Most that are kept ready. */
  max: number;
  /** Members older than this are replaced. */
  max_age_ms: number;
  /** Who says so. */
  origin: PoolOrigin;
  /** Members that wait. */
  ready: number;
  /** Members being made. */
  making: number;
  /** Members that should wait, by the demand of late and the memory there is. */
  target: number;
  /** Requests that got a member, since the server started. */
  hits: number;
  /** Requests that found none and made a sandbox instead. */
  misses: number;
  /** Members made. */
  made: number;
  /** Attempts at making one that failed. */
  failed: number;
  /** Age of the oldest member that waits. */
  oldest_age_ms?: number | null;
  /** How long making one takes on average. */
  make_ms: number;
  /** Memory that one takes, as measured; 0 when none was made yet. */
  member_bytes: number;
  /** Why it cannot be filled. */
  problem?: string | null;
}

/** All pools. */
export interface PoolList {
  /** The pools. */
  items: Pool[];
  /** Memory that members take now. */
  memory_bytes: number;
  /** Memory that the members of all pools may take together. */
  memory_max_bytes: number;
}

/** Who says how large a pool is. */
export type PoolOrigin =
  | "server"
  | "template"
  | "call"
  | "demand";

/** How many members a pool keeps. */
export interface PoolSpec {
  /** Kept ready whatever the demand. */
  min: number;
  /** Most that are kept ready. */
  max: number;
  /** Members older than this are replaced, milliseconds. One hour when absent. */
  max_age_ms?: number | null;
}

/** A port on which something listens inside a sandbox. */
export interface Port {
  /** The TCP port. */
  port: number;
  /** Where clients that are allowed to reach it do so from outside. */
  url: string;
  /** Whether everybody may. */
  public: boolean;
}

/** Ports on which something listens inside a sandbox. */
export interface PortList {
  /** Ascending. */
  items: Port[];
}

/** What the processes of a profile may do. */
export interface Profile {
  /** User of its execs, unless one says another; the sandbox's when absent. */
  user?: string | null;
  /** Its execs are killed this long after their start, unless one asks for less. */
  timeout_ms?: number | null;
  /** Files and directories whose content it does not see, and below which it changes nothing. */
  hide?: string[];
  /** Files and directories below which it changes nothing. */
  read_only?: string[];
  /**
   * The profile in which a program runs that its processes execute: by path in the image, as rules about programs
   * name them, and `*` for all others. The profile's own name lets a program stay in it. Nothing changes the
   * profile when this is empty.
   */
  on_exec?: Record<string, string>;
  /**
   * The profiles that its processes may ask for with `atoll-run --profile NAME -- COMMAND`, beside the one to which
   * `*` leads in `on_exec`.
   */
  may_run?: string[];
  /** What each process may use that begins in it, or gets into it; less than the sandbox has. */
  limits?: ProfileLimits;
}

/**
 * Limits of each process of a profile. They are inherited, and no process inside can raise them. All together have
 * the sandbox's limits.
 */
export interface ProfileLimits {
  /** Memory that one process may write to, bytes; asking for more fails. */
  memory_bytes?: number | null;
  /** A process of it makes no other while its user has so many in the sandbox, threads included. */
  processes?: number | null;
  /** CPU time of one process, seconds; then it is killed. */
  cpu_seconds?: number | null;
}

/**
 * The profiles of a sandbox. A process is in one from its exec's first moment on, or in none; it leaves it only by
 * running a program, and only for one that the profile names.
 */
export interface Profiles {
  /** The profile of execs that ask for none; in none when absent. */
  default?: string | null;
  /**
   * By name. What rules of the network and of secrets say is `from: {profile: NAME}` is for its processes alone.
   */
  named?: Record<string, Profile>;
}

/** Which programs may run. */
export type Programs =
  | "any"
  | "image"
  | "listed";

/** A project. */
export interface Project {
  /** Its id. */
  id: string;
  /** Its name. */
  name: string;
  /** How much it may have. */
  quota: Quota;
  /** What its sandboxes are when neither the request nor the template says. */
  defaults: ProjectDefaults;
  /** How much of its quota it has. Absent in listings. */
  used?: QuotaUsed | null;
  /** What belongs to it. Absent in listings. */
  has?: ProjectContent | null;
  /** When it was made. */
  created_at_ms: number;
}

/** What belongs to a project: while anything does it is not removed. */
export interface ProjectContent {
  /** Keys. */
  keys: number;
  /** Sandboxes. */
  sandboxes: number;
  /** Snapshots, also such as something else holds. */
  snapshots: number;
  /** Volumes. */
  volumes: number;
  /** Secrets. */
  secrets: number;
}

/** What sandboxes of a project are when neither caller nor template says: before the server's own defaults. */
export interface ProjectDefaults {
  /** The image. */
  image?: string | null;
  /** The isolation level. */
  isolation?: IsolationLevel | null;
  /** Limits. */
  resources?: ResourcesDraft;
  /** Whether the other keys of the project see a sandbox. */
  visibility?: Visibility | null;
  /** Delete it this long after creation. */
  ttl_ms?: number | null;
  /** Delete it after this long without a running exec or a request. */
  idle_timeout_ms?: number | null;
  /** What it may reach. */
  egress?: EgressPolicy | null;
}

/** All projects. */
export interface ProjectList {
  /** The projects, by age. */
  items: Project[];
}

/** How much of the cache to keep. */
export interface PruneBuildCache {
  /** The longest unused entries go until the rest has this many bytes; 0 removes all. */
  keep_bytes?: number;
}

/** What pruning did. */
export interface PruneResult {
  /** Digests of removed images. */
  removed: string[];
  /** Space freed, bytes. */
  freed_bytes: number;
}

/** Pulls an image. */
export interface PullImage {
  /** Reference, such as `docker.io/library/python:3.12`. */
  reference: string;
  /** Credentials for this pull; the stored ones of the registry when absent. */
  credentials?: RegistryCredentials | null;
  /** `os/architecture`; the host's when absent. */
  platform?: string | null;
  /** Speak plain HTTP to this registry. Loopback registries may always. */
  insecure_http?: boolean;
  /** Certificate authorities to trust for this registry besides the public ones, PEM. */
  ca_pem?: string | null;
}

/** Fetches a snapshot from the object store. */
export interface PullSnapshot {
  /** Its digest, or a reference there. */
  from: string;
  /** References here that shall point to it; the same as there when absent. */
  tags?: string[];
  /**
   * Who sees it: `private` is you and administrators. The server's default when absent; what you sent as a private
   * snapshot is private in any case.
   */
  visibility?: Visibility | null;
}

/** Sends a snapshot to the object store. */
export interface PushSnapshot {
  /** References there that shall name it; those that it has here when absent. */
  tags?: string[];
}

/** What came of sending a snapshot. */
export interface PushedSnapshot {
  /** The digest under which it is there. */
  digest: string;
  /** References there that name it now. */
  tags: string[];
  /** Bytes that were sent; 0 when it was there already. */
  sent_bytes: number;
}

/** Gives a role. */
export interface PutGrant {
  /** The most it may do with the sandbox. */
  role: Role;
}

/** Sets a pool up, or changes its size. Exactly one of `template` and `image` says what it is of. */
export interface PutPool {
  /** Name of a template: members are made of its newest version. */
  template?: string | null;
  /** An image: members have the default limits. */
  image?: string | null;
  /** Kept ready whatever the demand. */
  min: number;
  /** Most that are kept ready. */
  max: number;
  /** Members older than this are replaced. One hour when absent. */
  max_age_ms?: number | null;
}

/** Makes a secret, gives it a new value, or changes its scope or note. What is absent stays as it is. */
export interface PutSecret {
  /** A new value: the next version. A new secret needs one. Never returned. */
  value?: string | null;
  /** Where it may go and who may use it. A new secret needs it. */
  scope?: SecretScope | null;
  /** What people should know about it. */
  note?: string | null;
}

/** How much a project may have. What is absent has no limit of the project's. */
export interface Quota {
  /** Sandboxes that exist. */
  sandboxes?: number | null;
  /** Sandboxes that run: all but those that are paused or have failed. */
  running?: number | null;
  /** The CPU limits of those that run together, thousandths of a core. */
  cpu_millis?: number | null;
  /** The memory limits of those that run together, bytes. */
  memory_bytes?: number | null;
  /** The disk limits of those that exist together, bytes. */
  disk_bytes?: number | null;
}

/** How much of its quota a project has. */
export interface QuotaUsed {
  /** See [`Quota::sandboxes`]. */
  sandboxes: number;
  /** See [`Quota::running`]. */
  running: number;
  /** See [`Quota::cpu_millis`]. */
  cpu_millis: number;
  /** See [`Quota::memory_bytes`]. */
  memory_bytes: number;
  /** See [`Quota::disk_bytes`]. */
  disk_bytes: number;
}

/**
 * When a sandbox of a template is ready for its first caller: when a command succeeds, or a port is listened on.
 */
export interface Ready {
  /** Tried until it exits with 0. */
  command?: CommandText | null;
  /** Looked at until something listens on it. */
  port?: number | null;
  /** Give up after this long; 60 seconds when absent, at most ten minutes. */
  timeout_ms?: number | null;
  /** Longest pause between attempts, of which the first come faster; 100 milliseconds when absent. */
  interval_ms?: number | null;
}

/** User name and password for a registry. */
export interface RegistryCredentials {
  /** User name. */
  username: string;
  /** Password or token. Never returned. */
  password: string;
}

/** A registry with stored credentials. */
export interface RegistryEntry {
  /** Host and port. */
  host: string;
  /** User name. The password is never returned. */
  username: string;
  /** When they were stored. */
  updated_at_ms: number;
}

/** All registries with stored credentials. */
export interface RegistryList {
  /** The registries. */
  items: RegistryEntry[];
}

/** What removing did. */
export interface RemovedImage {
  /** Whether the image itself is gone; otherwise only a name was taken off. */
  removed: boolean;
  /** Space freed, bytes. */
  freed_bytes: number;
}

/** What a removal did. */
export interface RemovedSnapshot {
  /** References that are gone. */
  tags: string[];
  /** Id of the snapshot, if it is gone too and not only one of its references. */
  snapshot?: string | null;
}

/** Limits of a sandbox, all enforced by the kernel or by the machine that it is in. */
export interface Resources {
  /** CPU time per wall time, thousandths of a core. */
  cpu_millis: number;
  /** Memory with page cache and tmpfs, bytes. Beyond it the kernel kills inside the sandbox. */
  memory_bytes: number;
  /** Processes and threads. */
  pids: number;
  /** Writable disk, bytes. Beyond it writes get `ENOSPC`. */
  disk_bytes: number;
  /**
   * What is read from its disks and written to them together, bytes per second; beyond it they are slower. Absent:
   * as fast as the host can.
   */
  io_bytes_per_second?: number | null;
  /** Reads and writes of its disks together, per second, however large each is. Absent: no limit. */
  io_operations_per_second?: number | null;
}

/** Limits as asked: what is absent comes from the template or the default. */
export interface ResourcesDraft {
  /** See [`Resources::cpu_millis`]. */
  cpu_millis?: number | null;
  /** See [`Resources::memory_bytes`]. */
  memory_bytes?: number | null;
  /** See [`Resources::pids`]. */
  pids?: number | null;
  /** See [`Resources::disk_bytes`]. */
  disk_bytes?: number | null;
  /** See [`Resources::io_bytes_per_second`]. `null` is no limit, whatever was there before. */
  io_bytes_per_second?: number | null;
  /** See [`Resources::io_operations_per_second`]. `null` is no limit, whatever was there before. */
  io_operations_per_second?: number | null;
}

/** When a service is started again after it has ended. */
export type Restart =
  | "always"
  | "on_failure"
  | "never";

/** What a key is granted on one sandbox. Each includes the ones before it. */
export type Role =
  | "read"
  | "exec"
  | "manage";

/** Puts a sandbox back to an earlier state. */
export interface RollbackSandbox {
  /**
   * The number of a checkpoint, or a snapshot on the same image. When absent, back to before the last command
   * began, as far as there is a checkpoint of that.
   */
  to?: string | null;
}

/** A sandbox that was put back. */
export interface RolledBack {
  /** The sandbox, under its old id. */
  sandbox: Sandbox;
  /** What it was put back to. */
  to: Snapshot;
}

/**
 * One rule. What is absent is not looked at; all that is present must match. `methods` and `path` speak of HTTP
 * requests. For HTTPS they hold where the gateway opens TLS; where it does not, a rule that allows does not match
 * and one that denies does.
 */
export interface Rule {
  /** What it says. */
  action: Action;
  /** A name for it, shown in refusals. */
  name?: string | null;
  /** Names: `example.com`, `*.example.com` (everything below it), `*`. */
  domain?: string | null;
  /** Addresses: `192.0.2.0/24`, or one address. Private ones are reached only through such a rule. */
  cidr?: string | null;
  /** Ports: numbers, or texts such as `8000-8999`. */
  ports?: string[];
  /** Methods of HTTP, in capitals. */
  methods?: string[];
  /** Paths of HTTP; `*` stands for any characters. */
  path?: string | null;
  /**
   * Only connections that this program made; of rules that allow. Needs a sandbox whose programs the host's kernel
   * sees (containers).
   */
  from?: Origin | null;
}

/** Runs code in a context. */
export interface RunCell {
  /** The code: at most 512 KiB. */
  code: string;
  /** Variables on top of the context's, for this cell. */
  env?: Record<string, string>;
  /** Interrupt it this long after it was asked for; never when absent. */
  timeout_ms?: number | null;
  /**
   * A second request with the same key in the same sandbox returns the first cell. Execs and cells share their
   * keys.
   */
  idempotency_key?: string | null;
  /** Wait up to this long for its end (at most 60,000). */
  wait_ms?: number | null;
}

/** A sandbox. */
export interface Sandbox {
  /** Its id. */
  id: string;
  /** Its name, if it has one. */
  name?: string | null;
  /** Where it is in its life. */
  state: SandboxState;
  /** Why it failed, or was paused by Atoll. */
  reason?: string | null;
  /** How it is paused, while it is. */
  paused?: PauseMode | null;
  /** Since when. */
  paused_at_ms?: number | null;
  /**
   * Since when everything that it needs to be woken on another node is in the object store, too. Absent while it
   * runs, as long as it is not, and where there are no nodes.
   */
  kept_at_ms?: number | null;
  /** Names the boot it is in. Another one means that every process in it was started anew. */
  boot_id?: string;
  /** The image as it was named. */
  image: string;
  /** Digest of the image's manifest; absent for `host`. */
  image_digest?: string | null;
  /** The template version it came from. */
  template?: string | null;
  /** Id of the snapshot it began with. */
  snapshot?: string | null;
  /** Checkpoints that it takes by itself. */
  auto_checkpoints?: AutoCheckpoints | null;
  /** How it outlives its node. */
  durability?: Durability | null;
  /** Its node died, and it was brought back from a copy of this moment: what was done afterwards is lost. */
  restored_from_ms?: number | null;
  /** When that was. */
  restored_at_ms?: number | null;
  /** The isolation level. */
  isolation: IsolationLevel;
  /** What executes its machine, at the level `microvm`: `kvm`, or `emulated`, which is no security boundary. */
  accelerator?: Accelerator | null;
  /** Limits. */
  resources: Resources;
  /** Environment of every exec. */
  env: Record<string, string>;
  /** Labels. */
  labels: Record<string, string>;
  /** Texts kept beside it. */
  annotations?: Record<string, string>;
  /** Default user of execs. */
  user: string;
  /** Default working directory of execs. */
  workdir?: string | null;
  /** When it was made. */
  created_at_ms: number;
  /** When it will be deleted at the latest. */
  expires_at_ms?: number | null;
  /** See [`CreateSandbox::idle_timeout_ms`]. */
  idle_timeout_ms?: number | null;
  /** What it may reach. */
  egress?: EgressPolicy;
  /** Which programs may run. */
  execution?: ExecutionPolicy;
  /** Profiles of its processes. */
  profiles?: Profiles;
  /** See [`CreateSandbox::on_idle`]. */
  on_idle?: OnIdle;
  /** See [`CreateSandbox::idle_freeze_ms`]. */
  idle_freeze_ms?: number | null;
  /** See [`CreateSandbox::hibernate_after_ms`]. */
  hibernate_after_ms?: number | null;
  /** See [`CreateSandbox::delete_paused_after_ms`]. */
  delete_paused_after_ms?: number | null;
  /** See [`CreateSandbox::budget`]. */
  budget?: Budget;
  /** When it was last used. */
  last_active_at_ms: number;
  /** Id of the key that made it. */
  owner?: string | null;
  /** Id of the project that it belongs to. */
  project?: string | null;
  /** Volumes that are mounted in it. */
  volumes?: VolumeMount[];
  /** Agent layers that are mounted in it below `/opt/agents`, by name. */
  layers?: Record<string, Layer>;
}

/** Who may use a sandbox. */
export interface SandboxAccess {
  /** Id of the key that made it: may do everything that its scope allows. */
  owner?: string | null;
  /** Whether keys without a grant see it. */
  visibility: Visibility;
  /** Whether that is the server's default. */
  is_default: boolean;
  /** Roles by key. */
  grants: Grant[];
}

/** A page of sandboxes, newest first. */
export interface SandboxList {
  /** The page. */
  items: Sandbox[];
  /** Pass it as `cursor` for the next page. */
  next_cursor?: string | null;
}

/** Where a sandbox is in its life. */
export type SandboxState =
  | "creating"
  | "running"
  | "pausing"
  | "paused"
  | "resuming"
  | "deleting"
  | "failed";

/** One time that a message was due. */
export interface ScheduleRun {
  /** When it was due, milliseconds since the epoch. */
  due_at_ms: number;
  /** The number of the message in its session; absent when it was not taken. */
  message?: number | null;
  /** Why it was not taken: the code of an error. */
  error?: string | null;
}

/** What a key may do. Each includes the ones before it. */
export type Scope =
  | "read"
  | "exec"
  | "manage"
  | "admin";

/** A secret, without its value. */
export interface Secret {
  /** Its name. */
  name: string;
  /** Where it may go and who may use it. */
  scope: SecretScope;
  /** What people wrote about it. */
  note: string;
  /** The versions that are kept, oldest first. */
  versions: SecretVersion[];
  /** When it was made. */
  created_at_ms: number;
  /** Id of the key that made it. */
  created_by?: string | null;
}

/** All secrets. */
export interface SecretList {
  /** By name. */
  items: Secret[];
}

/** Where a secret may go: the lock on the secret itself, whatever a sandbox's rules say. */
export interface SecretScope {
  /** Hosts that may receive it; `*` means any. */
  hosts: string[];
  /** Names of templates whose sandboxes may use it; any sandbox when empty. */
  templates?: string[];
  /** Ids or names of sandboxes that may use it; any when empty. */
  sandboxes?: string[];
  /** API keys whose sandboxes may use it; any when empty. */
  keys?: string[];
}

/** One use of a secret. */
export interface SecretUse {
  /** When. */
  at_ms: number;
  /** The secret. */
  secret: string;
  /** Which version. */
  version: number;
  /** Id of the sandbox. */
  sandbox: string;
  /** The host that received it. */
  host: string;
  /** The request's method. */
  method: string;
  /** The request's path, without its query. */
  path: string;
  /** The rule that put it in. */
  rule: string;
}

/** Uses of secrets. */
export interface SecretUseList {
  /** The newest first. */
  items: SecretUse[];
}

/** A version of a secret. */
export interface SecretVersion {
  /** Counts from 1. Rules may pin it: `NAME@3`. */
  version: number;
  /** When it was set. */
  created_at_ms: number;
}

/** Sends a message. */
export interface SendAgentMessage {
  /** What to say: at most 256 KiB. */
  text: string;
  /**
   * Sent again with the same key, the message is the one that was taken: at most 128 printable ASCII characters.
   */
  key?: string | null;
}

/** What this server is. */
export interface ServerInfo {
  /** Version of the program. */
  version: string;
  /** Random id of this installation. */
  installation: string;
  /** Isolation levels it can give. */
  isolation: string[];
  /** What executes machines of the level `microvm`, if it has that. */
  accelerator?: Accelerator | null;
  /** Sandboxes that exist now, in any state. */
  sandboxes: number;
  /** Most sandboxes it will have at once. */
  sandboxes_max: number;
}

/** A service. */
export interface Service {
  /** Its id. */
  id: string;
  /** Its name, unique in the sandbox. */
  name: string;
  /** The sandbox it runs in. */
  sandbox: string;
  /** What it runs: a line for the shell, or program and arguments. */
  command: CommandText;
  /** User it runs as; the sandbox's when absent. */
  user?: string | null;
  /** Working directory; the sandbox's when absent. */
  cwd?: string | null;
  /** When it is started again. */
  restart: Restart;
  /** First pause before that. */
  backoff_ms: number;
  /** Longest such pause. */
  backoff_max_ms: number;
  /** Early ends in a row after which it is given up; 0: never. */
  give_up_after: number;
  /** What it has to end by itself before it is killed. */
  stop_timeout_ms: number;
  /** When it is ready. */
  ready?: ServiceReady | null;
  /** Whether it still works. */
  health?: ServiceHealth | null;
  /** Services that it is started after. */
  after?: string[];
  /** Where it is. */
  state: ServiceState;
  /** Why, where there is something to say. */
  reason?: string | null;
  /** Number of its last run; 0 before the first. */
  run: number;
  /** The exec of that run. */
  exec?: string | null;
  /** How the last run that has ended did. */
  last_exit?: Exit | null;
  /** When it is started again, while it is backing off. */
  next_start_at_ms?: number | null;
  /** When it was asked for. */
  created_at_ms: number;
}

/**
 * Whether a service that is ready still works. One of `command` and `port`; with `path` the port is asked over
 * HTTP.
 */
export interface ServiceHealth {
  /** Must end with code 0. */
  command?: CommandText | null;
  /** Something must listen on it. */
  port?: number | null;
  /** Asked for over HTTP on the port; the status must be 200 to 399. */
  path?: string | null;
  /** Pause between looks; ten seconds when absent. */
  interval_ms?: number | null;
  /** Longest that one look may take; five seconds when absent, at most ten minutes. */
  timeout_ms?: number | null;
  /** The service is killed, and counts as failed, after so many bad looks in a row; 3 when absent. */
  failures?: number | null;
}

/** The services of a sandbox, by name. */
export interface ServiceList {
  /** All of them. */
  items: Service[];
}

/** A piece of a service's log. */
export interface ServiceLogChunk {
  /** Offset of its first byte in the service's log, over all runs and both streams. */
  offset: number;
  /** Number of the run that wrote it. */
  run: number;
  /** Which stream. */
  stream: OutputStream;
  /** The bytes. */
  data: string;
  /** How they are written. */
  encoding: Encoding;
}

/** What there is of a service's log from an offset on. */
export interface ServiceLogPage {
  /** The chunks, contiguous. */
  chunks: ServiceLogChunk[];
  /** Set when bytes between the asked offset and this one are not kept any more. */
  gap_until?: number | null;
  /** Ask with this offset next. */
  next_offset: number;
  /** Where the service is. More may come whatever it is. */
  state: ServiceState;
}

/**
 * When a service that was started is ready. One of `command` and `port`; with `path` the port is asked over HTTP.
 */
export interface ServiceReady {
  /** Tried until it ends with code 0. */
  command?: CommandText | null;
  /** Looked at until something listens on it. */
  port?: number | null;
  /** Asked for over HTTP on the port until the status is 200 to 399. */
  path?: string | null;
  /** Longest pause between attempts, of which the first come faster; 200 milliseconds when absent. */
  interval_ms?: number | null;
  /** It counts as failed when it is not ready after this long; 60 seconds when absent, at most ten minutes. */
  timeout_ms?: number | null;
}

/** Where a service is. */
export type ServiceState =
  | "waiting"
  | "starting"
  | "running"
  | "backing_off"
  | "stopped"
  | "exited"
  | "failed";

/** Where a session is. */
export type SessionState =
  | "idle"
  | "working"
  | "waiting_for_approval"
  | "failed";

/** Where a tag points. */
export interface SetTemplateTag {
  /** The version; the newest when absent. */
  version?: number | null;
}

/** Sets whether keys without a grant see a sandbox. */
export interface SetVisibility {
  /** `null` leaves it to the server's default. */
  visibility?: Visibility | null;
}

/** Sends a signal. */
export interface SignalExec {
  /** Name (`TERM`, `SIGINT`) or number. */
  signal: string;
  /** To the whole tree rather than the process group. */
  tree?: boolean;
}

/**
 * A snapshot: the writable disk of a sandbox at one moment, and its memory when that was asked for. It never
 * changes.
 */
export interface Snapshot {
  /** Its id. */
  id: string;
  /** Where it is in its life. */
  state: SnapshotState;
  /** What is in it. */
  kind: SnapshotKind;
  /** References that point to it now, as `name:tag`. */
  tags: string[];
  /** Its number among the checkpoints of its sandbox, if it is one. */
  checkpoint?: number | null;
  /** Its sandbox took it by itself. */
  automatic?: boolean;
  /** A note by the caller who made it. */
  comment?: string | null;
  /** The sandbox it was taken of, which may be gone; absent when it was imported. */
  sandbox?: string | null;
  /** The image it stands on, as it was named. */
  image: string;
  /** The image, exactly; absent for `host`. */
  image_digest?: string | null;
  /** The isolation level it was taken at and can be used at. */
  isolation: IsolationLevel;
  /** Limits that a sandbox made from it has, unless it is asked for others. The disk cannot be smaller. */
  resources: Resources;
  /** Environment that a sandbox made from it has. */
  env: Record<string, string>;
  /** Default user. */
  user: string;
  /** Default working directory. */
  workdir?: string | null;
  /** Version of the form that its data has. */
  format: number;
  /** Digest of manifest and data, as `blake3:…`; found out a moment after it was taken. */
  digest?: string | null;
  /** What it takes on the host, bytes. A clone shares most of it with its sandbox. */
  stored_bytes: number;
  /** How its disk came about: a clone takes no time, a copy takes as long as there is data. */
  method?: CopyMethod | null;
  /** How long the sandbox could not write while it was taken, microseconds. */
  paused_us?: number | null;
  /** When it was taken. */
  created_at_ms: number;
  /** Id of the key that took it. */
  created_by?: string | null;
}

/** What is in a snapshot. */
export type SnapshotKind =
  | "disk"
  | "memory";

/** A page of snapshots, newest first. */
export interface SnapshotList {
  /** The page. */
  items: Snapshot[];
  /** Pass it as `cursor` for the next page. */
  next_cursor?: string | null;
}

/** Where a snapshot is in its life. */
export type SnapshotState =
  | "creating"
  | "ready"
  | "deleting";

/** Where SSH clients connect. The login name is the sandbox, or `SANDBOX+USER`. */
export interface SshInfo {
  /** The public host key, as it stands in `known_hosts` without names. */
  host_key: string;
  /** A name for this server that does not change with its address. */
  host_key_alias: string;
}

/** An SSH public key. Who logs in with it may do what its API key may. */
export interface SshKey {
  /** Its id. */
  id: string;
  /** What it is for. */
  name: string;
  /** Kind and key, as in `authorized_keys`. */
  public_key: string;
  /** As SSH programs show it. */
  fingerprint: string;
  /** Id of the API key it stands for. */
  owner: string;
  /** When it was registered. */
  created_at_ms: number;
  /** When it stops working. */
  expires_at_ms?: number | null;
}

/** SSH keys. */
export interface SshKeyList {
  /** The oldest first. */
  items: SshKey[];
}

/** At which point something was refused. */
export type Stage =
  | "dns"
  | "connect"
  | "request"
  | "limit";

/** What the built template starts in each of its sandboxes. */
export type StartFrom = { command: CommandText } | "image";

/** How a check came out. */
export type Status =
  | "ok"
  | "limited"
  | "missing";

/** A sandbox that stays on a node which is drained. */
export interface StayingSandbox {
  /** Its id. */
  id: string;
  /** Its name, if it has one. */
  name?: string | null;
  /** Why it does not go to another node. */
  reason: string;
}

/** Standard input was taken. */
export interface StdinWritten {
  /** Bytes taken. */
  bytes: number;
}

/** One step of a step list. */
export type Step = { from: string } | { run: CommandText } | { copy: CopyStep } | { env: Record<string, string> } | { label: Record<string, string> } | { workdir: string } | { user: string } | { cmd: CommandText } | { entrypoint: CommandText };

/** What happens to a step. */
export type StepState =
  | "started"
  | "cached"
  | "done"
  | "failed";

/** Makes a reference point to a snapshot. */
export interface TagSnapshot {
  /** `name` or `name:tag`. It leaves what it points to now. */
  tag: string;
}

/** Asks for exclusive use. */
export interface TakeLease {
  /** It ends by itself this long from now; at most a day. */
  ttl_ms: number;
  /** The name that others are shown: 1 to 128 bytes. The key's id when absent. */
  holder?: string | null;
}

/** One version of a template. */
export interface Template {
  /** Id of this version. */
  id: string;
  /** Its name. */
  name: string;
  /** Its version, from 1. */
  version: number;
  /** The image. */
  image: string;
  /** Id of the snapshot that its sandboxes begin with. */
  snapshot?: string | null;
  /** The isolation level. */
  isolation?: IsolationLevel | null;
  /** Limits. */
  resources: ResourcesDraft;
  /** Environment. */
  env: Record<string, string>;
  /** Labels. */
  labels: Record<string, string>;
  /** Default user. */
  user?: string | null;
  /** Default working directory. */
  workdir?: string | null;
  /** Time to live of its sandboxes. */
  ttl_ms?: number | null;
  /** Idle timeout of its sandboxes. */
  idle_timeout_ms?: number | null;
  /** How many of its sandboxes wait warm. */
  pool?: PoolSpec | null;
  /** What its sandboxes may reach. */
  egress?: EgressPolicy | null;
  /** What runs in every sandbox. */
  start?: CommandText | null;
  /** When a sandbox is ready. */
  ready?: Ready | null;
  /** When what runs in every sandbox is started again after it ended. */
  restart?: Restart | null;
  /** Which programs may run in its sandboxes. */
  execution?: ExecutionPolicy | null;
  /** Profiles of the processes of its sandboxes. */
  profiles?: Profiles | null;
  /** Services that every sandbox begins with. */
  services?: CreateService[];
  /** The memory that its sandboxes go on from, where it was asked for. */
  memory?: TemplateMemory | null;
  /** When this version was made. */
  created_at_ms: number;
}

/** Templates, newest version of each. */
export interface TemplateList {
  /** The templates. */
  items: Template[];
}

/** The memory that sandboxes of a template go on from. */
export interface TemplateMemory {
  /** Where it is. */
  state: TemplateMemoryState;
  /** What failed last. Sandboxes boot then. */
  problem?: string | null;
  /** When it was saved. */
  saved_at_ms?: number | null;
  /** What it takes on the host, bytes. */
  stored_bytes?: number | null;
}

/** Where the memory of a template is. */
export type TemplateMemoryState =
  | "saving"
  | "saved"
  | "failed"
  | "superseded";

/** A name for one version of a template: `NAME:TAG` stands wherever `NAME:VERSION` can. */
export interface TemplateTag {
  /** The tag. */
  tag: string;
  /** The version that it means. */
  version: number;
  /** When it was pointed there. */
  set_at_ms: number;
}

/** The tags of a template, by name. */
export interface TemplateTagList {
  /** The tags. */
  items: TemplateTag[];
}

/** Bytes to one destination since the sandbox's network was taken up. */
export interface TotalView {
  /** `name:port`, or `address:port` where there is no name; `(others)` for those beyond the limit. */
  destination: string;
  /** Connections made. */
  connections: number;
  /** Bytes that left the sandbox. */
  sent_bytes: number;
  /** Bytes that came into the sandbox. */
  received_bytes: number;
}

/** An event of a sandbox. What else it has depends on its kind; see the documentation of the recorder. */
export interface TraceEvent {
  /** The sandbox. */
  sandbox: string;
  /** Counts the events of a sandbox, from 1. */
  number: number;
  /** When, microseconds since the epoch. */
  at_us: number;
  /** Who saw it: `host`, `sentry`, `gateway`, `server` or `guest`. */
  witness: string;
  /** What happened, such as `exec_started`. */
  kind: string;
}

/** Files of which is told when they change. */
export interface TraceFiles {
  /** Files, and directories with all below them, from the moment on that they are there. */
  paths?: string[];
  /** Whether the content of what was written is told by its BLAKE3, up to 64 MiB for each file. */
  digests?: boolean;
}

/** Something in a journal that is not as the recorder wrote it. */
export interface TraceFinding {
  /** Name of the file. */
  segment: string;
  /** Offset in the unpacked segment, bytes. */
  offset: number;
  /** The last event before it that is as it was written. */
  after: number;
  /** What is wrong. */
  what: string;
}

/** A gap that the recorder itself announced. */
export interface TraceGap {
  /** Number of the event that announces it. */
  number: number;
  /** What is missing and why. */
  what: string;
}

/** How much is recorded. Ordered: a later one records no less. */
export type TraceMode =
  | "off"
  | "on"
  | "strict";

/** Events in order. */
export interface TracePage {
  /** The events. */
  items: TraceEvent[];
  /** Number from which to ask for the next page. */
  next: number;
}

/** Whether a journal is as the recorder wrote it. */
export interface TraceReport {
  /** The sandbox. */
  sandbox: string;
  /** The public key that signatures were verified with. */
  key: string;
  /** Events that were read. */
  events: number;
  /** Number of the first event that is kept. */
  first: number;
  /** Number of the last event. */
  last: number;
  /** Number of the last event that a good signature covers. */
  signed: number;
  /** Whether the journal was ended: nothing can be missing at its end. */
  ended: boolean;
  /** The last signed statement as `number:link`, to be kept elsewhere. */
  head?: string | null;
  /** Gaps that the recorder itself announced. */
  gaps: TraceGap[];
  /** What is not as it was written; none when all is well. */
  findings: TraceFinding[];
}

/** Bytes of a sandbox. */
export interface Transferred {
  /** Bytes that left the sandbox. */
  sent_bytes: number;
  /** Bytes that came into the sandbox. */
  received_bytes: number;
}

/** Size of a terminal in characters. */
export interface TtySize {
  /** Columns. */
  cols: number;
  /** Rows. */
  rows: number;
}

/** Puts another version of an agent's program in its sandbox. */
export interface UpdateAgent {
  /** Which; the latest when absent. */
  version?: string | null;
}

/** Changes a node. */
export interface UpdateNode {
  /** Whether it takes no new sandboxes. */
  draining: boolean;
}

/** Changes a project. Absent fields stay as they are. */
export interface UpdateProject {
  /** A new name. */
  name?: string | null;
  /** Replaces the whole quota. What is above it already stays: nothing more comes until there is less. */
  quota?: Quota | null;
  /** Replaces all defaults. */
  defaults?: ProjectDefaults | null;
}

/** Changes a sandbox. Absent fields stay as they are. */
export interface UpdateSandbox {
  /** A new name. The host name inside stays. */
  name?: string | null;
  /** Sets variables of later execs; `null` removes one. */
  env?: Record<string, string | null>;
  /** New default user of later execs. */
  user?: string | null;
  /** New default working directory of later execs. `null` is the user's home. */
  workdir?: string | null;
  /** Sets annotations; `null` removes one. */
  annotations?: Record<string, string | null>;
  /** Replaces all labels. */
  labels?: Record<string, string> | null;
  /** Extends (or shortens) its life: it ends this long from now. `null` removes the end. */
  ttl_ms?: number | null;
  /** New idle timeout. `null` removes it. */
  idle_timeout_ms?: number | null;
  /** New limits; the disk's cannot change. */
  resources?: ResourcesDraft;
  /** Adds secrets for this sandbox alone, or gives them new values. Never returned. */
  secrets?: Record<string, string>;
  /** Replaces what it may reach, at once: connections that are no longer allowed are cut. */
  egress?: EgressPolicy | null;
  /** What the end of the idle timeout means. */
  on_idle?: OnIdle | null;
  /** Freeze it after this long without use. `null` removes it. */
  idle_freeze_ms?: number | null;
  /** Pause it as `filesystem` when it has been paused as `frozen` for this long. `null` removes it. */
  hibernate_after_ms?: number | null;
  /** Delete it when it has been paused for this long. `null` removes it. */
  delete_paused_after_ms?: number | null;
  /** Replaces the budget. What was used stays used. */
  budget?: Budget | null;
  /** Replaces which programs may run, at once. What runs already goes on. */
  execution?: ExecutionPolicy | null;
  /**
   * Mounts other images as agent layers, at once: what is open in one that goes stays open. `null` takes one away.
   * At the isolation level `gvisor` it has them when it is next started.
   */
  layers?: Record<string, string | null>;
}

/** What was used. Everything only grows. */
export interface Usage {
  /** CPU time of everything in the sandbox, microseconds, as the host's kernel counts it. */
  cpu_us: number;
  /** Memory charged to the sandbox × time: what is shared with others is charged to one of them. */
  memory_byte_seconds: number;
  /** Space of the writable disk on the host × time. */
  disk_byte_seconds: number;
  /** Wall time in which it ran, milliseconds. Paused time does not count. */
  running_ms: number;
  /** Bytes that left it through the egress gateway. */
  egress_bytes: number;
  /** Times that it was used: execs, files, ports. */
  requests: number;
  /** Execs started. */
  execs: number;
  /** CPU time of execs as the guest reports it, microseconds. */
  exec_cpu_us: number;
}

/** What one line of usage stands for. */
export type UsageGroup =
  | "total"
  | "sandbox"
  | "key"
  | "project"
  | "hour";

/** One line of usage. What it is not grouped by is absent. */
export interface UsageItem {
  /** CPU time of everything in the sandbox, microseconds, as the host's kernel counts it. */
  cpu_us: number;
  /** Memory charged to the sandbox × time: what is shared with others is charged to one of them. */
  memory_byte_seconds: number;
  /** Space of the writable disk on the host × time. */
  disk_byte_seconds: number;
  /** Wall time in which it ran, milliseconds. Paused time does not count. */
  running_ms: number;
  /** Bytes that left it through the egress gateway. */
  egress_bytes: number;
  /** Times that it was used: execs, files, ports. */
  requests: number;
  /** Execs started. */
  execs: number;
  /** CPU time of execs as the guest reports it, microseconds. */
  exec_cpu_us: number;
  /** Id of the sandbox, which may be gone. */
  sandbox?: string | null;
  /** Id of the key, which may be gone. */
  key?: string | null;
  /** Id of the project, which may be gone. */
  project?: string | null;
  /** When the hour began. */
  hour_at_ms?: number | null;
}

/** What was used, the newest first. */
export interface UsageList {
  /** The lines. */
  items: UsageItem[];
}

/** The vault's key was changed. */
export interface VaultRotated {
  /** How many values were sealed anew. */
  resealed: number;
}

/** Whether keys without a grant see a sandbox. */
export type Visibility =
  | "shared"
  | "private";

/** A volume. */
export interface Volume {
  /** Its id. */
  id: string;
  /** Its name. */
  name: string;
  /** Where it is in its life. */
  state: VolumeState;
  /** Its size. */
  size_bytes: number;
  /** It cannot be written to. */
  read_only: boolean;
  /** Name of the volume it was copied from. */
  from?: string | null;
  /** Space for files, as sandboxes see it. In listings absent. */
  total_bytes?: number | null;
  /** Used of it. */
  used_bytes?: number | null;
  /** What it takes on the host; shared with copies and counted in full. */
  stored_bytes?: number | null;
  /** Ids of the sandboxes that have it. */
  used_by: string[];
  /** Id of the key that made it. */
  owner?: string | null;
  /** When it was made. */
  created_at_ms: number;
}

/** All volumes, by name. */
export interface VolumeList {
  /** The volumes. */
  items: Volume[];
}

/** A volume that a sandbox has. */
export interface VolumeMount {
  /** The volume. */
  id: string;
  /** Its name when the sandbox was made. */
  name: string;
  /** Where it is mounted inside. */
  path: string;
  /** The sandbox cannot write to it. */
  read_only: boolean;
  /** The directory of the volume that is mounted, as a path from the volume's root; all of it when absent. */
  subpath?: string | null;
}

/** A volume that a sandbox is to have. */
export interface VolumeMountDraft {
  /** Name or id of the volume. */
  volume: string;
  /** Where it is mounted inside: an absolute path, made when it is absent. */
  path: string;
  /** The sandbox cannot write to it. */
  read_only?: boolean;
  /**
   * The directory of the volume that is mounted, made when it is absent: nothing beside it can be reached. All of
   * the volume when the request does not say.
   */
  subpath?: string | null;
}

/** Where a volume is in its life. */
export type VolumeState =
  | "creating"
  | "ready"
  | "deleting";

/** What happened to a watched path. */
export type WatchChange =
  | "created"
  | "written"
  | "removed"
  | "moved"
  | "attributes"
  | "overflow";

/** Event on the watch stream (SSE). */
export interface WatchMessage {
  /** What happened. */
  change: WatchChange;
  /** The path. */
  path: string;
  /** Where a moved path came from. */
  from?: string | null;
}
