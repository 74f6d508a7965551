// Live state: the list of sandboxes, kept current by the server's stream of events and by reading it every 5 seconds.

import { computed, signal } from "@preact/signals";
import { every, address, type Sandbox, type SandboxState, type TraceEvent } from "./api";

/** All sandboxes that the session may see, the newest first; undefined until the first answer. */
export const sandboxes = signal<Sandbox[] | undefined>(undefined);
/** The error because of which the list is not current, or null. */
export const offline = signal<string | null>(null);
/** The current time, renewed every second. Ages are computed from it. */
export const now = signal(Date.now());

export const byId = computed(() => new Map(sandboxes.value?.map((sandbox) => [sandbox.id, sandbox])));

/** Reading the list again finds changes that the stream did not tell, such as sandboxes that other keys made. */
const POLL_MS = 5_000;
const SETTLE_MS = 60;

let pending: number | undefined;
let reading = false;
/** How often `patch` was called: a list that was asked for before says what was before. */
let patches = 0;
/** What is true of sandboxes while an action on them is under way, whatever a list says. */
const held = new Map<string, Partial<Sandbox>>();

/** Reads the list soon. Calls before that read cause no second one. */
export function refresh(after_ms = SETTLE_MS): void {
  pending ??= window.setTimeout(() => void read(), after_ms);
}

async function read(): Promise<void> {
  pending = undefined;
  if (reading) return refresh(200);
  reading = true;
  const before = patches;
  try {
    const items = await every<Sandbox>("/v1/sandboxes", { limit: 1000 });
    offline.value = null;
    if (before !== patches) return refresh();
    const current = items.map((one) => ({ ...one, ...held.get(one.id) }));
    sandboxes.value = current.sort((a, b) => b.created_at_ms - a.created_at_ms);
  } catch (error) {
    offline.value = error instanceof Error ? error.message : String(error);
  } finally {
    reading = false;
  }
}

/** Puts a newer state of one sandbox into the list, before the list itself is read again. */
export function patch(id: string, change: Partial<Sandbox>): void {
  patches += 1;
  if (!byId.value.has(id)) return refresh();
  sandboxes.value = sandboxes.value?.map((one) => (one.id === id ? { ...one, ...change } : one));
}

/**
 * Does something to a sandbox that changes it as its answer says, and shows `change` meanwhile. An older list that came in between
 * would show the sandbox as running again; the page would ask for its metrics, and the request would resume it.
 */
export async function during(id: string, change: Partial<Sandbox>, act: () => Promise<Sandbox>): Promise<void> {
  held.set(id, change);
  patch(id, change);
  try {
    patch(id, await act());
  } finally {
    held.delete(id);
    refresh();
  }
}

/** Starts watching. Closes the stream while the page is hidden, and opens a new one when it is shown again. */
export function watch(): void {
  let stream: EventSource | undefined;
  const open = () => {
    refresh(0);
    if (stream) return;
    stream = new EventSource(
      address("/v1/events", {}, { kind: ["created", "state", "limits", "forked", "rolled_back"], since_ms: Date.now() }),
    );
    stream.addEventListener("event", (message) => happened(JSON.parse(message.data) as TraceEvent));
  };
  const close = () => {
    stream?.close();
    stream = undefined;
  };
  const turn = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", turn);
  turn();
  setInterval(() => !document.hidden && refresh(), POLL_MS);
  setInterval(() => !document.hidden && (now.value = Date.now()), 1000);
}

/** Reads the list again instead of using the event's state: the list may have a later state already. */
function happened(event: TraceEvent & { state?: SandboxState }): void {
  // There is no event for the end of a deletion. The sandbox has left the list a moment later.
  refresh(event.kind === "state" && event.state === "deleting" ? 500 : SETTLE_MS);
}
