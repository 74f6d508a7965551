// Follows a log or list that grows. Each request waits on the server for new items, and the next is sent at its answer.

import { useEffect, useState } from "preact/hooks";

/** Pause after a request that failed, and between looks at whether a hidden page is shown again. */
const PAUSE_MS = 2_000;

export interface Followed<T> {
  items: T[];
  error: string | null;
  /** Whether the end has been read. */
  over: boolean;
}

/** The result of one read: the new items, the offset of the next read, and whether this was the end. */
export interface Part<T> {
  items: T[];
  next: number;
  over: boolean;
}

/** Collects all items that `read` returns for `key`, at most the last `most`. Another `key` begins anew. */
export function useFollow<T>(key: string, most: number, read: (from: number, signal: AbortSignal) => Promise<Part<T>>): Followed<T> {
  const [state, set] = useState<Followed<T> & { key: string }>({ key, items: [], error: null, over: false });
  useEffect(() => {
    const stop = new AbortController();
    const pause = () => new Promise((done) => setTimeout(done, PAUSE_MS));
    const follow = async () => {
      let items: T[] = [];
      let from = 0;
      while (!stop.signal.aborted) {
        if (document.hidden) {
          await pause();
          continue;
        }
        try {
          const part = await read(from, stop.signal);
          if (stop.signal.aborted) return;
          from = part.next;
          if (part.items.length) items = [...items, ...part.items].slice(-most);
          set({ key, items, error: null, over: part.over });
          if (part.over) return;
        } catch (error) {
          if (stop.signal.aborted) return;
          set({ key, items, error: (error as Error).message, over: false });
          await pause();
        }
      }
    };
    void follow();
    return () => stop.abort();
  }, [key]);
  return state.key === key ? state : { items: [], error: null, over: false };
}
