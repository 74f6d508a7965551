// The list of agents, and the page of one agent: its sessions, the conversation of each, and a field for messages.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Agent, type AgentEvent, type AgentEventPage, type AgentList, type AgentSession, type AgentSessionList } from "../api";
import { age, clock, command, time } from "../format";
import { byId, now } from "../live";
import { go, route } from "../router";
import { attempt, Copy, Empty, State, Table, Waiting } from "../ui/parts";
import { useFollow } from "../ui/follow";
import { usePoll } from "../ui/poll";

const EVERY_MS = 3_000;
const WAIT_MS = 25_000;
/** Events that the page holds; the server keeps 10,000. */
const EVENTS_MAX = 3_000;

export function AgentsPage() {
  const [, name, session] = route.value;
  return name ? <OneAgent key={name} name={name} chosen={session} /> : <AllAgents />;
}

function AllAgents() {
  const polled = usePoll("agents", EVERY_MS, (signal) => call<AgentList>("get", "/v1/agents", { signal }));
  return (
    <>
      <div class="top">
        <h1>Agents</h1>
      </div>
      {polled.value === undefined ? (
        <Waiting error={polled.error} />
      ) : (
        <Table
          label="Agents"
          head={["Name", "Lives in", "Program", "Tokens", "Age"]}
          rows={polled.value.items}
          key={(one) => one.id}
          empty="No agents. `atoll agent up` makes one from a recipe, or from a command of yours."
          cells={(one) => [
            <a href={`/agents/${encodeURIComponent(one.name)}`}>
              <strong>{one.name}</strong>
            </a>,
            <Home of={one} />,
            <code>{program(one)}</code>,
            tokens(one.usage),
            <span title={time(one.created_at_ms)}>{age(one.created_at_ms, now.value)}</span>,
          ]}
        />
      )}
    </>
  );
}

function Home({ of }: { of: Agent }) {
  const sandbox = byId.value.get(of.sandbox);
  return (
    <>
      <a href={`/sandboxes/${of.sandbox}`}>{sandbox?.name ?? of.sandbox}</a> {sandbox && <State of={sandbox.state} />}
    </>
  );
}

function program(agent: Agent): string {
  const layer = agent.layer ? `${agent.layer}:${agent.version ?? "latest"} ` : "";
  if (agent.service) return `${layer}service ${agent.service}`;
  const line = agent.command;
  return layer + (!line ? agent.adapter : typeof line === "string" ? line : command(line));
}

function tokens(usage: Agent["usage"]): string {
  const count = (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
  return usage?.requests ? `${count.toLocaleString()} in ${usage.requests} requests` : "none";
}

function OneAgent({ name, chosen }: { name: string; chosen?: string }) {
  const agent = usePoll(`agent ${name}`, EVERY_MS, (signal) => call<Agent>("get", "/v1/agents/{agent}", { in: { agent: name }, signal }));
  const listed = usePoll(`sessions ${name}`, EVERY_MS, (signal) =>
    call<AgentSessionList>("get", "/v1/agents/{agent}/sessions", { in: { agent: name }, signal }),
  );
  if (agent.value === undefined) return <Waiting error={agent.error} />;
  const sessions = [...(listed.value?.items ?? [])].reverse();
  const shown = sessions.find((one) => one.id === chosen) ?? sessions[0];
  const open = (session: AgentSession) => go(`/agents/${encodeURIComponent(name)}/${session.id}`);
  const begin = async () => {
    const made = await attempt(() => call<AgentSession>("post", "/v1/agents/{agent}/sessions", { in: { agent: name }, json: {} }));
    if (!made) return;
    listed.again();
    open(made);
  };
  return (
    <>
      <div class="top box">
        <div>
          <h1>{name}</h1>
          <p class="under">
            <Home of={agent.value} />
            <Copy text={agent.value.id} />
            <small>tokens: {tokens(agent.value.usage)}</small>
          </p>
        </div>
        <div class="actions">
          <button onClick={() => void begin()}>New session</button>
        </div>
      </div>
      {listed.value === undefined ? (
        <Waiting error={listed.error} />
      ) : !shown ? (
        <Empty title="Nobody has spoken to it yet">A session is a conversation with it, of which every event is kept.</Empty>
      ) : (
        <div class="split">
          <ul class="execs" aria-label="Sessions">
            {sessions.map((one) => (
              <li key={one.id}>
                <button aria-current={one === shown ? "true" : undefined} onClick={() => open(one)}>
                  <code>{one.thread ?? one.id}</code>
                  <span>
                    <State of={one.state} />
                    <small>
                      {age(one.created_at_ms, now.value)} ago · {one.last_event} events
                    </small>
                  </span>
                </button>
              </li>
            ))}
          </ul>
          <Conversation key={shown.id} agent={name} session={shown} />
        </div>
      )}
    </>
  );
}

function Conversation({ agent, session }: { agent: string; session: AgentSession }) {
  const within = { agent, session: session.id };
  const [text, type] = useState("");
  const [state, setState] = useState(session.state);
  const [gap, setGap] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const followed = useFollow<AgentEvent>(session.id, EVENTS_MAX, async (after, signal) => {
    const page = await call<AgentEventPage>("get", "/v1/agents/{agent}/sessions/{session}/events", {
      in: within,
      query: { after, wait_ms: WAIT_MS },
      signal,
    });
    setState(page.state);
    if (page.gap) setGap(true);
    return { items: page.items, next: page.next_after, over: false };
  });
  useEffect(() => place.current?.scrollTo(0, place.current.scrollHeight), [followed.items.length]);
  const send = async (event: Event) => {
    event.preventDefault();
    if (!text.trim()) return;
    const path = "/v1/agents/{agent}/sessions/{session}/messages";
    const sent = await attempt(() => call("post", path, { in: within, json: { text, key: crypto.randomUUID() } }));
    if (sent) type("");
  };
  const cancel = () => attempt(() => call("post", "/v1/agents/{agent}/sessions/{session}/cancel", { in: within }));
  return (
    <section class="card output" aria-label="Conversation">
      <header>
        <span class="meta">
          <State of={state} />
          <small>{session.thread ?? session.id}</small>
        </span>
        {state !== "idle" && state !== "failed" && (
          <button class="small danger" onClick={() => void cancel()}>
            Cancel
          </button>
        )}
      </header>
      {followed.error && <div class="banner">{followed.error}</div>}
      <div ref={place} class="talk" role="log" aria-label="What was said" tabIndex={0}>
        {gap && <p class="muted">The beginning is not kept any more.</p>}
        {followed.items.length === 0 && <p class="muted">Nothing was said yet.</p>}
        {said(followed.items).map((one) => (
          <Said key={one.number} one={one} within={within} />
        ))}
      </div>
      <form class="say" onSubmit={(event) => void send(event)}>
        <textarea
          aria-label="Message"
          placeholder="Say something: it wakes the agent's sandbox if that sleeps"
          rows={2}
          value={text}
          onInput={(event) => type(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Enter" && !event.shiftKey && void send(event)}
        />
        <button class="first" disabled={!text.trim()}>
          Send
        </button>
      </form>
    </section>
  );
}

type Piece = Pick<AgentEvent, "number" | "kind" | "data" | "at_ms"> & { answered?: string };

/** Prepares events for reading: joins the pieces of a text, and gives each approval its answer. */
function said(events: AgentEvent[]): Piece[] {
  const pieces: Piece[] = [];
  for (const event of events) {
    const last = pieces.at(-1);
    if (event.kind === "state") continue;
    if (event.kind === "answer") {
      const asked = pieces.find((one) => one.kind === "approval" && one.data.id === event.data.id);
      if (asked) asked.answered = word(event.data.option);
      continue;
    }
    if (event.kind === "done" && event.data.reason === "completed") continue;
    if (last && last.kind === event.kind && ["text", "thought", "log"].includes(event.kind)) {
      last.data = { text: word(last.data.text) + word(event.data.text) };
    } else {
      pieces.push({ ...event });
    }
  }
  return pieces;
}

const word = (value: unknown): string => (typeof value === "string" ? value : "");

function Said({ one, within }: { one: Piece; within: { agent: string; session: string } }) {
  const { kind, data } = one;
  const text = word(data.text);
  switch (kind) {
    case "message":
      return <Line one={one} who={data.schedule ? "by schedule" : "you"} mine>{text}</Line>;
    case "text":
      return <Line one={one} who="agent">{text}</Line>;
    case "error":
      return <Line one={one} who={word(data.code) || "error"} bad>{text}</Line>;
    case "done":
      return <Line one={one} who="done">{word(data.reason)}</Line>;
    case "approval":
      return <Approval one={one} within={within} />;
    default:
      return (
        <details class="aside">
          <summary>
            {kind} {word(data.title) || word(data.name)}
          </summary>
          <pre>{text || JSON.stringify(data, null, 2)}</pre>
        </details>
      );
  }
}

function Line(props: { one: Piece; who: string; mine?: boolean; bad?: boolean; children: ComponentChildren }) {
  return (
    <div class={`said${props.mine ? " mine" : ""}${props.bad ? " bad" : ""}`}>
      <small title={time(props.one.at_ms)}>
        {props.who} · {clock(props.one.at_ms).slice(0, 8)}
      </small>
      <p class="wrap">{props.children}</p>
    </div>
  );
}

/** A question of the agent, with a button for each answer. */
function Approval({ one, within }: { one: Piece; within: { agent: string; session: string } }) {
  const options = Array.isArray(one.data.options) ? (one.data.options as { id: string; name?: string }[]) : [];
  const answer = (option: string) =>
    attempt(() =>
      call("post", "/v1/agents/{agent}/sessions/{session}/approvals/{approval}", {
        in: { ...within, approval: word(one.data.id) },
        json: { option },
      }),
    );
  return (
    <div class="said ask">
      <small title={time(one.at_ms)}>the agent asks</small>
      <p class="wrap">{word(one.data.title)}</p>
      {one.answered ? (
        <p class="muted">answered: {options.find((option) => option.id === one.answered)?.name ?? one.answered}</p>
      ) : (
        <div class="actions">
          {options.map((option) => (
            <button key={option.id} class="small" onClick={() => void answer(option.id)}>
              {option.name ?? option.id}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
