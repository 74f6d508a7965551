/** Terminals over plain HTTP requests. They work wherever `fetch` does, and each byte that is typed arrives once. */

import type { Ended } from "./results.js";
import type { Process } from "./process.js";

/** A command's terminal: iterating reads its output, `send` types. Reading goes on when connections break. */
export class Terminal implements AsyncDisposable {
  /** How the command ended, once all output was read. */
  ended: Ended | undefined;
  readonly #stop = new AbortController();
  readonly #kills: boolean;
  readonly #since: number;
  #shown: AsyncGenerator<Uint8Array> | undefined;
  // Text arrives in the order in which it was typed, also when the caller does not await `send`.
  #typed: Promise<void> = Promise.resolve();

  constructor(readonly process: Process, since: number, kills: boolean) {
    this.#since = since;
    this.#kills = kills;
  }

  /** Types text into the terminal. */
  send(data: string | Uint8Array): Promise<void> {
    const sent = this.#typed.then(() => this.process.write(data));
    this.#typed = sent.catch(() => undefined);
    return sent;
  }

  /** Changes the terminal's size. */
  resize(cols: number, rows: number): Promise<void> {
    return this.process.resize(cols, rows);
  }

  /** The terminal's output, until the command has ended or the terminal is closed. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    // A caller that leaves its loop must not end the generator: the next loop reads from it.
    this.#shown ??= this.#read();
    for (;;) {
      const next = await this.#shown.next();
      if (next.done) return;
      yield next.value;
    }
  }

  async *#read(): AsyncGenerator<Uint8Array> {
    try {
      for await (const piece of this.process.output({ since: this.#since, signal: this.#stop.signal })) {
        if (piece.type === "output") yield piece.data;
      }
      this.ended = await this.process.wait({ signal: this.#stop.signal });
    } catch (error) {
      if (!this.#stop.signal.aborted) throw error;
    }
  }

  /** Reads the terminal's output until it contains a text. Returns less when the command ends before. */
  async readUntil(text: string): Promise<string> {
    const decoder = new TextDecoder();
    let shown = "";
    for await (const piece of this) {
      shown += decoder.decode(piece, { stream: true });
      if (shown.includes(text)) break;
    }
    return shown;
  }

  /** Stops reading. Kills the command if `sandbox.terminal` made this terminal. */
  async close(): Promise<void> {
    this.#stop.abort();
    if (this.#kills && this.ended === undefined) await this.process.kill();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
