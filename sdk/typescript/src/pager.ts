/** Listings that come in pages. */

import type { Query, Transport } from "./transport.js";

/** One page of a listing. */
export interface Page<T> {
  items: T[];
  /** Pass it to `page` for the next one; null on the last. */
  nextCursor: string | null;
}

/** A listing. Iterating over it fetches each page when it is needed. */
export class Pager<T> {
  readonly #page: (cursor: string | null) => Promise<Page<T>>;

  constructor(transport: Transport, path: string, query: Query, read: (one: unknown) => T) {
    this.#page = async (cursor) => {
      const call = { method: "GET", path, query: { ...query, cursor } };
      const answer = await transport.json<{ items: unknown[]; next_cursor?: string | null }>(call);
      return { items: answer.items.map(read), nextCursor: answer.next_cursor ?? null };
    };
  }

  /** Fetches one page: the first, or the one after the page whose `nextCursor` is given. */
  page(cursor: string | null = null): Promise<Page<T>> {
    return this.#page(cursor);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    let cursor: string | null = null;
    do {
      const page: Page<T> = await this.#page(cursor);
      yield* page.items;
      cursor = page.nextCursor === cursor ? null : page.nextCursor;
    } while (cursor !== null);
  }

  /** Fetches all pages and returns their items in one list. */
  async all(): Promise<T[]> {
    const all: T[] = [];
    for await (const one of this) all.push(one);
    return all;
  }
}
