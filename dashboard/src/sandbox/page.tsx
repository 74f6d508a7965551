// The page of one sandbox: its state, the buttons for actions, and its tabs.

import { call, type Sandbox } from "../api";
import { byId, during, offline, refresh, sandboxes } from "../live";
import { go } from "../router";
import { attempt, Copy, Empty, State, Waiting } from "../ui/parts";
import { Commands } from "./commands";
import { Files } from "./files";
import { Network } from "./network";
import { Overview } from "./overview";
import { TerminalTab } from "./terminal";
import { Timeline } from "./timeline";

const TABS = [
  { path: "overview", name: "Overview", tab: Overview },
  { path: "commands", name: "Commands", tab: Commands },
  { path: "terminal", name: "Terminal", tab: TerminalTab },
  { path: "files", name: "Files", tab: Files },
  { path: "network", name: "Network", tab: Network },
  { path: "timeline", name: "Timeline", tab: Timeline },
] as const;

export function SandboxPage({ id, tab }: { id: string; tab: string }) {
  const sandbox = byId.value.get(id) ?? sandboxes.value?.find((one) => one.name === id);
  if (!sandbox && sandboxes.value === undefined) return <Waiting error={offline.value} />;
  if (!sandbox) return <Gone id={id} />;
  const found = TABS.find((one) => one.path === tab) ?? TABS[0];
  return (
    <>
      <div class="top box">
        <div>
          <h1>{sandbox.name ?? sandbox.id}</h1>
          <p class="under">
            <State of={sandbox.state} />
            <Copy text={sandbox.id} />
          </p>
        </div>
        <Actions of={sandbox} />
      </div>
      <nav class="tabs" aria-label="Parts of this sandbox">
        {TABS.map((one) => (
          <a key={one.path} href={`/sandboxes/${id}/${one.path}`} aria-current={one === found ? "page" : undefined}>
            {one.name}
          </a>
        ))}
      </nav>
      {sandbox.reason && <div class="banner">{sandbox.reason}</div>}
      <found.tab sandbox={sandbox} />
    </>
  );
}

/** The journal outlives its sandbox, so its timeline can still be read. */
function Gone({ id }: { id: string }) {
  return (
    <>
      <div class="top box">
        <div>
          <h1>{id}</h1>
          <p class="under">
            <State of="gone" />
          </p>
        </div>
      </div>
      <Empty title="This sandbox is not there any more">What it did is still in its journal.</Empty>
      <Timeline sandbox={{ id, state: "deleting" }} />
    </>
  );
}

function Actions({ of }: { of: Sandbox }) {
  const within = { sandbox: of.id };
  const turn = (to: "pause" | "resume") =>
    attempt(() =>
      during(of.id, { state: to === "pause" ? "pausing" : "resuming" }, () =>
        to === "pause"
          ? call<Sandbox>("post", "/v1/sandboxes/{sandbox}/pause", { in: within, json: {} })
          : call<Sandbox>("post", "/v1/sandboxes/{sandbox}/resume", { in: within }),
      ),
    );
  return (
    <div class="actions">
      {of.state === "paused" ? (
        <button onClick={() => turn("resume")}>Resume</button>
      ) : (
        <button disabled={of.state !== "running"} onClick={() => turn("pause")}>
          Pause
        </button>
      )}
      <button
        onClick={() =>
          attempt(
            () => call("post", "/v1/sandboxes/{sandbox}/checkpoints", { in: within, json: { comment: "from the dashboard" } }),
            "Checkpoint taken",
          )
        }
      >
        Checkpoint
      </button>
      <button
        class="danger"
        onClick={async () => {
          if (!confirm(`Delete ${of.name ?? of.id}? What is in it is gone.`)) return;
          const gone = await attempt(
            () => call("delete", "/v1/sandboxes/{sandbox}", { in: within }).then(() => true),
            "Deleted",
          );
          if (gone) {
            refresh(0);
            go("/");
          }
        }}
      >
        Delete
      </button>
    </div>
  );
}
