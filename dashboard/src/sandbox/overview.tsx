// A sandbox's use of resources now and over the last minutes, its limits, and its checkpoints.

import { useRef } from "preact/hooks";
import { call, type Metrics, type Sandbox, type Snapshot, type SnapshotList } from "../api";
import { age, bytes, cpus, time } from "../format";
import { now } from "../live";
import { attempt, Table } from "../ui/parts";
import { usePoll } from "../ui/poll";
import { Chart } from "./chart";

const EVERY_MS = 2_000;
const POINTS_MAX = 300;

interface Point {
  at_s: number;
  cpu: number;
  memory: number;
  disk: number;
  pids: number;
}

/** The server keeps no history of these: the charts begin when the page is opened. */
function useHistory(sandbox: Sandbox) {
  const kept = useRef<{ points: Point[]; last?: { at: number; cpu_us: number } }>({ points: [] });
  const runs = sandbox.state === "running";
  const polled = usePoll(`${sandbox.id} ${runs}`, runs ? EVERY_MS : null, async (signal) => {
    // A request would resume a paused sandbox.
    if (!runs) return undefined;
    const metrics = await call<Metrics>("get", "/v1/sandboxes/{sandbox}/metrics", { in: { sandbox: sandbox.id }, signal });
    const { points, last } = kept.current;
    const at = performance.now();
    const cpu = last ? Math.max(0, (metrics.cpu_us - last.cpu_us) / 1000 / (at - last.at)) * 100 : 0;
    kept.current.last = { at, cpu_us: metrics.cpu_us };
    if (last) {
      points.push({ at_s: Date.now() / 1000, cpu, memory: metrics.memory_bytes, disk: metrics.disk_used_bytes, pids: metrics.pids });
      if (points.length > POINTS_MAX) points.shift();
    }
    return metrics;
  });
  return { metrics: polled.value, points: kept.current.points };
}

export function Overview({ sandbox }: { sandbox: Sandbox }) {
  const { metrics, points } = useHistory(sandbox);
  const times = points.map((one) => one.at_s);
  const latest = points.at(-1);
  const chart = (name: string, value: string, of: (one: Point) => number, top: number, write: (v: number) => string) => (
    <section class="card metric">
      <h2>{name}</h2>
      <p class="figure">{value}</p>
      <Chart label={name} times={times} values={points.map(of)} top={top} write={write} />
    </section>
  );
  return (
    <>
      <div class="metrics">
        {chart("Processor", latest ? `${latest.cpu.toFixed(1)} %` : "–", (one) => one.cpu, sandbox.resources.cpu_millis / 10, (v) => `${v.toFixed(0)} %`)}
        {chart("Memory", metrics ? bytes(metrics.memory_bytes) : "–", (one) => one.memory, metrics?.memory_limit_bytes ?? 1, bytes)}
        {chart("Disk", metrics ? bytes(metrics.disk_used_bytes) : "–", (one) => one.disk, metrics?.disk_total_bytes ?? 1, bytes)}
        {chart("Processes", metrics ? String(metrics.pids) : "–", (one) => one.pids, sandbox.resources.pids, (v) => v.toFixed(0))}
      </div>
      <div class="columns">
        <Facts of={sandbox} />
        <Checkpoints of={sandbox} />
      </div>
    </>
  );
}

function Facts({ of }: { of: Sandbox }) {
  const until = (ms: number | null | undefined) => (ms ? time(ms) : "no end");
  const facts: [string, string | number][] = [
    ["From", of.template ?? of.snapshot ?? of.image],
    ["Isolation", of.isolation],
    ["Limits", `${cpus(of.resources.cpu_millis)}, ${bytes(of.resources.memory_bytes)}, disk ${bytes(of.resources.disk_bytes)}`],
    ["Made", `${time(of.created_at_ms)} (${age(of.created_at_ms, now.value)} ago)`],
    ["Ends", until(of.expires_at_ms)],
    ["Last used", `${age(of.last_active_at_ms, now.value)} ago`],
    ["User", of.user],
    ["Working directory", of.workdir ?? "home"],
    ["Internet", of.egress?.internet ?? "off"],
    ["Made by key", of.owner ?? "unknown"],
  ];
  return (
    <section class="card">
      <h2>About it</h2>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        {Object.keys(of.labels ?? {}).length > 0 && (
          <div>
            <dt>Labels</dt>
            <dd>
              {Object.entries(of.labels).map(([key, value]) => (
                <span key={key} class="label">
                  {key}={String(value)}
                </span>
              ))}
            </dd>
          </div>
        )}
      </dl>
    </section>
  );
}

function Checkpoints({ of }: { of: Sandbox }) {
  const within = { sandbox: of.id };
  const polled = usePoll(`checkpoints ${of.id}`, 5_000, (signal) =>
    call<SnapshotList>("get", "/v1/sandboxes/{sandbox}/checkpoints", { in: within, signal }),
  );
  const back = (one: Snapshot) => {
    if (!confirm(`Put the files back to checkpoint ${one.checkpoint}? What runs in it ends.`)) return;
    void attempt(
      () => call("post", "/v1/sandboxes/{sandbox}/rollback", { in: within, json: { to: String(one.checkpoint) } }),
      `Back at checkpoint ${one.checkpoint}`,
    );
  };
  return (
    <section class="card">
      <h2>Checkpoints</h2>
      <Table
        label="Checkpoints"
        head={["Number", "Note", "Age", ""]}
        rows={polled.value?.items ?? []}
        key={(one) => one.id}
        empty="None yet."
        cells={(one) => [
          `#${one.checkpoint}`,
          one.comment ?? (one.automatic ? "by itself" : ""),
          age(one.created_at_ms, now.value),
          <button class="small" onClick={() => back(one)}>
            Roll back
          </button>,
        ]}
      />
    </section>
  );
}
