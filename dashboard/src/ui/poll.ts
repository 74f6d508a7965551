// Polls resources that have no stream: reads at once, again after each pause while the page is visible, and on request.

import { useEffect, useState } from "preact/hooks";

export interface Polled<T> {
  value: T | undefined;
  error: string | null;
  again: () => void;
}

/** The newest answer of `read`. A change of `key` forgets it. When `every_ms` is null, `read` is called once. */
export function usePoll<T>(key: string, every_ms: number | null, read: (signal: AbortSignal) => Promise<T>): Polled<T> {
  const [state, set] = useState<{ key: string; value?: T; error: string | null }>({ key, error: null });
  const [round, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    let timer: number | undefined;
    const turn = async () => {
      try {
        // A tab that is opened in the background reads what it shows once, too.
        if (!document.hidden || every_ms === null) {
          const value = await read(stop.signal);
          if (!stop.signal.aborted) set({ key, value, error: null });
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        set((old) => ({ key, value: old.key === key ? old.value : undefined, error: (error as Error).message }));
      }
      if (every_ms !== null && !stop.signal.aborted) timer = window.setTimeout(turn, every_ms);
    };
    void turn();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, every_ms, round]);
  const current = state.key === key;
  return {
    value: current ? state.value : undefined,
    error: current ? state.error : null,
    again: () => again((count) => count + 1),
  };
}
