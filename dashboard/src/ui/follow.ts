// Following something that grows and is read from an offset on: asks again as soon as there is an answer, while it waits there.

import { useEffect, useState } from "preact/hooks";

/** Pause after a request that failed, and while nobody looks at the page. */
const PAUSE_MS = 2_000;

export interface Followed<T> {
  items: T[];
  error: string | null;
  /** There is no more to come. */
  over: boolean;
}

/** What a reader gives: what is new, where to go on, and whether that was the end. */
export interface Part<T> {
  items: T[];
  next: number;
  over: boolean;
}

/** All that `read` has given since the beginning of `key`; of more than `most` items the last. */
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
