/** Results of commands: their output, and how they ended. */

import { CommandFailed } from "./errors.js";
import type { Exec, Exit, ExitReason, OutputChunk, OutputStream } from "./types.js";

/** Most bytes of each stream that a result holds; above it, the oldest are dropped. */
export const OUTPUT_MAX_BYTES = 64 * 2 ** 20;

const decoder = new TextDecoder();
const encoder = new TextEncoder();

/** A piece of output. Offsets count both streams together. */
export interface Output {
  type: "output";
  offset: number;
  stream: OutputStream;
  data: Uint8Array;
  /** The bytes decoded as UTF-8; other bytes are replaced. The piece may begin or end within a character. */
  text: string;
  /** Offset of what follows. */
  nextOffset: number;
}

/** Output that the server no longer keeps, because the exec wrote more than its log may hold. */
export interface Gap {
  type: "gap";
  start: number;
  end: number;
  /** Offset of what follows. */
  nextOffset: number;
}

export type Piece = Output | Gap;

export function gap(start: number, end: number): Gap {
  return { type: "gap", start, end, nextOffset: end };
}

/** Makes a piece of output from the API's JSON. */
export function output(chunk: OutputChunk): Output {
  const data = chunk.encoding === "base64" ? fromBase64(chunk.data) : encoder.encode(chunk.data);
  const text = chunk.encoding === "base64" ? decoder.decode(data) : chunk.data;
  return {
    type: "output", offset: chunk.offset, stream: chunk.stream, data, text, nextOffset: chunk.offset + data.length,
  };
}

export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const data = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) data[at] = binary.charCodeAt(at);
  return data;
}

/** How a command ended. */
export interface Ended {
  /** Why the command ended: `exited`, or another reason, such as `timed_out` or `out_of_memory`. */
  end: ExitReason;
  /** The exit code, as a shell has it. Null when it is unknown: the sandbox died or was paused meanwhile. */
  exitCode: number | null;
  /** The signal that ended it, if one did. */
  signal: number | null;
}

export function ended(exit: Exit | null | undefined): Ended {
  return { end: exit?.reason ?? "sandbox_died", exitCode: exit?.code ?? null, signal: exit?.signal ?? null };
}

/** How a command ended, and what it wrote. */
export class Result implements Ended {
  readonly end: ExitReason;
  readonly exitCode: number | null;
  readonly signal: number | null;

  constructor(
    /** Everything that the server knows about the command. */
    readonly exec: Exec,
    readonly stdoutBytes: Uint8Array,
    readonly stderrBytes: Uint8Array,
    /** Whether output is missing, because the command wrote more than is kept. */
    readonly truncated: boolean,
  ) {
    ({ end: this.end, exitCode: this.exitCode, signal: this.signal } = ended(exec.exit));
  }

  /** Standard output decoded as UTF-8. Bytes that are not UTF-8 are replaced. */
  get stdout(): string {
    return decoder.decode(this.stdoutBytes);
  }

  /** Standard error decoded as UTF-8. Bytes that are not UTF-8 are replaced. */
  get stderr(): string {
    return decoder.decode(this.stderrBytes);
  }

  /** Whether the command ended with 0. */
  get ok(): boolean {
    return this.exitCode === 0;
  }

  /** Returns this result, or throws {@link CommandFailed} when the command did not end with 0. */
  check(): this {
    if (!this.ok) throw new CommandFailed(this);
    return this;
  }
}

/** Collects output up to a limit for each stream. Above the limit it drops the oldest bytes. */
export class Collector {
  readonly #pieces: Record<OutputStream, Uint8Array[]> = { stdout: [], stderr: [] };
  readonly #sizes: Record<OutputStream, number> = { stdout: 0, stderr: 0 };
  #truncated = false;

  constructor(readonly max: number) {}

  add(piece: Piece): void {
    if (piece.type === "gap") {
      this.#truncated = true;
      return;
    }
    const pieces = this.#pieces[piece.stream];
    pieces.push(piece.data);
    this.#sizes[piece.stream] += piece.data.length;
    let over = this.#sizes[piece.stream] - this.max;
    while (over > 0) {
      this.#truncated = true;
      const first = pieces.shift();
      if (!first) break;
      const dropped = Math.min(over, first.length);
      if (dropped < first.length) pieces.unshift(first.subarray(dropped));
      this.#sizes[piece.stream] -= dropped;
      over -= dropped;
    }
  }

  result(exec: Exec): Result {
    return new Result(exec, joined(this.#pieces.stdout), joined(this.#pieces.stderr), this.#truncated);
  }
}

export function joined(pieces: Uint8Array[]): Uint8Array {
  if (pieces.length === 1 && pieces[0]) return pieces[0];
  const whole = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
