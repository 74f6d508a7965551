/** Commands in a sandbox. */

import { AtollError, TimedOut } from "./errors.js";
import { Collector, OUTPUT_MAX_BYTES, ended, gap, output } from "./results.js";
import type { Ended, Piece, Result } from "./results.js";
import { WAIT_MS, newKey, segment } from "./transport.js";
import type { Transport } from "./transport.js";
import type { CreateExec, Exec, ExecWithOutput, OutputPage } from "./types.js";
import { milliseconds } from "./units.js";
import type { Duration } from "./units.js";

/** A line for `/bin/sh -c`, or a list of program and arguments that is run without a shell. */
export type Command = string | readonly string[];

export interface StartOptions {
  /** Working directory. */
  cwd?: string;
  /** Environment variables in addition to the sandbox's. */
  env?: Record<string, string>;
  /** Name or id of the user, optionally with `:group`. */
  user?: string;
  /** Kill the command after this long. */
  timeoutMs?: Duration;
  /** Kill the command when it has written nothing for this long. */
  idleTimeoutMs?: Duration;
  /** Keep standard input open, for `write`. */
  stdin?: boolean;
  /** Run the command on a terminal of this size. */
  pty?: boolean | { cols: number; rows: number };
  /** Most bytes of output that the server keeps. */
  keepOutput?: number;
  /** A later call with the same key gets the process of the first. A random key when absent. */
  idempotencyKey?: string;
  /** Aborting it stops the wait. The command goes on. */
  signal?: AbortSignal;
}

export interface RunOptions extends Omit<StartOptions, "stdin" | "pty" | "keepOutput"> {
  /** The command's standard input. When absent, the command reads end-of-file at once. */
  input?: string | Uint8Array;
  /** Called with each piece of output as it comes. */
  onOutput?: (piece: Piece) => void | Promise<void>;
  /** Most bytes of each stream that the result holds; above it, the oldest are dropped. */
  maxOutput?: number;
  /** Throw `CommandFailed` when the command does not end with 0. */
  check?: boolean;
}

const STDIN_MAX_BYTES = 2 ** 20;
// When a connection breaks, the client asks for the whole page again, so pages are small.
const PAGE_MAX_BYTES = 256 * 2 ** 10;
const SIZE = { cols: 80, rows: 24 };

export function isFinal(exec: { state: string }): boolean {
  return exec.state === "exited" || exec.state === "lost";
}

/** Makes the body of a request that runs a command. */
export function commandBody(command: Command, options: StartOptions): CreateExec {
  const tty = options.pty === true ? SIZE : options.pty || undefined;
  return {
    ...(typeof command === "string" ? { shell: command } : { argv: [...command] }),
    cwd: options.cwd,
    env: options.env,
    user: options.user,
    timeout_ms: options.timeoutMs === undefined ? undefined : milliseconds(options.timeoutMs),
    idle_timeout_ms: options.idleTimeoutMs === undefined ? undefined : milliseconds(options.idleTimeoutMs),
    stdin: (options.stdin ?? false) || tty !== undefined,
    tty,
    keep_output_bytes: options.keepOutput,
    idempotency_key: options.idempotencyKey ?? newKey(),
  };
}

/** A command that runs, or ran, in a sandbox. It goes on without this object; `sandbox.exec(id)` finds it again. */
export class Process {
  readonly #path: string;
  readonly #transport: Transport;

  constructor(
    transport: Transport,
    readonly sandboxId: string,
    readonly id: string,
    /** What the server last returned about the command, if it was asked. */
    public info?: Exec,
  ) {
    this.#transport = transport;
    this.#path = `/v1/sandboxes/${segment(sandboxId)}/execs/${segment(id)}`;
  }

  /** Asks the server for the command's state. */
  async refresh(): Promise<Exec> {
    this.info = await this.#transport.json<Exec>({ method: "GET", path: this.#path });
    return this.info;
  }

  /**
   * Gives the command's output from an offset on, and gaps where the server kept it no longer. Goes on until the
   * command has ended; broken connections lose nothing. With `follow: false`, stops when the server has no more output.
   */
  async *output(options: { since?: number; follow?: boolean; signal?: AbortSignal } = {}): AsyncGenerator<Piece> {
    const follow = options.follow ?? true;
    let offset = options.since ?? 0;
    for (;;) {
      const page = await this.#transport.json<OutputPage>({
        method: "GET",
        path: `${this.#path}/output`,
        query: { offset, wait_ms: follow ? WAIT_MS : null, max_bytes: PAGE_MAX_BYTES },
        waitMs: WAIT_MS,
        signal: options.signal ?? null,
      });
      const dropped = page.gap_until ?? null;
      if (dropped !== null && dropped > offset) yield gap(offset, dropped);
      for (const chunk of page.chunks) yield output(chunk);
      offset = page.next_offset;
      if (page.chunks.length === 0 && dropped === null && (!follow || isFinal(page))) return;
    }
  }

  /** Writes to the command's standard input. Each byte arrives exactly once, also when a connection breaks. */
  async write(data: string | Uint8Array): Promise<void> {
    const raw = typeof data === "string" ? new TextEncoder().encode(data) : data;
    for (let at = 0; at < raw.length; at += STDIN_MAX_BYTES) await this.#stdin(raw.subarray(at, at + STDIN_MAX_BYTES), null);
  }

  /** Closes the command's standard input. */
  async closeStdin(): Promise<void> {
    await this.#stdin(new Uint8Array(), true);
  }

  async #stdin(content: Uint8Array, close: boolean | null): Promise<void> {
    // Not sent again when the server answers with an error: it may have written a part of the data.
    await this.#transport.text({
      method: "POST", path: `${this.#path}/stdin`, content: content as BodyInit, query: { close }, key: newKey(), again: "lost",
    });
  }

  /** Sends a signal (`TERM`, `SIGINT`, a number) to its process group; with `tree`, to everything it started. */
  async signal(signal: string | number, options: { tree?: boolean } = {}): Promise<void> {
    const body = { signal: String(signal), tree: options.tree ?? false };
    await this.#transport.text({ method: "POST", path: `${this.#path}/signal`, body, key: newKey() });
  }

  /** Kills all processes of the command, and returns when it has ended. Does nothing when it has ended already. */
  async kill(): Promise<void> {
    await this.#transport.text({ method: "DELETE", path: this.#path });
  }

  /** Changes the size of the command's terminal. */
  async resize(cols: number, rows: number): Promise<void> {
    await this.#transport.text({ method: "POST", path: `${this.#path}/resize`, body: { cols, rows }, again: "always" });
  }

  /** Waits for the command's end. Throws {@link TimedOut} when it still runs after `timeoutMs`; it goes on running. */
  async wait(options: { timeoutMs?: Duration; signal?: AbortSignal } = {}): Promise<Ended> {
    return ended((await this.#end(options)).exit);
  }

  async #end(options: { timeoutMs?: Duration; signal?: AbortSignal }): Promise<Exec> {
    const limit = options.timeoutMs === undefined ? Infinity : milliseconds(options.timeoutMs);
    const deadline = performance.now() + limit;
    for (;;) {
      const waitMs = Math.round(Math.min(WAIT_MS, Math.max(0, deadline - performance.now())));
      const call = { method: "GET", path: this.#path, query: { wait_ms: waitMs }, waitMs, signal: options.signal ?? null };
      this.info = await this.#transport.json<Exec>(call);
      if (isFinal(this.info)) return this.info;
      if (performance.now() >= deadline) {
        throw new TimedOut(`exec ${this.id} still runs`, { code: "timeout", hint: "wait again, or kill it", retryable: true });
      }
    }
  }

  /** Waits for the command's end and returns all its output. */
  async result(options: Pick<RunOptions, "onOutput" | "maxOutput" | "signal"> = {}): Promise<Result> {
    const collector = new Collector(options.maxOutput ?? OUTPUT_MAX_BYTES);
    for await (const piece of this.output({ signal: options.signal })) {
      collector.add(piece);
      await options.onOutput?.(piece);
    }
    return collector.result(await this.#end({ signal: options.signal }));
  }
}

/** Starts a command and returns its result. A short command with little output needs only one request. */
export async function run(transport: Transport, sandbox: string, command: Command, options: RunOptions): Promise<Result> {
  const live = options.input !== undefined || options.onOutput !== undefined;
  const body = commandBody(command, { ...options, stdin: options.input !== undefined });
  if (!live) body.wait_ms = WAIT_MS;
  const path = `/v1/sandboxes/${segment(sandbox)}/execs`;
  const waitMs = live ? 0 : WAIT_MS;
  const call = { method: "POST", path, body, again: "always" as const, waitMs, signal: options.signal ?? null };
  const { exec, output: chunks } = await transport.json<ExecWithOutput>(call);
  if (!live && chunks && isFinal(exec)) {
    const collector = new Collector(options.maxOutput ?? OUTPUT_MAX_BYTES);
    if (exec.output_first > 0) collector.add(gap(0, exec.output_first));
    for (const chunk of chunks) collector.add(output(chunk));
    return collector.result(exec);
  }
  const process = new Process(transport, sandbox, exec.id, exec);
  if (options.input !== undefined) {
    try {
      await process.write(options.input);
      await process.closeStdin();
    } catch (error) {
      // The command ended, or closed its input, before it read everything. Its result says more than this error.
      if (!(error instanceof AtollError && ["exec_ended", "stdin_closed"].includes(error.code))) throw error;
    }
  }
  return process.result(options);
}
