// A list of events in words, the newest first: of one sandbox, or of all that the session may see.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { clock, time } from "../format";
import { describe, GROUPS, type JournalEvent } from "./journal";

/** Most events that the page holds: the newest. */
const EVENTS_MAX = 20_000;
const ROWS_MAX = 500;
const SHOW_AFTER_MS = 100;

/** Reads all events of a stream, then each new one. When `stream` changes, it starts with none. */
export function useEvents(stream: string): JournalEvent[] {
  const [state, set] = useState<{ stream: string; events: JournalEvent[] }>({ stream, events: [] });
  useEffect(() => {
    const kept: JournalEvent[] = [];
    // After a reconnection, the stream may repeat events.
    const seen = new Set<string>();
    let waiting: number | undefined;
    const source = new EventSource(stream);
    source.addEventListener("event", (message) => {
      const event = JSON.parse(message.data) as JournalEvent;
      if (seen.has(idOf(event))) return;
      seen.add(idOf(event));
      kept.push(event);
      if (kept.length > EVENTS_MAX) for (const old of kept.splice(0, kept.length - EVENTS_MAX)) seen.delete(idOf(old));
      waiting ??= window.setTimeout(() => {
        waiting = undefined;
        set({ stream, events: [...kept] });
      }, SHOW_AFTER_MS);
    });
    source.addEventListener("error", (message) => "data" in message && message.data && source.close());
    return () => {
      source.close();
      clearTimeout(waiting);
    };
  }, [stream]);
  return state.stream === stream ? state.events : [];
}

const idOf = (event: JournalEvent) => `${event.sandbox} ${event.number}`;

interface Props {
  events: JournalEvent[];
  /** The name of the file in which the user saves the events. */
  name: string;
  /** Whether the events are of several sandboxes. */
  ofAll?: boolean;
  actions?: ComponentChildren;
}

export function Log({ events, name, ofAll, actions }: Props) {
  const [text, type] = useState("");
  // API calls are hidden at first: this page itself makes many.
  const [groups, choose] = useState<ReadonlySet<string>>(new Set(["processes", "network", "sandbox"]));
  const wanted = text.toLowerCase();
  const words = (event: JournalEvent) => `${event.kind} ${event.witness} ${ofAll ? event.sandbox : ""} ${describe(event)}`;
  const found = events.filter(
    (event) => [...groups].some((group) => GROUPS[group]?.(event.kind)) && (!wanted || words(event).toLowerCase().includes(wanted)),
  );
  const toggle = (group: string) => {
    const next = new Set(groups);
    if (!next.delete(group)) next.add(group);
    choose(next);
  };
  return (
    <section class="card" aria-label="Events">
      <header>
        <h2>
          Events <small>{found.length} of {events.length}</small>
        </h2>
        <span class="grow" />
        <button class="small" disabled={!found.length} onClick={() => save(found, name)}>
          Export
        </button>
        {actions}
      </header>
      <div class="bar">
        <input type="search" aria-label="Filter events" placeholder="Filter: program, host, refused" value={text} onInput={(event) => type(event.currentTarget.value)} />
        <div class="segments" role="group" aria-label="Kinds">
          {Object.keys(GROUPS).map((group) => (
            <button key={group} aria-pressed={groups.has(group)} onClick={() => toggle(group)}>
              {group}
            </button>
          ))}
        </div>
      </div>
      <ol class="log" tabIndex={0} aria-label="Events, the newest first">
        {found.slice(-ROWS_MAX).reverse().map((event) => (
          <li key={idOf(event)} class={event.allowed === false ? "bad" : ""}>
            <time title={time(event.at_us / 1000)}>{clock(event.at_us / 1000)}</time>
            <span class="kind">{event.kind}</span>
            <code>
              {ofAll && <a href={`/sandboxes/${event.sandbox}`}>{event.sandbox}</a>} {describe(event)}
            </code>
            <small title="Who saw it">{event.witness}</small>
          </li>
        ))}
      </ol>
      {found.length > ROWS_MAX && <p class="muted">The newest {ROWS_MAX} are shown: filter to see others.</p>}
    </section>
  );
}

/** A file of JSON lines, as `atoll trace --json` prints them. */
function save(events: JournalEvent[], name: string): void {
  const lines = events.map((event) => `${JSON.stringify(event)}\n`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  link.download = `${name}.jsonl`;
  link.click();
  URL.revokeObjectURL(link.href);
}
