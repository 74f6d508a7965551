// The list of all sandboxes: live, filtered, many at once.

import { signal } from "@preact/signals";
import { call, type Sandbox } from "../api";
import { age, bytes, cpus, time } from "../format";
import { now, patch, refresh, sandboxes } from "../live";
import { attempt, Empty, State, tell, Waiting } from "../ui/parts";
import { creating } from "./create";
import { offline } from "../live";

const text = signal("");
const state = signal("");
const chosen = signal<ReadonlySet<string>>(new Set());

const STATES = ["running", "paused", "creating", "failed"];

/** Words of the filter: text in name, id, image or template, or `key=value` of a label. */
function matches(sandbox: Sandbox, words: string[]): boolean {
  const labels = Object.entries(sandbox.labels ?? {}).map(([key, value]) => `${key}=${value}`.toLowerCase());
  const texts = [sandbox.name ?? "", sandbox.id, sandbox.image, sandbox.template ?? ""].map((one) => one.toLowerCase());
  return words.every((word) =>
    word.includes("=") ? labels.some((label) => label.startsWith(word)) : [...texts, ...labels].some((one) => one.includes(word)),
  );
}

export function SandboxesPage() {
  const all = sandboxes.value;
  const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const byText = all?.filter((one) => matches(one, words)) ?? [];
  const shown = byText.filter((one) => !state.value || one.state === state.value);
  const picked = shown.filter((one) => chosen.value.has(one.id));
  return (
    <>
      <div class="top">
        <h1>Sandboxes</h1>
        <button class="first" onClick={() => (creating.value = true)}>
          New sandbox <kbd>n</kbd>
        </button>
      </div>
      <div class="bar">
        <input
          type="search"
          aria-label="Filter by name, image or label"
          placeholder="Filter: name, image, label=value"
          value={text.value}
          onInput={(event) => (text.value = event.currentTarget.value)}
        />
        <div class="segments" role="group" aria-label="State">
          {["", ...STATES].map((one) => (
            <button key={one} aria-pressed={state.value === one} onClick={() => (state.value = one)}>
              {one || "all"}{" "}
              <span class="count">{one ? byText.filter((box) => box.state === one).length : byText.length}</span>
            </button>
          ))}
        </div>
      </div>
      {picked.length > 0 && <Bulk of={picked} />}
      {all === undefined ? (
        <Waiting error={offline.value} />
      ) : shown.length === 0 ? (
        <Empty title={all.length ? "No sandbox matches" : "No sandboxes yet"}>
          {all.length ? "Change the filter." : "Make one here, or let your agents make them: they appear at once."}
        </Empty>
      ) : (
        <List of={shown} picked={picked} />
      )}
    </>
  );
}

function List({ of, picked }: { of: Sandbox[]; picked: Sandbox[] }) {
  return (
    <div class="list" role="table" aria-label="Sandboxes" aria-rowcount={of.length + 1}>
      <div class="row head" role="row">
        <span role="columnheader">
          <input
            type="checkbox"
            aria-label="Choose all that are shown"
            checked={picked.length === of.length}
            onChange={(event) => (chosen.value = new Set(event.currentTarget.checked ? of.map((one) => one.id) : []))}
          />
        </span>
        <span role="columnheader">Name</span>
        <span role="columnheader">State</span>
        <span role="columnheader">From</span>
        <span role="columnheader">Limits</span>
        <span role="columnheader">Age</span>
      </div>
      {of.map((one) => (
        <Row key={one.id} of={one} checked={chosen.value.has(one.id)} />
      ))}
    </div>
  );
}

function Row({ of, checked }: { of: Sandbox; checked: boolean }) {
  const toggle = () => {
    const next = new Set(chosen.value);
    if (!next.delete(of.id)) next.add(of.id);
    chosen.value = next;
  };
  return (
    <div class="row" role="row">
      <span role="cell">
        <input type="checkbox" aria-label={`Choose ${of.name ?? of.id}`} checked={checked} onChange={toggle} />
      </span>
      <span role="cell" class="name">
        <a href={`/sandboxes/${of.id}`}>{of.name ?? of.id}</a>
        {Object.entries(of.labels ?? {}).map(([key, value]) => (
          <button key={key} class="label" title="Filter by this label" onClick={() => (text.value = `${key}=${value}`)}>
            {key}={String(value)}
          </button>
        ))}
      </span>
      <span role="cell">
        <State of={of.state} />
        {of.reason && <small class="reason">{of.reason}</small>}
      </span>
      <span role="cell" class="from" title={of.template ?? of.image}>
        {of.template ?? of.image} <small>{of.isolation}</small>
      </span>
      <span role="cell" class="limits">
        {cpus(of.resources.cpu_millis)} · {bytes(of.resources.memory_bytes)}
      </span>
      <span role="cell" class="age" title={time(of.created_at_ms)}>
        {age(of.created_at_ms, now.value)}
      </span>
    </div>
  );
}

function Bulk({ of }: { of: Sandbox[] }) {
  const each = async (name: string, among: Sandbox[], work: (one: Sandbox) => Promise<unknown>) => {
    const done = await Promise.all(among.map((one) => attempt(() => work(one).then(() => true))));
    const well = done.filter(Boolean).length;
    if (well) tell(`${name}: ${well} of ${among.length}`);
    chosen.value = new Set();
    refresh(0);
  };
  const running = of.filter((one) => one.state === "running");
  const paused = of.filter((one) => one.state === "paused");
  return (
    <div class="bulk" role="toolbar" aria-label="With the chosen sandboxes">
      <strong>{of.length} chosen</strong>
      <button
        disabled={running.length === 0}
        onClick={() => each("Paused", running, (one) => call<Sandbox>("post", "/v1/sandboxes/{sandbox}/pause", { in: { sandbox: one.id }, json: {} }).then((after) => patch(one.id, after)))}
      >
        Pause
      </button>
      <button
        disabled={paused.length === 0}
        onClick={() => each("Resumed", paused, (one) => call<Sandbox>("post", "/v1/sandboxes/{sandbox}/resume", { in: { sandbox: one.id } }).then((after) => patch(one.id, after)))}
      >
        Resume
      </button>
      <button
        class="danger"
        onClick={() => {
          const names = of.length === 1 ? (of[0]?.name ?? of[0]?.id) : `these ${of.length} sandboxes`;
          if (confirm(`Delete ${names}? What is in them is gone.`)) {
            void each("Deleted", of, (one) => call("delete", "/v1/sandboxes/{sandbox}", { in: { sandbox: one.id } }));
          }
        }}
      >
        Delete
      </button>
      <button class="quiet" onClick={() => (chosen.value = new Set())}>
        None
      </button>
    </div>
  );
}
