// Commands: run one, see all, read the output of each again from its first byte, search in it.

import { useEffect, useRef, useState } from "preact/hooks";
import { address, call, type Exec, type ExecList, type ExecWithOutput, type OutputChunk, type Sandbox } from "../api";
import { age, bytes, command, duration } from "../format";
import { now } from "../live";
import { attempt, Empty, State, Waiting } from "../ui/parts";
import { usePoll } from "../ui/poll";
import { decode, marked, plain } from "./output";

const EVERY_MS = 2_000;
/** Most characters of output that the page holds. The rest stays on the server. */
const SHOWN_MAX_CHARS = 1_000_000;

export function Commands({ sandbox }: { sandbox: Sandbox }) {
  const [line, type] = useState("");
  const [chosen, choose] = useState<string>();
  const polled = usePoll(`execs ${sandbox.id}`, EVERY_MS, (signal) =>
    call<ExecList>("get", "/v1/sandboxes/{sandbox}/execs", { in: { sandbox: sandbox.id }, query: { limit: 200 }, signal }),
  );
  const items = [...(polled.value?.items ?? [])].sort((a, b) => b.created_at_ms - a.created_at_ms);
  const shown = items.find((one) => one.id === chosen) ?? items[0];
  const run = async (event: SubmitEvent) => {
    event.preventDefault();
    if (!line.trim()) return;
    const started = await attempt(() =>
      call<ExecWithOutput>("post", "/v1/sandboxes/{sandbox}/execs", {
        in: { sandbox: sandbox.id },
        json: { shell: line, idempotency_key: crypto.randomUUID() },
      }),
    );
    if (!started) return;
    type("");
    choose(started.exec.id);
    polled.again();
  };
  return (
    <>
      <form class="bar run" onSubmit={(event) => void run(event)}>
        <input
          aria-label="Command to run"
          class="mono"
          placeholder="Run a command: make test"
          value={line}
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => type(event.currentTarget.value)}
        />
        <button class="first" disabled={!line.trim()}>
          Run
        </button>
      </form>
      {polled.value === undefined ? (
        <Waiting error={polled.error} />
      ) : items.length === 0 ? (
        <Empty title="Nothing ran here yet">Each command is kept with its output, whoever started it.</Empty>
      ) : (
        <div class="split">
          <ul class="execs" aria-label="Commands">
            {items.map((one) => (
              <li key={one.id}>
                <button aria-current={one.id === shown?.id ? "true" : undefined} onClick={() => choose(one.id)}>
                  <code>{command(one.argv)}</code>
                  <span>
                    <Ending of={one} />
                    <small>
                      {age(one.created_at_ms, now.value)} ago · {bytes(one.output_bytes)}
                    </small>
                  </span>
                </button>
              </li>
            ))}
          </ul>
          {shown && <Output key={shown.id} of={shown} />}
        </div>
      )}
    </>
  );
}

/** Shows how the command ended, or that it runs. */
function Ending({ of }: { of: Exec }) {
  if (!of.exit) return <State of={of.state} />;
  const { reason, code, signal } = of.exit;
  const text = reason === "exited" ? `exit ${code ?? "?"}` : reason === "signaled" ? `signal ${signal}` : reason.replaceAll("_", " ");
  return (
    <span class={`state is-${reason === "exited" && code === 0 ? "ok" : "failed"}`}>
      <i aria-hidden="true" />
      {text}
    </span>
  );
}

/** Reads the output from the first byte that the server keeps, then each piece as it comes. */
function useOutput(of: Exec) {
  const [text, set] = useState("");
  const [cut, setCut] = useState<string | null>(null);
  useEffect(() => {
    const decoder = new TextDecoder();
    const stream = new EventSource(
      address("/v1/sandboxes/{sandbox}/execs/{exec}/events", { sandbox: of.sandbox, exec: of.id }, { offset: of.output_first }),
    );
    let kept = "";
    let waiting: number | undefined;
    const show = () => {
      // Pieces that come within one frame change the page once.
      waiting ??= requestAnimationFrame(() => {
        waiting = undefined;
        set(kept);
      });
    };
    if (of.output_first > 0) setCut(`The first ${bytes(of.output_first)} are not kept any more.`);
    stream.addEventListener("output", (message) => {
      kept += plain(decoder.decode(decode(JSON.parse(message.data) as OutputChunk), { stream: true }));
      if (kept.length > SHOWN_MAX_CHARS) {
        kept = kept.slice(-SHOWN_MAX_CHARS);
        setCut(`The last ${bytes(SHOWN_MAX_CHARS)} are shown.`);
      }
      show();
    });
    stream.addEventListener("gap", () => setCut("Some output is missing here: it was more than is kept."));
    stream.addEventListener("exit", () => stream.close());
    // An `error` event with data is the server's. One without data is the connection's, and EventSource reconnects.
    stream.addEventListener("error", (message) => "data" in message && message.data && stream.close());
    return () => {
      stream.close();
      if (waiting !== undefined) cancelAnimationFrame(waiting);
    };
  }, [of.id]);
  return { text, cut };
}

function Output({ of }: { of: Exec }) {
  const { text, cut } = useOutput(of);
  const [search, find] = useState("");
  const place = useRef<HTMLPreElement>(null);
  const { parts, hits } = marked(text, search);
  useEffect(() => {
    if (search) place.current?.querySelector("mark")?.scrollIntoView({ block: "nearest" });
    else place.current?.scrollTo(0, place.current.scrollHeight);
  }, [text, search]);
  const stop = () =>
    attempt(() =>
      call("post", "/v1/sandboxes/{sandbox}/execs/{exec}/signal", {
        in: { sandbox: of.sandbox, exec: of.id },
        json: { signal: "TERM", tree: true },
      }),
    );
  return (
    <section class="card output" aria-label="Output">
      <header>
        <code class="wrap">{command(of.argv)}</code>
        <span class="meta">
          <Ending of={of} />
          <small>
            {of.ended_at_ms ? duration(of.ended_at_ms - of.created_at_ms) : "runs"} · {of.user}
            {of.cpu_us ? ` · CPU ${duration(of.cpu_us / 1000)}` : ""}
          </small>
          {of.state === "running" && (
            <button class="small danger" onClick={() => void stop()}>
              Stop
            </button>
          )}
        </span>
        <label class="search">
          <span class="unseen">Search in the output</span>
          <input type="search" placeholder="Search the output" value={search} onInput={(event) => find(event.currentTarget.value)} />
          {search && <small>{hits} found</small>}
        </label>
      </header>
      {cut && <p class="muted pad">{cut}</p>}
      <pre ref={place} tabIndex={0} aria-label="Output of the command">
        {parts.map((part, index) => (index % 2 ? <mark key={index}>{part}</mark> : part))}
        {!text && <span class="muted">{of.exit ? "It wrote nothing." : "Nothing yet."}</span>}
      </pre>
    </section>
  );
}
