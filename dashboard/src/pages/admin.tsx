// Pages about the server: keys, secrets, usage, nodes, and what the host enforces.

import { useState } from "preact/hooks";
import { call, every, type Doctor, type Key, type Node, type NodeList, type PutSecret, type Secret, type SecretList, type UsageItem, type UsageList } from "../api";
import { age, bytes, duration, time } from "../format";
import { now } from "../live";
import { attempt, Copy, Dialog, Field, State, Table } from "../ui/parts";
import { Age, Choice, Page } from "./page";

export function KeysPage() {
  return (
    <Page name="Keys" read={() => every<Key>("/v1/keys")}>
      {(items) => (
        <Table
          label="Keys"
          head={["Name", "Id", "Scope", "Last used", "Ends", "Age"]}
          rows={items}
          key={(one) => one.id}
          empty="No keys."
          cells={(one) => [
            <>
              <strong>{one.name}</strong>
              {one.person && <small> person: {one.person.subject}</small>}
            </>,
            <Copy text={one.id} />,
            one.person && !one.person.allowed ? "none" : one.scope,
            one.last_used_at_ms ? `${age(one.last_used_at_ms, now.value)} ago` : "never",
            one.expires_at_ms ? time(one.expires_at_ms) : "never",
            <Age since={one.created_at_ms} />,
          ]}
        />
      )}
    </Page>
  );
}

export function DoctorPage() {
  return (
    <Page name="Doctor" once read={() => call<Doctor>("get", "/v1/doctor")}>
      {(doctor) => (
        <Table
          label="What this host enforces"
          head={["Check", "Status", "Detail"]}
          rows={doctor.checks}
          key={(one) => one.name}
          empty="No checks."
          cells={(one) => [
            <strong>{one.name}</strong>,
            <span class={`state is-${one.status}`}>
              <i aria-hidden="true" />
              {one.status}
            </span>,
            <>
              {one.detail}
              {one.hint && <small class="reason">{one.hint}</small>}
            </>,
          ]}
        />
      )}
    </Page>
  );
}

export function SecretsPage() {
  const [setting, set] = useState<Secret | "new">();
  return (
    <Page
      name="Secrets"
      read={(signal) => call<SecretList>("get", "/v1/secrets", { signal })}
      above={(again) => (
        <>
          <button onClick={() => set("new")}>New secret</button>
          {setting && <SetSecret of={setting === "new" ? undefined : setting} onClose={() => (set(undefined), again())} />}
        </>
      )}
    >
      {({ items }, again) => (
        <>
          <p class="muted">Values go in and never come out: the gateway puts them into requests to these hosts.</p>
          <Table
            label="Secrets"
            head={["Name", "Goes to", "Used by", "Versions", "Note", "Age", ""]}
            rows={items}
            key={(one) => one.name}
            empty="No secrets. A sandbox that is given one sees a placeholder, and the value is put in on the way."
            cells={(one) => [
              <strong>{one.name}</strong>,
              one.scope.hosts.join(", "),
              users(one),
              one.versions.length,
              one.note,
              <Age since={one.created_at_ms} />,
              <div class="actions">
                <button class="small" onClick={() => set(one)}>
                  New value
                </button>
                <button class="small danger" onClick={() => void remove(one.name).then(again)}>
                  Delete
                </button>
              </div>,
            ]}
          />
        </>
      )}
    </Page>
  );
}

function users({ scope }: Secret): string {
  const all = [...(scope.templates ?? []), ...(scope.sandboxes ?? []), ...(scope.keys ?? [])];
  return all.length ? all.join(", ") : "whoever names it";
}

async function remove(name: string): Promise<void> {
  if (!confirm(`Delete the secret ${name}? Rules that name it fail from then on.`)) return;
  await attempt(() => call("delete", "/v1/secrets/{name}", { in: { name } }), "Deleted");
}

function SetSecret({ of, onClose }: { of?: Secret; onClose: () => void }) {
  const [name, setName] = useState(of?.name ?? "");
  const [value, setValue] = useState("");
  const [hosts, setHosts] = useState("");
  const [note, setNote] = useState("");
  const words = hosts.split(/[\s,]+/).filter(Boolean);
  const keep = async (event: Event) => {
    event.preventDefault();
    const json: PutSecret = of ? { value } : { value, scope: { hosts: words }, note };
    const kept = await attempt(() => call("put", "/v1/secrets/{name}", { in: { name }, json }), "Stored");
    if (kept) onClose();
  };
  return (
    <Dialog title={of ? `New value of ${of.name}` : "New secret"} onClose={onClose}>
      <form onSubmit={(event) => void keep(event)}>
        <h2>{of ? `New value of ${of.name}` : "New secret"}</h2>
        <div class="fields">
          {!of && (
            <Field label="Name" hint="As the variable is called: OPENAI_API_KEY">
              <input required value={name} autocomplete="off" onInput={(event) => setName(event.currentTarget.value)} />
            </Field>
          )}
          <Field label="Value" hint="It is not shown again">
            <input required type="password" autocomplete="new-password" value={value} onInput={(event) => setValue(event.currentTarget.value)} />
          </Field>
          {!of && (
            <>
              <Field label="Hosts" hint="Where it may go: api.openai.com">
                <input required value={hosts} autocomplete="off" onInput={(event) => setHosts(event.currentTarget.value)} />
              </Field>
              <Field label="Note">
                <input value={note} onInput={(event) => setNote(event.currentTarget.value)} />
              </Field>
            </>
          )}
        </div>
        <footer>
          <button type="button" onClick={onClose}>
            Close
          </button>
          <button class="first" disabled={!value || !name || (!of && !words.length)}>
            Store
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

const PERIODS = { hour: 3_600_000, day: 86_400_000, month: 30 * 86_400_000, all: 0 } as const;
const GROUPS = { sandbox: "by sandbox", key: "by key", hour: "by hour" } as const;

export function UsagePage() {
  const [period, setPeriod] = useState<keyof typeof PERIODS>("day");
  const [group, setGroup] = useState<keyof typeof GROUPS>("sandbox");
  const from_ms = () => (PERIODS[period] ? Date.now() - PERIODS[period] : undefined);
  return (
    <Page
      name="Usage"
      of={`${period} ${group}`}
      read={async (signal) => {
        const ask = (by: string) => call<UsageList>("get", "/v1/usage", { query: { group: by, from_ms: from_ms() }, signal });
        const [total, parts, keys] = await Promise.all([ask("total"), ask(group), group === "key" ? every<Key>("/v1/keys").catch(() => []) : []]);
        return { total: total.items[0], parts: parts.items, names: new Map(keys.map((key) => [key.id, key.name])) };
      }}
      above={() => (
        <>
          <Choice label="Period" all={Object.keys(PERIODS)} chosen={period} choose={(name) => setPeriod(name as keyof typeof PERIODS)} />
          <Choice label="Group" all={Object.keys(GROUPS)} chosen={group} choose={(name) => setGroup(name as keyof typeof GROUPS)} />
        </>
      )}
    >
      {({ total, parts, names }) => (
        <>
          {total && (
            <div class="metrics">
              <Figure name="Processor" value={duration(total.cpu_us / 1000)} />
              <Figure name="Memory" value={memory(total)} />
              <Figure name="Ran" value={duration(total.running_ms)} />
              <Figure name="Left the sandboxes" value={bytes(total.egress_bytes)} />
            </div>
          )}
          <Table
            label={`Usage ${GROUPS[group]}`}
            head={[{ sandbox: "Sandbox", key: "Key", hour: "Hour" }[group], "Processor", "Memory", "Ran", "Left", "Requests", "Commands"]}
            rows={[...parts].sort((a, b) => (group === "hour" ? (b.hour_at_ms ?? 0) - (a.hour_at_ms ?? 0) : b.cpu_us - a.cpu_us)).slice(0, ROWS_MAX)}
            empty="Nothing was used then."
            cells={(one) => [
              <strong>
                {one.sandbox ? <a href={`/sandboxes/${one.sandbox}`}>{one.sandbox}</a> : one.key ? (names.get(one.key) ?? one.key) : one.hour_at_ms ? time(one.hour_at_ms) : "the server"}
              </strong>,
              duration(one.cpu_us / 1000),
              memory(one),
              duration(one.running_ms),
              bytes(one.egress_bytes),
              one.requests.toLocaleString(),
              one.execs.toLocaleString(),
            ]}
          />
          {parts.length > ROWS_MAX && <p class="muted">The first {ROWS_MAX} of {parts.length}; `atoll usage` lists all.</p>}
        </>
      )}
    </Page>
  );
}

/** Rows of usage that the page shows. */
const ROWS_MAX = 200;

/** Memory over time, in byte-hours, the unit in which memory is sold. */
function memory(of: UsageItem): string {
  return `${bytes(of.memory_byte_seconds / 3600)} h`;
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div class="card metric">
      <h2>{name}</h2>
      <p class="figure">{value}</p>
    </div>
  );
}

export function NodesPage() {
  return (
    <Page name="Nodes" read={(signal) => call<NodeList>("get", "/v1/nodes", { signal })}>
      {({ items }, again) => (
        <Table
          label="Nodes"
          head={["Name", "State", "Sandboxes", "Memory free", "Levels", "Version", "Seen", ""]}
          rows={items}
          key={(one) => one.id}
          empty="This server is alone. Servers that share a PostgreSQL database are nodes of a cluster."
          cells={(one) => [
            <>
              <strong>{one.name}</strong>
              {one.is_this && <small class="reason">this one</small>}
            </>,
            <State of={one.state} />,
            `${one.sandboxes} of ${one.sandboxes_max}`,
            one.memory_available_bytes ? bytes(one.memory_available_bytes) : "unknown",
            one.levels.join(", "),
            one.version,
            `${age(one.seen_ms, now.value)} ago`,
            one.state !== "dead" && (
              <button class="small" onClick={() => void drain(one).then(again)}>
                {one.state === "draining" ? "Take new ones" : "Take no new ones"}
              </button>
            ),
          ]}
        />
      )}
    </Page>
  );
}

async function drain(node: Node): Promise<void> {
  await attempt(() => call("patch", "/v1/nodes/{node}", { in: { node: node.id }, json: { draining: node.state !== "draining" } }));
}
