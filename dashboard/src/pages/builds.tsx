// Builds of templates: the list, and the log of each build while it is written.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Build, type BuildEvent, type BuildList, type BuildLogPage } from "../api";
import { age, duration, time } from "../format";
import { now } from "../live";
import { route } from "../router";
import { plain } from "../sandbox/output";
import { attempt, Copy, State, Table, Waiting } from "../ui/parts";
import { useFollow } from "../ui/follow";
import { usePoll } from "../ui/poll";

const EVERY_MS = 3_000;
const WAIT_MS = 25_000;
/** Pieces of a log that the page holds. */
const EVENTS_MAX = 20_000;

const ENDED = ["succeeded", "failed", "cancelled"];

export function BuildsPage() {
  const [, id] = route.value;
  return id ? <OneBuild key={id} id={id} /> : <AllBuilds />;
}

function took(build: Build): string {
  if (!build.started_at_ms) return "";
  return duration((build.ended_at_ms ?? now.value) - build.started_at_ms);
}

function AllBuilds() {
  const polled = usePoll("builds", EVERY_MS, (signal) => call<BuildList>("get", "/v1/builds", { query: { limit: 100 }, signal }));
  return (
    <>
      <div class="top">
        <h1>Builds</h1>
      </div>
      {polled.value === undefined ? (
        <Waiting error={polled.error} />
      ) : (
        <Table
          label="Builds"
          head={["Of", "State", "Made", "Took", "Age"]}
          rows={polled.value.items}
          key={(one) => one.id}
          empty="No builds. `atoll template build` makes a template of a Dockerfile."
          cells={(one) => [
            <a href={`/builds/${one.id}`}>
              <strong>{one.name}</strong>
            </a>,
            <>
              <State of={one.state} />
              {one.failure && <small class="reason">{one.failure.message}</small>}
            </>,
            one.template ?? "nothing yet",
            took(one),
            <span title={time(one.created_at_ms)}>{age(one.created_at_ms, now.value)}</span>,
          ]}
        />
      )}
    </>
  );
}

function OneBuild({ id }: { id: string }) {
  const [state, setState] = useState<string>();
  const place = useRef<HTMLDivElement>(null);
  const build = usePoll(`build ${id} ${state}`, null, (signal) => call<Build>("get", "/v1/builds/{build}", { in: { build: id }, signal }));
  const log = useFollow<BuildEvent>(id, EVENTS_MAX, async (offset, signal) => {
    const page = await call<BuildLogPage>("get", "/v1/builds/{build}/log", { in: { build: id }, query: { offset, wait_ms: WAIT_MS }, signal });
    setState(page.state);
    return { items: page.entries, next: page.next_offset, over: page.over };
  });
  useEffect(() => place.current?.scrollTo(0, place.current.scrollHeight), [log.items.length]);
  const shown = state ?? build.value?.state;
  if (shown === undefined && !build.value) return <Waiting error={build.error ?? log.error} />;
  return (
    <>
      <div class="top box">
        <div>
          <h1>{build.value?.name ?? id}</h1>
          <p class="under">
            {shown && <State of={shown} />}
            <Copy text={id} />
            {build.value && <small>{took(build.value)}</small>}
          </p>
        </div>
        {shown && !ENDED.includes(shown) && (
          <div class="actions">
            <button class="danger" onClick={() => void attempt(() => call("post", "/v1/builds/{build}/cancel", { in: { build: id } }), "Cancelled")}>
              Cancel
            </button>
          </div>
        )}
      </div>
      {log.error && <div class="banner">{log.error}</div>}
      <section class="card output" aria-label="Log">
        <div ref={place} class="talk" role="log" aria-label="Log of the build" tabIndex={0}>
          {log.items.length === 0 && <p class="muted">Nothing yet.</p>}
          {log.items.map((event, index) => (
            <Entry key={index} event={event} />
          ))}
        </div>
      </section>
    </>
  );
}

function Entry({ event }: { event: BuildEvent }) {
  switch (event.type) {
    case "note":
      return <p class="muted">{event.text}</p>;
    case "output":
      return <pre class={event.stream === "stderr" ? "said bad" : "said"}>{plain(event.text).replace(/\n$/, "")}</pre>;
    case "step":
      return event.state === "started" ? (
        <p class="step">
          <small>
            {event.step} of {event.total}
          </small>{" "}
          <code>{event.text}</code>
        </p>
      ) : (
        <p class={event.state === "failed" ? "muted bad" : "muted"}>
          {event.state === "cached" ? `${event.step} of ${event.total}: ${event.text}: from the cache` : event.state}
        </p>
      );
    case "end":
      return (
        <p class={event.failure ? "bad" : ""}>
          <strong>{event.failure ? event.failure.message : event.template ? `Made ${event.template}` : event.state}</strong>
          {event.failure?.hint && <small class="reason">{event.failure.hint}</small>}
        </p>
      );
  }
}
