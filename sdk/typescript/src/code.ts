/** The code interpreter of a sandbox: contexts that remember, and cells. */

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
  /** Variables on top of the context's, for this cell. */
  env?: Record<string, string>;
  /** Interrupt it after this long; the result's `state` is then `timed_out`. */
  timeoutMs?: Duration;
  /** A call with the same key gets the first one's cell. Made up when absent. */
  idempotencyKey?: string;
  /** Gives up waiting; what runs goes on. */
  signal?: AbortSignal;
}

export interface RunCodeOptions extends CellOptions {
  /** Called with each event as it comes. */
  onEvent?: (event: CellEvent) => void | Promise<void>;
  /** Throw `CodeFailed` when it does not run to its end. */
  check?: boolean;
}

export interface ContextOptions {
  /** `python` when absent; `javascript`, `typescript`, `bash`, or what else the interpreter knows. */
  language?: string;
  /** Where its cells begin. */
  cwd?: string;
  /** Variables of each of its cells. */
  env?: Record<string, string>;
  /** A call with the same key gets the first one's context. Made up when absent. */
  idempotencyKey?: string;
}

/** A value of a cell, or something that it showed: the same thing in several kinds of data. */
export class CodeOutput {
  constructor(
    /** Whether it is the value of the cell itself. */
    readonly main: boolean,
    /** By MIME type: text as it is, pictures in base64, JSON as objects. */
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

  /** What a figure of matplotlib shows, as data. */
  get chart(): unknown {
    return this.data["application/vnd.atoll.chart+json"];
  }

  /** A table of pandas, as columns. */
  get table(): unknown {
    return this.data["application/vnd.atoll.table+json"];
  }
}

/** How code failed. */
export interface CodeError {
  /** Such as `ValueError`. */
  name: string;
  value: string;
  traceback: string;
}

/** How a cell ended, and what it said. */
export class CodeResult {
  /** How it ended: `done`, `error`, `interrupted`, `timed_out`, or `failed` for the reason. */
  readonly state: CellState;
  readonly reason: string | null;
  readonly executionCount: number | null;
  readonly stdout: string = "";
  readonly stderr: string = "";
  readonly results: CodeOutput[] = [];
  readonly error: CodeError | null = null;
  /** What of it is not here, and why. */
  readonly problems: string[] = [];

  constructor(
    /** The cell. */
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

  /** Whether it ran to its end. */
  get ok(): boolean {
    return this.state === "done";
  }

  /** Gives the result back, or throws {@link CodeFailed} when it did not run to its end. */
  check(): this {
    if (!this.ok) throw new CodeFailed(this);
    return this;
  }
}

/** A cell that runs, or ran. It goes on without this object. */
export class Cell {
  readonly #transport: Transport;
  readonly #path: string;

  constructor(transport: Transport, contextPath: string, readonly id: string) {
    this.#transport = transport;
    this.#path = `${contextPath}/cells/${segment(id)}`;
  }

  /** Asks the server how it is. */
  info(): Promise<CellInfo> {
    return this.#transport.json<CellInfo>({ method: "GET", path: this.#path });
  }

  /** What it says after the event of a number, up to its end, whatever happens to connections. */
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

  /** Waits for its end and gives all that it said. */
  async result(options: Pick<RunCodeOptions, "onEvent" | "signal"> = {}): Promise<CodeResult> {
    const events: CellEvent[] = [];
    for await (const event of this.events(options.signal ? { signal: options.signal } : {})) {
      events.push(event);
      await options.onEvent?.(event);
    }
    return new CodeResult(this.id, events);
  }

  /** Interrupts it: its code is told, and what its context remembers stays. Does nothing to one that has ended. */
  async interrupt(): Promise<void> {
    await this.#transport.text({ method: "POST", path: `${this.#path}/interrupt`, again: "always" });
  }
}

/** A context: a kernel that remembers what its cells did. */
export class Context {
  readonly #transport: Transport;
  readonly #path: string;

  constructor(
    transport: Transport,
    sandboxPath: string,
    /** Its id, or its name if it was asked for by that. */
    readonly id: string,
    /** What the server said of it, if it was asked. */
    readonly info: ContextInfo | null = null,
  ) {
    this.#transport = transport;
    this.#path = `${sandboxPath}/contexts/${segment(id)}`;
  }

  /** Runs code to its end, after the cells before it. It runs once, whatever happens to connections meanwhile. */
  async run(code: string, options: RunCodeOptions = {}): Promise<CodeResult> {
    const live = options.onEvent !== undefined;
    const { cell, events } = await this.#begin(code, options, live ? 0 : WAIT_MS);
    const result = events && !live ? new CodeResult(cell.id, events) : await this.cell(cell.id).result(options);
    return options.check ? result.check() : result;
  }

  /** Runs code and does not wait for it. It goes on by itself. */
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

  /** A cell that was started before, here or elsewhere, by its id. Asks the server nothing. */
  cell(id: string): Cell {
    return new Cell(this.#transport, this.#path, id);
  }

  /** Interrupts its cells that run or wait. What it remembers stays. */
  async interrupt(): Promise<void> {
    await this.#transport.text({ method: "POST", path: `${this.#path}/interrupt`, again: "always" });
  }

  /** Gives it a new kernel, which remembers nothing. Cells that run end. */
  async restart(): Promise<void> {
    await this.#transport.text({ method: "POST", path: `${this.#path}/restart`, again: "always" });
  }

  /** Ends it. */
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

  /** Makes a context; resolves when its kernel has started. The same context that has the name already is the answer. */
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

  /** A context that there is. Asks the server nothing. */
  context(idOrName: string): Context {
    return new Context(this.#transport, this.#base, idOrName);
  }

  /** The contexts that there are, the oldest first. */
  async contexts(): Promise<Context[]> {
    const { items } = await this.#transport.json<ContextList>({ method: "GET", path: `${this.#base}/contexts` });
    return items.map((info) => new Context(this.#transport, this.#base, info.id, info));
  }

  /** Runs code in the context that is named after its language, which is made with the first. */
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
