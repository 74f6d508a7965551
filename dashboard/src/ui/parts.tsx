// Small parts that every page is made of.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Refused, type SandboxState } from "../api";

interface Notice {
  id: number;
  text: string;
  hint?: string | null;
  bad: boolean;
}

const notices = signal<Notice[]>([]);
let last = 0;

/** Shows a notice for some seconds. */
export function tell(text: string, bad = false, hint?: string | null): void {
  const id = (last += 1);
  notices.value = [...notices.value.slice(-3), { id, text, bad, hint }];
  setTimeout(() => (notices.value = notices.value.filter((one) => one.id !== id)), bad ? 9000 : 4000);
}

/** Runs `work`. Shows its error as a notice when it fails, and `done`, if given, when it succeeds. */
export async function attempt<T>(work: () => Promise<T>, done?: string): Promise<T | undefined> {
  try {
    const result = await work();
    if (done) tell(done);
    return result;
  } catch (error) {
    tell((error as Error).message, true, error instanceof Refused ? error.hint : null);
    return undefined;
  }
}

export function Notices() {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((one) => (
        <div key={one.id} class={one.bad ? "notice bad" : "notice"}>
          {one.text}
          {one.hint && <div class="hint">{one.hint}</div>}
        </div>
      ))}
    </div>
  );
}

/** The state in words; the dot only repeats it in colour. */
export function State({ of }: { of: SandboxState | string }) {
  return (
    <span class={`state is-${of}`}>
      <i aria-hidden="true" />
      {of.replaceAll("_", " ")}
    </span>
  );
}

/** A modal dialog: the browser's own, which holds the focus and closes on Escape. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; class?: string }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => element.current?.showModal(), []);
  return (
    <dialog
      ref={element}
      class={props.class}
      aria-label={props.title}
      onClose={props.onClose}
      onClick={(event) => event.target === element.current && props.onClose()}
    >
      {props.children}
    </dialog>
  );
}

export function Field(props: { label: string; hint?: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{props.label}</span>
      {props.children}
      {props.hint && <small>{props.hint}</small>}
    </label>
  );
}

export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      {props.children && <p>{props.children}</p>}
    </div>
  );
}

/** Shown while an answer is awaited, or with the error when it did not come. */
export function Waiting({ error }: { error: string | null }) {
  return error ? (
    <div class="empty bad" role="alert">
      <strong>This could not be read</strong>
      <p>{error}</p>
    </div>
  ) : (
    <div class="empty" aria-busy="true">
      Reading…
    </div>
  );
}

/** Text that a click copies. */
export function Copy({ text, label }: { text: string; label?: string }) {
  return (
    <button
      class="copy"
      title="Copy"
      aria-label={`Copy ${label ?? text}`}
      onClick={() => void attempt(() => navigator.clipboard.writeText(text), "Copied")}
    >
      {label ?? text}
    </button>
  );
}

/** A plain table of rows. The first column names the row. */
export function Table<T>(props: {
  label: string;
  head: string[];
  rows: T[];
  cells: (row: T) => ComponentChildren[];
  empty: string;
  key?: (row: T) => string;
}) {
  if (props.rows.length === 0) return <Empty title={props.empty} />;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
      <table>
        <thead>
          <tr>
            {props.head.map((name) => (
              <th key={name} scope="col">
                {name || <span class="unseen">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row, index) => (
            <tr key={props.key?.(row) ?? index}>
              {props.cells(row).map((cell, column) => (
                <td key={column}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
