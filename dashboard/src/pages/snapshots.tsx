// Snapshots, as a table or as a family tree.

import { useState } from "preact/hooks";
import { every, type Sandbox, type Snapshot } from "../api";
import { bytes } from "../format";
import { Copy, Empty, State, Table } from "../ui/parts";
import { Age, Choice, Page } from "./page";

interface Family {
  snapshots: Snapshot[];
  sandboxes: Sandbox[];
}

export function SnapshotsPage() {
  const [shown, show] = useState("table");
  return (
    <Page
      name="Snapshots"
      read={async (): Promise<Family> => {
        const [snapshots, sandboxes] = await Promise.all([
          every<Snapshot>("/v1/snapshots", { limit: 1000 }),
          every<Sandbox>("/v1/sandboxes", { limit: 1000 }),
        ]);
        return { snapshots, sandboxes };
      }}
      above={() => <Choice label="View" all={["table", "family"]} chosen={shown} choose={show} />}
    >
      {(family) => (shown === "family" ? <Tree of={family} /> : <List of={family.snapshots} />)}
    </Page>
  );
}

function List({ of }: { of: Snapshot[] }) {
  return (
    <Table
      label="Snapshots"
      head={["Snapshot", "Kind", "Of", "Image", "Stored", "Age"]}
      rows={of}
      key={(one) => one.id}
      empty="No snapshots."
      cells={(one) => [
        one.tags.length ? <strong>{one.tags.join(", ")}</strong> : <Copy text={one.id} />,
        one.kind,
        one.sandbox ? <a href={`/sandboxes/${one.sandbox}`}>{one.sandbox}</a> : "imported",
        one.image,
        bytes(one.stored_bytes),
        <Age since={one.created_at_ms} />,
      ]}
    />
  );
}

interface Branch {
  snapshot: Snapshot;
  children: Branch[];
  /** Existing sandboxes that were made from this snapshot. */
  sandboxes: Sandbox[];
}

/**
 * Makes the tree. The children of a snapshot are the next snapshot of the same sandbox, and the first snapshot of each
 * sandbox that was made from it, as long as that sandbox exists.
 */
function branches({ snapshots, sandboxes }: Family): Branch[] {
  const all = new Map<string, Branch>(snapshots.map((one) => [one.id, { snapshot: one, children: [], sandboxes: [] }]));
  const origins = new Map<string, string>();
  for (const sandbox of sandboxes) {
    if (!sandbox.snapshot) continue;
    origins.set(sandbox.id, sandbox.snapshot);
    all.get(sandbox.snapshot)?.sandboxes.push(sandbox);
  }
  const roots: Branch[] = [];
  const latest = new Map<string, Branch>();
  for (const branch of [...all.values()].sort((a, b) => a.snapshot.created_at_ms - b.snapshot.created_at_ms)) {
    const of = branch.snapshot.sandbox ?? "";
    const above = (of && latest.get(of)) || all.get(origins.get(of) ?? "");
    // No snapshot is made from itself. This check makes the tree end even if the server says so.
    (above && above !== branch ? above.children : roots).push(branch);
    if (of) latest.set(of, branch);
  }
  return roots;
}

function Tree({ of }: { of: Family }) {
  const roots = branches(of);
  if (!roots.length) return <Empty title="No snapshots." />;
  return (
    <section class="card pad" aria-label="Family">
      <ul class="family">
        {roots.map((one) => (
          <Twig key={one.snapshot.id} of={one} />
        ))}
      </ul>
    </section>
  );
}

function Twig({ of: { snapshot, children, sandboxes } }: { of: Branch }) {
  return (
    <li>
      <span class="row">
        {snapshot.tags.length ? <strong>{snapshot.tags.join(", ")}</strong> : <Copy text={snapshot.id} />}
        <small class="muted">
          {snapshot.kind}
          {snapshot.comment && `: ${snapshot.comment}`}, <Age since={snapshot.created_at_ms} /> ago, {bytes(snapshot.stored_bytes)}
        </small>
      </span>
      {(children.length > 0 || sandboxes.length > 0) && (
        <ul>
          {sandboxes.map((one) => (
            <li key={one.id}>
              <span class="row">
                <a href={`/sandboxes/${one.id}`}>{one.name ?? one.id}</a> <State of={one.state} />
              </span>
            </li>
          ))}
          {children.map((one) => (
            <Twig key={one.snapshot.id} of={one} />
          ))}
        </ul>
      )}
    </li>
  );
}
