// The flight recorder: processes as a tree over time, and all events of the sandbox in words.

import { useMemo, useState } from "preact/hooks";
import { address, call, type Sandbox, type TraceReport } from "../api";
import { clock, duration } from "../format";
import { attempt, Empty, tell } from "../ui/parts";
import { treeOf, type Node } from "./journal";
import { Log, useEvents } from "./log";

const TICKS = 5;
// A very short process still gets a bar of this width.
const BAR_MIN_PERCENT = 0.4;

type Span = { from: number; to: number };

export function Timeline({ sandbox }: { sandbox: Pick<Sandbox, "id" | "state"> }) {
  const events = useEvents(address("/v1/sandboxes/{sandbox}/events", { sandbox: sandbox.id }, { from: 1 }));
  const tree = useMemo(() => treeOf(events), [events]);
  const [zoom, setZoom] = useState<Span>();
  if (events.length === 0) return <Empty title="Nothing is recorded yet">The recorder writes down what happens in a sandbox and with it.</Empty>;
  // The axis begins with the first command, not when the sandbox was made: before it, there may be a long idle time.
  const first = tree[0]?.start_us ?? events[0]?.at_us ?? 0;
  const last = Math.max(...tree.map((one) => one.end_us ?? one.start_us), events.at(-1)?.at_us ?? first, first + 1000);
  const span = zoom ?? { from: first, to: last };
  return (
    <>
      <section class="card lanes" aria-label="Processes over time">
        <header>
          <h2>Processes</h2>
          <span class="grow" />
          <Zoom span={span} set={setZoom} whole={zoom === undefined} />
        </header>
        {tree.length ? (
          <>
            <Axis span={span} />
            <div class="lane-rows" tabIndex={0} role="tree" aria-label="Processes">
              {tree.map((one) => (
                <Lane key={one.key} node={one} depth={0} span={span} last={last} show={setZoom} />
              ))}
            </div>
          </>
        ) : (
          <p class="muted pad">No command ran yet.</p>
        )}
      </section>
      <Log events={events} name={`${sandbox.id}-events`} actions={<Verify sandbox={sandbox.id} />} />
    </>
  );
}

function Zoom({ span, set, whole }: { span: Span; set: (span: Span | undefined) => void; whole: boolean }) {
  const length = span.to - span.from;
  const by = (factor: number) => {
    const middle = span.from + length / 2;
    set({ from: middle - (length * factor) / 2, to: middle + (length * factor) / 2 });
  };
  const shift = (part: number) => set({ from: span.from + length * part, to: span.to + length * part });
  return (
    <div class="segments" role="group" aria-label="Part of the time that is shown">
      <button onClick={() => shift(-0.4)} aria-label="Earlier">←</button>
      <button onClick={() => shift(0.4)} aria-label="Later">→</button>
      <button onClick={() => by(0.5)} aria-label="Less time">+</button>
      <button onClick={() => by(2)} aria-label="More time">−</button>
      <button aria-pressed={whole} onClick={() => set(undefined)}>
        all
      </button>
    </div>
  );
}

function Axis({ span }: { span: Span }) {
  const length = span.to - span.from;
  return (
    <div class="axis" aria-hidden="true">
      <span class="lane-name">{clock(span.from / 1000)}</span>
      <div>
        {Array.from({ length: TICKS }, (_, index) => (
          <span key={index} style={{ left: `${(index / TICKS) * 100}%` }}>
            +{duration((length * index) / TICKS / 1000)}
          </span>
        ))}
      </div>
    </div>
  );
}

interface LaneProps {
  node: Node;
  depth: number;
  span: Span;
  last: number;
  show: (span: Span) => void;
}

function Lane({ node, depth, span, last, show }: LaneProps) {
  const [open, turn] = useState(true);
  const length = span.to - span.from;
  const percent = (at: number) => Math.min(100, Math.max(0, ((at - span.from) / length) * 100));
  const end = node.end_us ?? last;
  const [left, right] = [percent(node.start_us), percent(end)];
  const outside = end < span.from || node.start_us > span.to;
  const took = node.end_us ? duration((node.end_us - node.start_us) / 1000) : "runs";
  const focus = () => {
    const room = Math.max((end - node.start_us) * 0.1, 1000);
    show({ from: node.start_us - room, to: end + room });
  };
  return (
    <>
      <div class="lane" role="treeitem" aria-level={depth + 1} aria-expanded={node.children.length ? open : undefined} aria-label={`${node.title}, ${took}`}>
        <span class="lane-name" style={{ paddingLeft: `${Math.min(depth, 8) * 14}px` }}>
          <button class="twist" disabled={!node.children.length} aria-label={open ? "Fold" : "Unfold"} onClick={() => turn(!open)}>
            {node.children.length ? (open ? "▾" : "▸") : "·"}
          </button>
          <button class="link" title={`${node.title}${node.pid ? ` (pid ${node.pid})` : ""}`} onClick={focus}>
            {node.title}
          </button>
        </span>
        <div class="lane-bar">
          {!outside && (
            <i
              class={node.failed ? "failed" : node.end_us ? "" : "runs"}
              style={{ left: `${left}%`, width: `${Math.max(right - left, BAR_MIN_PERCENT)}%` }}
            />
          )}
          {node.marks.map((mark) =>
            mark.at_us < span.from || mark.at_us > span.to ? null : <b key={mark.at_us} title={mark.text} style={{ left: `${percent(mark.at_us)}%` }} />,
          )}
          <small style={left > 70 ? { right: `${100 - left + 1}%` } : { left: `${Math.min(right + 1, 85)}%` }}>{outside ? "" : took}</small>
        </div>
      </div>
      {open && node.children.map((child) => <Lane key={child.key} node={child} depth={depth + 1} span={span} last={last} show={show} />)}
    </>
  );
}

function Verify({ sandbox }: { sandbox: string }) {
  const verify = () =>
    attempt(async () => {
      const report = await call<TraceReport>("get", "/v1/sandboxes/{sandbox}/events/verify", { in: { sandbox } });
      if (report.findings.length) tell(`The journal was changed: ${report.findings.length} findings`, true);
      else tell(`The journal is as it was written; signed up to event ${report.signed} of ${report.last}`);
    });
  return (
    <button class="small" onClick={() => void verify()}>
      Verify
    </button>
  );
}
