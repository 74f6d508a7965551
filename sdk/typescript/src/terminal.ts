/** Terminals. Over plain requests: they go where `fetch` goes, and each byte that is typed arrives once. */

import type { Ended } from "./results.js";
import type { Process } from "./process.js";

/** What stands on a terminal, and what is typed there. Reading goes on by itself when connections break. */
export class Terminal implements AsyncDisposable {
  /** How the command ended, once all was shown. */
  ended: Ended | undefined;
  readonly #stop = new AbortController();
  readonly #kills: boolean;
  readonly #since: number;
  #shown: AsyncGenerator<Uint8Array> | undefined;
  // Keys arrive in the order in which they were typed, also when nobody waits for them.
  #typed: Promise<void> = Promise.resolve();

  constructor(readonly process: Process, since: number, kills: boolean) {
    this.#since = since;
    this.#kills = kills;
  }

  /** Types. */
  send(data: string | Uint8Array): Promise<void> {
    const sent = this.#typed.then(() => this.process.write(data));
    this.#typed = sent.catch(() => undefined);
    return sent;
  }

  /** Changes its size. */
  resize(cols: number, rows: number): Promise<void> {
    return this.process.resize(cols, rows);
  }

  /** What is shown, until the command has ended or the terminal is closed. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    // Leaving a loop must not end what the next one reads from.
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

  /** Everything that is shown up to and with a text; less when the command ends before. */
  async readUntil(text: string): Promise<string> {
    const decoder = new TextDecoder();
    let shown = "";
    for await (const piece of this) {
      shown += decoder.decode(piece, { stream: true });
      if (shown.includes(text)) break;
    }
    return shown;
  }

  /** Stops reading, and ends the command if this is its own terminal. */
  async close(): Promise<void> {
    this.#stop.abort();
    if (this.#kills && this.ended === undefined) await this.process.kill();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
