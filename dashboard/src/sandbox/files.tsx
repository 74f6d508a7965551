// Files: browse, view, edit, upload, download.

import { useState } from "preact/hooks";
import { address, call, send, type FileEntry, type FileList as Listing, type Sandbox } from "../api";
import { age, bytes } from "../format";
import { now } from "../live";
import { attempt, Table, tell, Waiting } from "../ui/parts";
import { usePoll } from "../ui/poll";

const VIEW_MAX_BYTES = 1 << 20;
const LISTED_MAX = 1_000;

const nameOf = (path: string) => path.slice(path.lastIndexOf("/") + 1);
const join = (directory: string, name: string) => `${directory === "/" ? "" : directory}/${name}`;

export function Files({ sandbox }: { sandbox: Sandbox }) {
  const [at, go] = useState(sandbox.workdir ?? (sandbox.user === "root" ? "/root" : "/"));
  const [open, view] = useState<FileEntry>();
  const within = { sandbox: sandbox.id };
  const polled = usePoll(`${sandbox.id} ${at}`, null, (signal) =>
    call<Listing>("get", "/v1/sandboxes/{sandbox}/files/list", { in: within, query: { path: at, limit: LISTED_MAX }, signal }),
  );
  const rows = [...(polled.value?.items ?? [])].sort(
    (a, b) => Number(b.kind === "directory") - Number(a.kind === "directory") || a.path.localeCompare(b.path),
  );
  const upload = async (files: Iterable<File>) => {
    for (const file of files) {
      await attempt(
        () => send("put", "/v1/sandboxes/{sandbox}/files", { in: within, query: { path: join(at, file.name) }, raw: file }),
        `${file.name} is uploaded`,
      );
    }
    polled.again();
  };
  const enter = (entry: FileEntry) => {
    if (entry.kind === "directory") return go(entry.path);
    // The server follows the link, and says whether it leads to a directory or a file.
    if (entry.kind === "symlink") {
      void attempt(async () => {
        const target = await call<FileEntry>("get", "/v1/sandboxes/{sandbox}/files/stat", { in: within, query: { path: entry.path, follow: true } });
        if (target.kind === "directory") go(entry.path);
        else view({ ...target, path: entry.path });
      });
      return;
    }
    view(entry);
  };
  return (
    <div
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void upload(event.dataTransfer?.files ?? []);
      }}
    >
      <div class="bar">
        <Crumbs at={at} go={(path) => (view(undefined), go(path))} />
        <span class="grow" />
        <button onClick={() => view({ path: join(at, ""), kind: "file", size_bytes: 0, mode: "0644", uid: 0, gid: 0, modified_at_ms: 0 })}>New file</button>
        <label class="button">
          Upload
          <input
            class="unseen"
            type="file"
            multiple
            onChange={(event) => void upload(event.currentTarget.files ?? [])}
          />
        </label>
      </div>
      {open ? (
        <Editor key={open.path} sandbox={sandbox.id} entry={open} close={() => (view(undefined), polled.again())} />
      ) : polled.value === undefined ? (
        <Waiting error={polled.error} />
      ) : (
        <>
          <Table
            label="Files"
            head={["Name", "Size", "Mode", "Owner", "Changed", ""]}
            rows={rows}
            key={(one) => one.path}
            empty="This directory is empty. Drop files here to upload them."
            cells={(one) => [
              <button class="link" onClick={() => enter(one)}>
                <Icon of={one} />
                {nameOf(one.path)}
                {one.target && <small> → {one.target}</small>}
              </button>,
              one.kind === "file" ? bytes(one.size_bytes) : "",
              <code>{one.mode}</code>,
              one.user ?? one.uid,
              `${age(one.modified_at_ms, now.value)} ago`,
              one.kind === "file" && (
                <a class="button small" download={nameOf(one.path)} href={address("/v1/sandboxes/{sandbox}/files", within, { path: one.path })}>
                  Download<span class="unseen"> {nameOf(one.path)}</span>
                </a>
              ),
            ]}
          />
          {polled.value.truncated && <p class="muted">The first {LISTED_MAX} are shown.</p>}
        </>
      )}
    </div>
  );
}

function Icon({ of }: { of: FileEntry }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={of.kind === "directory" ? "M1.5 3.5h4l1.5 2h7.5v8h-13z" : "M3.5 1.5h6l3 3v10h-9zM9.5 1.5v3h3"} />
    </svg>
  );
}

function Crumbs({ at, go }: { at: string; go: (path: string) => void }) {
  const parts = at.split("/").filter(Boolean);
  return (
    <nav class="crumbs mono" aria-label="Directory">
      <button onClick={() => go("/")} aria-label="Root directory">
        /
      </button>
      {parts.map((part, index) => (
        <button key={index} onClick={() => go(`/${parts.slice(0, index + 1).join("/")}`)}>
          {part}
          {index < parts.length - 1 && <span aria-hidden="true"> /</span>}
        </button>
      ))}
    </nav>
  );
}

/** The text of a file, or undefined when the file is not text. */
async function textOf(sandbox: string, entry: FileEntry): Promise<{ text?: string; why?: string }> {
  if (!nameOf(entry.path)) return { text: "" };
  if (entry.size_bytes > VIEW_MAX_BYTES) return { why: `It has ${bytes(entry.size_bytes)}: download it.` };
  const answer = await send("get", "/v1/sandboxes/{sandbox}/files", { in: { sandbox }, query: { path: entry.path } });
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await answer.arrayBuffer());
    return text.includes("\0") ? { why: "It is not text: download it." } : { text };
  } catch {
    return { why: "It is not text: download it." };
  }
}

function Editor({ sandbox, entry, close }: { sandbox: string; entry: FileEntry; close: () => void }) {
  const fresh = !nameOf(entry.path);
  const [path, rename] = useState(entry.path);
  const [text, edit] = useState<string>();
  const [saved, keep] = useState<string>();
  const polled = usePoll(`${sandbox} ${entry.path}`, null, async () => {
    const read = await textOf(sandbox, entry);
    edit(read.text);
    keep(read.text);
    return read;
  });
  const changed = text !== saved;
  const save = async () => {
    if (text === undefined || (!changed && !fresh)) return;
    if (!nameOf(path)) return tell("Give the file a name", true);
    const done = await attempt(
      () => send("put", "/v1/sandboxes/{sandbox}/files", { in: { sandbox }, query: { path, mode: fresh ? undefined : entry.mode }, raw: text }),
      "Saved",
    );
    if (done) keep(text);
  };
  const leave = () => (!changed || confirm("Leave without saving?")) && close();
  return (
    <section class="card editor" aria-label="File">
      <header>
        {fresh ? (
          <input class="mono grow" aria-label="Path of the new file" value={path} autofocus onInput={(event) => rename(event.currentTarget.value)} />
        ) : (
          <code class="wrap grow">{entry.path}</code>
        )}
        {changed && <small class="muted">not saved</small>}
        <button class="first" disabled={text === undefined || (!changed && !fresh)} onClick={() => void save()}>
          Save
        </button>
        <button onClick={leave}>Close</button>
      </header>
      {polled.value === undefined ? (
        <Waiting error={polled.error} />
      ) : polled.value.why ? (
        <p class="pad muted">
          {polled.value.why}{" "}
          <a download={nameOf(entry.path)} href={address("/v1/sandboxes/{sandbox}/files", { sandbox }, { path: entry.path })}>
            Download
          </a>
        </p>
      ) : (
        <textarea
          aria-label="Text of the file"
          class="mono"
          spellcheck={false}
          value={text ?? ""}
          onInput={(event) => edit(event.currentTarget.value)}
          onKeyDown={(event) => {
            if ((event.ctrlKey || event.metaKey) && event.key === "s") {
              event.preventDefault();
              void save();
            }
          }}
        />
      )}
    </section>
  );
}
