/** One sandbox, and all of them. */

import { Code } from "./code.js";
import { AtollError, InvalidRequest, NotFound, fromBody } from "./errors.js";
import { Files, Ports } from "./files.js";
import { policy, secretRule } from "./network.js";
import type { Network, UseSecret } from "./network.js";
import { Pager } from "./pager.js";
import { Process, commandBody, run } from "./process.js";
import type { Command, RunOptions, StartOptions } from "./process.js";
import type { Result } from "./results.js";
import { inToolSpan } from "./telemetry.js";
import { Terminal } from "./terminal.js";
import { newKey, segment } from "./transport.js";
import type { AtollOptions, Transport } from "./transport.js";
import type {
  BatchResults, Comparison, CreateSandbox, Exec, ExecState, ExecWithOutput, InjectRule, IsolationLevel, Metrics,
  NetworkView, OnIdle, PauseMode, RolledBack, Sandbox as Info, SandboxState, Secret, Snapshot, SnapshotList,
  UpdateSandbox, UsageItem, UsageList,
} from "./types.js";
import { bytes, milliseconds } from "./units.js";
import type { Duration, Size } from "./units.js";

export interface ForkOptions {
  /** The snapshot or checkpoint to copy; when absent, the sandbox as it is now. */
  at?: Snapshot | string | number;
  /** Whether to copy memory and processes too, at the isolation level `microvm`. */
  memory?: boolean;
  name?: string;
  labels?: Record<string, string>;
  env?: Record<string, string>;
  ttl?: Duration;
}

/** A sandbox. Used with `await using`, it is deleted at the end, unless it was made with `keep`. */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  readonly code: Code;
  readonly files: Files;
  readonly ports: Ports;
  readonly #path: string;
  readonly #transport: Transport;

  constructor(
    transport: Transport,
    /** What the server last returned about the sandbox; `refresh` asks again. */
    public info: Info,
    /** Whether the sandbox stays when an `await using` ends. */
    public keep = true,
  ) {
    this.#transport = transport;
    this.id = info.id;
    this.#path = `/v1/sandboxes/${segment(info.id)}`;
    this.code = new Code(transport, this.#path);
    this.files = new Files(transport, this.#path);
    this.ports = new Ports(transport, this.#path);
  }

  /** The sandbox's name, or null. */
  get name(): string | null {
    return this.info.name ?? null;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.keep) await this.delete();
  }

  /** Returns an object for the same sandbox with other limits for each call. */
  withOptions(options: Pick<AtollOptions, "timeoutMs" | "maxRetries">): Sandbox {
    return new Sandbox(this.#transport.withOptions(options), this.info, this.keep);
  }

  /** Runs a command to its end. Broken connections never make it run twice. */
  async run(command: Command, options: RunOptions = {}): Promise<Result> {
    const result = await inToolSpan(this.id, () => run(this.#transport, this.id, command, options));
    return options.check ? result.check() : result;
  }

  /** Starts a command and returns when it runs, without waiting for its end. */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const body = commandBody(command, options);
    const call = { method: "POST", path: `${this.#path}/execs`, body, again: "always" as const, signal: options.signal ?? null };
    const { exec } = await this.#transport.json<ExecWithOutput>(call);
    return new Process(this.#transport, this.id, exec.id, exec);
  }

  /** Gives a command by its id, also one that another client started. Sends no request. */
  exec(id: string): Process {
    return new Process(this.#transport, this.id, id);
  }

  /** Lists the sandbox's commands, newest first. */
  execs(options: { state?: readonly ExecState[] } = {}): Pager<Process> {
    const read = (one: unknown) => new Process(this.#transport, this.id, (one as Exec).id, one as Exec);
    return new Pager(this.#transport, `${this.#path}/execs`, { state: options.state }, read);
  }

  /** Opens a terminal with a shell or another command. Closing the terminal ends the command. */
  async terminal(options: { cols?: number; rows?: number; command?: Command } & StartOptions = {}): Promise<Terminal> {
    const { cols = 80, rows = 24, command, ...start } = options;
    const env = { TERM: "xterm-256color", ...start.env };
    const shell = "command -v bash >/dev/null && exec bash -il || exec sh -il";
    const process = await this.start(command ?? shell, { ...start, env, pty: { cols, rows } });
    return new Terminal(process, 0, true);
  }

  /** Connects to the terminal of a process that was started with `pty`. Closing it does not end the command. */
  attach(process: Process | string, options: { since?: number } = {}): Terminal {
    return new Terminal(typeof process === "string" ? this.exec(process) : process, options.since ?? 0, false);
  }

  #get<T>(what: string, query = {}): Promise<T> {
    return this.#transport.json<T>({ method: "GET", path: `${this.#path}${what}`, query });
  }

  #once<T>(what: string, body: object): Promise<T> {
    return this.#transport.json<T>({ method: "POST", path: `${this.#path}${what}`, body, key: newKey() });
  }

  /** Asks the server for the sandbox's state and settings. */
  async refresh(): Promise<Info> {
    return (this.info = await this.#get<Info>(""));
  }

  /** Changes the given settings, in the API's form: name, env, labels, limits, lifetimes; or the network. */
  async update(changes: UpdateSandbox = {}, options: { network?: Network } = {}): Promise<Info> {
    const body = options.network ? { ...changes, egress: policy(options.network) } : changes;
    const call = { method: "PATCH", path: this.#path, body, again: "always" as const };
    return (this.info = await this.#transport.json<Info>(call));
  }

  /** Deletes the sandbox with everything in it. Does nothing when it is gone already. */
  async delete(): Promise<void> {
    try {
      await this.#transport.text({ method: "DELETE", path: this.#path });
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
    }
  }

  /** Returns the resources that the sandbox uses now. */
  metrics(): Promise<Metrics> {
    return this.#get<Metrics>("/metrics");
  }

  /** Returns the resources that the sandbox has used in its whole life. */
  async usage(): Promise<UsageItem> {
    const call = { method: "GET", path: "/v1/usage", query: { sandbox: this.id } };
    const [item] = (await this.#transport.json<UsageList>(call)).items;
    if (!item) throw new AtollError("the server knows no usage of the sandbox", { code: "bad_answer" });
    return item;
  }

  /** Returns the connections that the sandbox made, and those that the server refused. */
  network(): Promise<NetworkView> {
    return this.#get<NetworkView>("/network");
  }

  /** Pauses the sandbox: `frozen` keeps it in memory, `memory` and `filesystem` on disk. Any use resumes it. */
  async pause(mode?: PauseMode): Promise<Info> {
    const call = { method: "POST", path: `${this.#path}/pause`, body: { mode }, again: "always" as const };
    return (this.info = await this.#transport.json<Info>(call));
  }

  /** Resumes the sandbox. */
  async resume(): Promise<Info> {
    return (this.info = await this.#transport.json<Info>({ method: "POST", path: `${this.#path}/resume`, again: "always" }));
  }

  /** Makes a snapshot of the disk, and with `memory` also of the processes. Tags are `name` or `name:tag`. */
  snapshot(tag?: string | readonly string[], options: { memory?: boolean; comment?: string } = {}): Promise<Snapshot> {
    const tags = tag === undefined ? [] : typeof tag === "string" ? [tag] : [...tag];
    return this.#once<Snapshot>("/snapshots", { tags, memory: options.memory ?? false, comment: options.comment });
  }

  /** Makes a checkpoint: a numbered snapshot of this sandbox, for `rollback` and `diff`. */
  checkpoint(comment?: string): Promise<Snapshot> {
    return this.#once<Snapshot>("/checkpoints", { comment });
  }

  /** Lists the sandbox's checkpoints. */
  async checkpoints(): Promise<Snapshot[]> {
    return (await this.#get<SnapshotList>("/checkpoints")).items;
  }

  /** Makes copies of the sandbox. When a copy cannot be made, deletes the copies that were made. */
  async fork(count = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const { results } = await this.#once<BatchResults>("/fork", {
      count,
      at: options.at === undefined ? undefined : which(options.at),
      memory: options.memory ?? false,
      name: options.name,
      labels: options.labels,
      env: options.env,
      ttl_ms: options.ttl === undefined ? undefined : milliseconds(options.ttl),
    });
    const made = results.flatMap((one) => (one.sandbox ? [new Sandbox(this.#transport, one.sandbox)] : []));
    const failure = results.find((one) => one.error)?.error;
    if (failure) {
      for (const sandbox of made) await sandbox.delete();
      throw fromBody(failure);
    }
    return made;
  }

  /**
   * Puts the disk back to a snapshot or checkpoint. Commands that run end. When `to` is absent, the disk goes back to
   * before the last command began, as far as there is a checkpoint of that.
   */
  async rollback(to?: Snapshot | string | number): Promise<Snapshot> {
    const done = await this.#once<RolledBack>("/rollback", { to: to === undefined ? undefined : which(to) });
    this.info = done.sandbox;
    return done.to;
  }

  /** Lists what changed on the disk since `from`, or between `from` and `to`; with `text`, also how. */
  diff(options: { from?: Snapshot | string | number; to?: Snapshot | string | number; text?: boolean } = {}): Promise<Comparison> {
    const { from, to, text = false } = options;
    return this.#get<Comparison>("/diff", {
      from: from === undefined ? undefined : which(from), to: to === undefined ? undefined : which(to), text,
    });
  }
}

function which(snapshot: Snapshot | string | number): string {
  return typeof snapshot === "object" ? snapshot.id : String(snapshot);
}

export interface CreateOptions {
  /** `host` (the server's own /usr, the default), or an image that was pulled, loaded or imported. */
  image?: string;
  /** A template, as `name` or `name:version`. */
  template?: string;
  snapshot?: Snapshot | string;
  /** A unique name: a DNS label. */
  name?: string;
  labels?: Record<string, string>;
  /** Environment variables of every command. */
  env?: Record<string, string>;
  /** Cores. */
  cpu?: number;
  memory?: Size;
  disk?: Size;
  isolation?: IsolationLevel;
  user?: string;
  workdir?: string;
  /** Delete the sandbox this long after it was made. */
  ttl?: Duration;
  /** Delete the sandbox after this long without a command or a request; `onIdle` chooses another action. */
  idle?: Duration;
  onIdle?: OnIdle;
  /** The hosts that it may reach. When absent, those of `secrets`; without those, the server's default. */
  network?: Network;
  /** Secrets of the server that the sandbox uses and never sees. */
  secrets?: readonly (string | UseSecret)[];
  /**
   * Volumes to mount: the path of each, and the volume's name. `name/directory` mounts a directory of the volume, and
   * `name:ro` mounts the volume read-only.
   */
  volumes?: Record<string, string>;
  /** Do not delete the sandbox when an `await using` ends. */
  keep?: boolean;
  /** A later call with the same key gets the sandbox of the first. A random key when absent. */
  idempotencyKey?: string;
  /** Further fields of the API's request. */
  more?: CreateSandbox;
  signal?: AbortSignal;
}

/** The sandboxes of the server. */
export class Sandboxes {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Makes a sandbox; resolves when it runs. Broken connections never make a second sandbox. */
  async create(options: CreateOptions = {}): Promise<Sandbox> {
    const { snapshot, cpu, memory, disk, ttl, idle, volumes } = options;
    const limits = {
      ...options.more?.resources,
      ...(cpu === undefined ? {} : { cpu_millis: Math.round(cpu * 1000) }),
      ...(memory === undefined ? {} : { memory_bytes: bytes(memory) }),
      ...(disk === undefined ? {} : { disk_bytes: bytes(disk) }),
    };
    const body: CreateSandbox = {
      ...options.more,
      ...(Object.keys(limits).length > 0 ? { resources: limits } : {}),
      ...given({
        image: options.image, template: options.template, name: options.name, labels: options.labels, env: options.env,
        isolation: options.isolation, user: options.user, workdir: options.workdir, on_idle: options.onIdle,
        snapshot: snapshot === undefined ? undefined : which(snapshot),
        ttl_ms: ttl === undefined ? undefined : milliseconds(ttl),
        idle_timeout_ms: idle === undefined ? undefined : milliseconds(idle),
        volumes: volumes && Object.entries(volumes).map(mount),
      }),
    };
    if (options.secrets?.length || options.network) {
      const rules = await Promise.all((options.secrets ?? []).map((secret) => this.#rule(secret)));
      body.egress = policy(options.network ?? {}, rules);
    }
    const key = options.idempotencyKey ?? newKey();
    const call = { method: "POST", path: "/v1/sandboxes", body, key, signal: options.signal ?? null };
    return new Sandbox(this.#transport, await this.#transport.json<Info>(call), options.keep ?? false);
  }

  async #rule(secret: string | UseSecret): Promise<InjectRule> {
    const use = typeof secret === "string" ? { name: secret } : secret;
    let hosts = use.hosts ?? [];
    if (hosts.length === 0) {
      // NAME@2 names one version of the secret; the request needs NAME alone.
      const path = `/v1/secrets/${segment(use.name.split("@")[0] ?? "")}`;
      hosts = (await this.#transport.json<Secret>({ method: "GET", path })).scope.hosts;
      if (hosts.includes("*")) {
        throw new InvalidRequest(`secret ${use.name} may go to any host`, { code: "invalid_argument", hint: "say to which, with hosts" });
      }
    }
    return secretRule(use, hosts);
  }

  /** Gets an existing sandbox by its id or name. */
  async get(idOrName: string): Promise<Sandbox> {
    return new Sandbox(this.#transport, await this.#transport.json<Info>({ method: "GET", path: `/v1/sandboxes/${segment(idOrName)}` }));
  }

  /** Lists sandboxes, newest first. Iterating over the listing fetches each page when it is needed. */
  list(
    options: { labels?: Record<string, string>; state?: readonly SandboxState[]; namePrefix?: string; pageSize?: number } = {},
  ): Pager<Sandbox> {
    const label = Object.entries(options.labels ?? {}).map(([key, value]) => `${key}=${value}`);
    const query = { label, state: options.state, name_prefix: options.namePrefix, limit: options.pageSize };
    return new Pager(this.#transport, "/v1/sandboxes", query, (one) => new Sandbox(this.#transport, one as Info));
  }

  /** Deletes a sandbox with everything in it. */
  async delete(idOrName: string): Promise<void> {
    await this.#transport.text({ method: "DELETE", path: `/v1/sandboxes/${segment(idOrName)}` });
  }
}

/** Returns only the fields that the caller gave. The server chooses the values of absent fields. */
function given<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>;
}

function mount([path, text]: [string, string]) {
  const [volume = "", mode = "rw"] = text.split(":");
  if (mode !== "ro" && mode !== "rw") {
    throw new InvalidRequest(`'${text}' is not NAME[/DIRECTORY][:ro]`, { code: "invalid_argument" });
  }
  const [name = "", ...directory] = volume.split("/");
  const subpath = directory.join("/");
  return { volume: name, path, read_only: mode === "ro", ...(subpath && { subpath }) };
}
