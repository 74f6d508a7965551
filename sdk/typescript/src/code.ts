/** The code interpreter of a sandbox: its contexts, which keep state, and their cells. */

import { CodeFailed } from "./errors.js";
import { fromBase64 } from "./results.js";
import { WAIT_MS, newKey, segment } from "./transport.js";
import type { Transport } from "./transport.js";
import type {
  Cell as CellInfo, CellEvent, CellEventPage, CellState, CellWithEvents, Context as ContextInfo, ContextList, CreateContext, RunCell,
} from "./types.js";
import { milliseconds } from "./units.js";
import type { Duration } from "./units.js";

export interface CellOptions {
  /** Environment variables for this cell, in addition to the context's. */
  env?: Record<string, string>;
  /** Interrupt the cell after this long; the result's `state` is then `timed_out`. */
  timeoutMs?: Duration;
  /** A later call with the same key gets the cell of the first. A random key when absent. */
  idempotencyKey?: string;
  /** Aborting it stops the wait. The cell goes on. */
  signal?: AbortSignal;
}

export interface RunCodeOptions extends CellOptions {
  /** Called with each event as it comes. */
  onEvent?: (event: CellEvent) => void | Promise<void>;
  /** Throw `CodeFailed` when the cell does not run to its end. */
  check?: boolean;
}

export interface ContextOptions {
  /** `python` when absent; `javascript`, `typescript`, `bash`, or another language of the interpreter. */
  language?: string;
  /** The working directory of its cells. */
  cwd?: string;
  /** Environment variables of each of its cells. */
  env?: Record<string, string>;
  /** A later call with the same key gets the context of the first. A random key when absent. */
  idempotencyKey?: string;
}

/** The value of a cell, or an output that the cell displayed, in one or more formats. */
export class CodeOutput {
  constructor(
    /** Whether this is the value of the cell itself. */
    readonly main: boolean,
    /** The data by MIME type: text as it is, pictures in base64, JSON as objects. */
    readonly data: Readonly<Record<string, unknown>>,
  ) {}

  #text(kind: string): string | null {
    const data = this.data[kind];
    return typeof data === "string" ? data : null;
  }

  #bytes(kind: string): Uint8Array | null {
    const data = this.#text(kind);
    return data === null ? null : fromBase64(data.replace(/\s/g, ""));
  }

  get text(): string | null {
    return this.#text("text/plain");
  }

  get html(): string | null {
    return this.#text("text/html");
  }

  get markdown(): string | null {
    return this.#text("text/markdown");
  }

  get latex(): string | null {
    return this.#text("text/latex");
  }

  get svg(): string | null {
    return this.#text("image/svg+xml");
  }

  get png(): Uint8Array | null {
    return this.#bytes("image/png");
  }

  get jpeg(): Uint8Array | null {
    return this.#bytes("image/jpeg");
  }

  get json(): unknown {
    return this.data["application/json"];
  }

  /** The data that a matplotlib figure shows. */
  get chart(): unknown {
    return this.data["application/vnd.atoll.chart+json"];
  }

  /** A pandas table, as columns. */
  get table(): unknown {
    return this.data["application/vnd.atoll.table+json"];
  }
}

/** The error with which a cell failed. */
export interface CodeError {
  /** The name of the error, such as `ValueError`. */
  name: string;
  value: string;
  traceback: string;
}

/** How a cell ended, and its output. */
export class CodeResult {
  /** How the cell ended: `done`, `error`, `interrupted`, `timed_out`, or `failed`, for which `reason` says why. */
  readonly state: CellState;
  readonly reason: string | null;
  readonly executionCount: number | null;
  readonly stdout: string = "";
  readonly stderr: string = "";
  readonly results: CodeOutput[] = [];
  readonly error: CodeError | null = null;
  /** The parts of the output that are missing here, and why. */
  readonly problems: string[] = [];

  constructor(
    /** The id of the cell. */
    readonly id: string,
    events: readonly CellEvent[],
  ) {
    let end: Record<string, unknown> = {};
    for (const { kind, data } of events as readonly { kind: string; data: Record<string, unknown> }[]) {
      if (kind === "stdout") this.stdout += data["text"] as string;
      else if (kind === "stderr") this.stderr += data["text"] as string;
      else if (kind === "result") this.results.push(new CodeOutput(data["main"] as boolean, data["data"] as Record<string, unknown>));
      else if (kind === "error") this.error = data as unknown as CodeError;
      else if (kind === "problem") this.problems.push(data["text"] as string);
      else if (kind === "end") end = data;
    }
    this.state = (end["state"] as CellState | undefined) ?? "failed";
    this.reason = (end["reason"] as string | undefined) ?? null;
    this.executionCount = (end["execution_count"] as number | undefined) ?? null;
  }

  /** The value of the cell as text, if it has one. */
  get text(): string | null {
    return this.results.find((one) => one.main)?.text ?? null;
  }

  /** Whether the cell ran to its end. */
  get ok(): boolean {
    return this.state === "done";
  }

  /** Returns this result, or throws {@link CodeFailed} when the cell did not run to its end. */
  check(): this {
    if (!this.ok) throw new CodeFailed(this);
    return this;
  }
}

/** A cell that runs, or ran. The cell does not need this object to go on. */
export class Cell {
  readonly #transport: Transport;
  readonly #path: string;

  constructor(transport: Transport, contextPath: string, readonly id: string) {
    this.#transport = transport;
    this.#path = `${contextPath}/cells/${segment(id)}`;
  }

  /** Asks the server for the cell's state. */
  info(): Promise<CellInfo> {
    return this.#transport.json<CellInfo>({ method: "GET", path: this.#path });
  }

  /** Gives the cell's events after event number `since`, up to its end. Broken connections lose no event. */
  async *events(options: { since?: number; signal?: AbortSignal } = {}): AsyncGenerator<CellEvent> {
    let after = options.since ?? 0;
    for (;;) {
      const query = { after, wait_ms: WAIT_MS };
      const call = { method: "GET", path: `${this.#path}/events`, query, waitMs: WAIT_MS, signal: options.signal ?? null };
      const page = await this.#transport.json<CellEventPage>(call);
      yield* page.items;
      if (page.ended) return;
      after = page.next_after;
    }
  }

  /** Waits for the cell's end and returns all its output. */
  async result(options: Pick<RunCodeOptions, "onEvent" | "signal"> = {}): Promise<CodeResult> {
    const events: CellEvent[] = [];
    for await (const event of this.events(options.signal ? { signal: options.signal } : {})) {
      events.push(event);
      await options.onEvent?.(event);
    }
    return new CodeResult(this.id, events);
  }

  /** Interrupts the cell's code. The context keeps its state. Does nothing when the cell has ended. */
  async interrupt(): Promise<void> {
    await this.#transport.text({ method: "POST", path: `${this.#path}/interrupt`, again: "always" });
  }
}

/** A context: a kernel that keeps the state that its cells made. */
export class Context {
  readonly #transport: Transport;
  readonly #path: string;

  constructor(
    transport: Transport,
    sandboxPath: string,
    /** The context's id, or its name if the caller asked for it by name. */
    readonly id: string,
    /** What the server returned about the context, if it was asked. */
    readonly info: ContextInfo | null = null,
  ) {
    this.#transport = transport;
    this.#path = `${sandboxPath}/contexts/${segment(id)}`;
  }

  /** Runs code to its end, after the earlier cells of the context. Broken connections never make it run twice. */
  async run(code: string, options: RunCodeOptions = {}): Promise<CodeResult> {
    const live = options.onEvent !== undefined;
    const { cell, events } = await this.#begin(code, options, live ? 0 : WAIT_MS);
    const result = events && !live ? new CodeResult(cell.id, events) : await this.cell(cell.id).result(options);
    return options.check ? result.check() : result;
  }

  /** Starts code as a cell and does not wait for its end. */
  async start(code: string, options: CellOptions = {}): Promise<Cell> {
    return this.cell((await this.#begin(code, options, 0)).cell.id);
  }

  #begin(code: string, options: CellOptions, waitMs: number): Promise<CellWithEvents> {
    const body: RunCell = { code, idempotency_key: options.idempotencyKey ?? newKey() };
    if (options.env) body.env = options.env;
    if (options.timeoutMs !== undefined) body.timeout_ms = milliseconds(options.timeoutMs);
    if (waitMs > 0) body.wait_ms = waitMs;
    const path = `${this.#path}/cells`;
    return this.#transport.json<CellWithEvents>({
      method: "POST", path, body, again: "always", waitMs, signal: options.signal ?? null,
    });
  }

  /** Gives a cell by its id, also one that another client started. Sends no request. */
  cell(id: string): Cell {
    return new Cell(this.#transport, this.#path, id);
  }

  /** Interrupts the context's cells that run or wait. The context keeps its state. */
  async interrupt(): Promise<void> {
    await this.#transport.text({ method: "POST", path: `${this.#path}/interrupt`, again: "always" });
  }

  /** Gives the context a new kernel, without the old state. Cells that run end. */
  async restart(): Promise<void> {
    await this.#transport.text({ method: "POST", path: `${this.#path}/restart`, again: "always" });
  }

  /** Ends the context and its kernel. */
  async remove(): Promise<void> {
    await this.#transport.text({ method: "DELETE", path: this.#path });
  }
}

/** The code interpreter of one sandbox, such as one of the template `code-interpreter-v1`. */
export class Code {
  readonly #transport: Transport;
  readonly #base: string;
  readonly #defaults = new Map<string, Context>();

  constructor(transport: Transport, base: string) {
    this.#transport = transport;
    this.#base = base;
  }

  /** Makes a context; resolves when its kernel has started, or to the same context that has the name already. */
  async createContext(name?: string, options: ContextOptions = {}): Promise<Context> {
    const body: CreateContext = { language: options.language ?? "python" };
    if (name !== undefined) body.name = name;
    if (options.cwd !== undefined) body.cwd = options.cwd;
    if (options.env) body.env = options.env;
    const key = options.idempotencyKey ?? newKey();
    const call = { method: "POST", path: `${this.#base}/contexts`, body, key, waitMs: WAIT_MS };
    const info = await this.#transport.json<ContextInfo>(call);
    return new Context(this.#transport, this.#base, info.id, info);
  }

  /** Gives an existing context by its id or name. Sends no request. */
  context(idOrName: string): Context {
    return new Context(this.#transport, this.#base, idOrName);
  }

  /** Lists the contexts of the sandbox, oldest first. */
  async contexts(): Promise<Context[]> {
    const { items } = await this.#transport.json<ContextList>({ method: "GET", path: `${this.#base}/contexts` });
    return items.map((info) => new Context(this.#transport, this.#base, info.id, info));
  }

  /** Runs code in the context named after `language`. The first call makes that context. */
  async run(code: string, options: RunCodeOptions & { language?: string } = {}): Promise<CodeResult> {
    const language = options.language ?? "python";
    let context = this.#defaults.get(language);
    if (!context) {
      context = await this.createContext(language, { language });
      this.#defaults.set(language, context);
    }
    return context.run(code, options);
  }
}
