// A sandbox's network: its policy, refusals, connections and ports.

import { useState } from "preact/hooks";
import { call, type AccessCreated, type DenialView, type EgressPolicy, type NetworkView, type PortList, type Rule, type Sandbox } from "../api";
import { age, bytes } from "../format";
import { now, patch } from "../live";
import { attempt, Copy, Table, Waiting } from "../ui/parts";
import { usePoll } from "../ui/poll";

const EVERY_MS = 3_000;
const LINK_MS = 60 * 60 * 1000;

export function Network({ sandbox }: { sandbox: Sandbox }) {
  const within = { sandbox: sandbox.id };
  const network = usePoll(`network ${sandbox.id}`, EVERY_MS, (signal) =>
    call<NetworkView>("get", "/v1/sandboxes/{sandbox}/network", { in: within, signal }),
  );
  const view = network.value;
  if (view === undefined) return <Waiting error={network.error} />;
  return (
    <>
      <div class="columns">
        <Policy of={sandbox} />
        <Ports of={sandbox} />
      </div>
      <section class="card">
        <h2>Refused</h2>
        <Table
          label="Refused"
          head={["What", "Why", "Times", "Last", ""]}
          rows={view.denials}
          key={(one) => `${one.stage} ${one.what}`}
          empty="Nothing was refused."
          cells={(one) => [
            <code>{one.what}</code>,
            one.why,
            one.count,
            `${age(one.last_at_ms, now.value)} ago`,
            allowable(one) && (
              <button class="small" onClick={() => void allow(sandbox, one)}>
                Allow this<span class="unseen">: {one.what}</span>
              </button>
            ),
          ]}
        />
      </section>
      <section class="card">
        <h2>
          Connections <small>{bytes(view.transferred.sent_bytes)} sent, {bytes(view.transferred.received_bytes)} received</small>
        </h2>
        <Table
          label="Open connections"
          head={["To", "Protocol", "Sent", "Received", "Open for"]}
          rows={view.connections}
          key={(one) => String(one.number)}
          empty="No connection is open."
          cells={(one) => [
            <code>{`${one.name ?? one.address}:${one.port}`}</code>,
            one.protocol,
            bytes(one.sent_bytes),
            bytes(one.received_bytes),
            age(one.opened_at_ms, now.value),
          ]}
        />
        {view.totals.length > 0 && (
          <Table
            label="By destination"
            head={["Destination", "Connections", "Sent", "Received"]}
            rows={view.totals}
            key={(one) => one.destination}
            empty=""
            cells={(one) => [<code>{one.destination}</code>, one.connections, bytes(one.sent_bytes), bytes(one.received_bytes)]}
          />
        )}
      </section>
    </>
  );
}

/** Whether a rule can allow what was refused. Only names can be allowed so; limits and requests need a decision. */
function allowable(denial: DenialView): boolean {
  return (denial.stage === "dns" || denial.stage === "connect") && /^[a-z0-9.-]+$/i.test(denial.what);
}

/** Adds a rule that allows only this name. A network that was `off` becomes `rules`. */
async function allow(sandbox: Sandbox, denial: DenialView): Promise<void> {
  const policy: EgressPolicy = {
    ...sandbox.egress,
    internet: sandbox.egress?.internet === "on" ? "on" : "rules",
    // The first rule that matches decides, so this one comes before the rule that refused the name.
    rules: [{ action: "allow", domain: denial.what } as Rule, ...(sandbox.egress?.rules ?? [])],
  };
  const after = await attempt(
    () => call<Sandbox>("patch", "/v1/sandboxes/{sandbox}", { in: { sandbox: sandbox.id }, json: { egress: policy } }),
    `${denial.what} is allowed`,
  );
  if (after) patch(sandbox.id, after);
}

function Policy({ of }: { of: Sandbox }) {
  const rules = of.egress?.rules ?? [];
  const internet = of.egress?.internet ?? "off";
  const meaning = { off: "Nothing outside is reached.", on: "Everything public is reached, but for what a rule denies.", rules: "Only what a rule allows is reached." }[internet];
  return (
    <section class="card">
      <h2>Policy</h2>
      <p>
        Internet: <strong>{internet}</strong>. {meaning}
      </p>
      <Table
        label="Rules"
        head={["", "To", "Ports", "Requests"]}
        rows={rules}
        empty="No rules."
        cells={(one) => [
          <strong>{one.action}</strong>,
          <code>{one.domain ?? one.cidr ?? "*"}</code>,
          one.ports?.join(", ") || "all",
          [one.methods?.join(" "), one.path].filter(Boolean).join(" ") || "all",
        ]}
      />
    </section>
  );
}

function Ports({ of }: { of: Sandbox }) {
  const within = { sandbox: of.id };
  const [links, keep] = useState<Record<number, string>>({});
  const runs = of.state === "running";
  // A request would resume a paused sandbox.
  const ports = usePoll(`ports ${of.id} ${runs}`, runs ? EVERY_MS : null, async (signal) =>
    runs ? await call<PortList>("get", "/v1/sandboxes/{sandbox}/ports", { in: within, signal }) : { items: [] },
  );
  const link = async (port: number) => {
    const made = await attempt(() =>
      call<AccessCreated>("post", "/v1/sandboxes/{sandbox}/access", { in: within, json: { port, ttl_ms: LINK_MS, name: "from the dashboard" } }),
    );
    if (made) keep((old) => ({ ...old, [port]: made.link }));
  };
  return (
    <section class="card">
      <h2>Ports</h2>
      {ports.value === undefined ? (
        <Waiting error={ports.error} />
      ) : (
        <Table
          label="Ports"
          head={["Port", "Address", ""]}
          rows={ports.value.items}
          key={(one) => String(one.port)}
          empty={runs ? "Nothing listens in it." : "It does not run."}
          cells={(one) => [
            <strong>{one.port}</strong>,
            links[one.port] ? (
              <>
                <a href={links[one.port]} target="_blank" rel="noopener noreferrer">
                  Open
                </a>{" "}
                <Copy text={links[one.port] ?? ""} label="Copy the link" />
              </>
            ) : (
              <code class="wrap">{one.url}</code>
            ),
            one.public ? (
              "public"
            ) : (
              <button class="small" onClick={() => void link(one.port)}>
                Link for an hour<span class="unseen"> to port {one.port}</span>
              </button>
            ),
          ]}
        />
      )}
    </section>
  );
}
