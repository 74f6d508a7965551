// Tables of the resources of which sandboxes are made.

import { call, every, type Image, type Pool, type PoolList, type Template, type Volume } from "../api";
import { bytes, duration } from "../format";
import { Chart } from "../sandbox/chart";
import { Copy, Table } from "../ui/parts";
import { Age, Page } from "./page";

export function TemplatesPage() {
  return (
    <Page name="Templates" read={() => every<Template>("/v1/templates")}>
      {(items) => (
        <Table
          label="Templates"
          head={["Name", "Image", "Isolation", "Memory", "Pool", "Age"]}
          rows={items}
          key={(one) => one.id}
          empty="No templates. `atoll template` makes them from an image, a Dockerfile or a snapshot."
          cells={(one) => [
            <strong>{one.name}:{one.version}</strong>,
            one.image,
            one.isolation ?? "as asked",
            one.resources.memory_bytes ? bytes(one.resources.memory_bytes) : "default",
            one.pool ? `${one.pool.min} to ${one.pool.max}` : "none",
            <Age since={one.created_at_ms} />,
          ]}
        />
      )}
    </Page>
  );
}

/** The places of an image in words, for nodes that share images. */
const WHERE = { here: "this node only", shared: "every node", elsewhere: "not yet this node" };
const isShared = (images: Image[]) => images.some((one) => one.place);

export function ImagesPage() {
  return (
    <Page name="Images" read={() => every<Image>("/v1/images")}>
      {(items) => (
        <Table
          label="Images"
          head={["Names", "Digest", "Size", "Layers", "Processor", ...(isShared(items) ? ["Where"] : [])]}
          rows={items}
          key={(one) => one.digest}
          empty="No images. Sandboxes start on this machine's own system until one is pulled: atoll image pull."
          cells={(one) => [
            <strong>{one.names.join(", ")}</strong>,
            <Copy text={one.digest} label={one.digest.slice(0, 19)} />,
            bytes(one.size_bytes),
            one.layers,
            one.architecture,
            ...(isShared(items) ? [one.place ? WHERE[one.place] : "unknown"] : []),
          ]}
        />
      )}
    </Page>
  );
}

function hitRatio(pool: Pool): string {
  const asked = pool.hits + pool.misses;
  return asked ? `${Math.round((pool.hits / asked) * 100)} % of ${asked}` : "not asked yet";
}

/** Most points that the page keeps for each pool while the dashboard is open. The server keeps no history. */
const POINTS_MAX = 720;
const history = new Map<string, { times: number[]; ready: number[] }>();

function nameOf(pool: Pool): string {
  const of = pool.template ?? pool.image ?? "";
  return pool.origin === "demand" ? `${of}, by demand` : of;
}

function note(pools: PoolList): PoolList {
  for (const pool of pools.items) {
    const kept = history.get(pool.name) ?? { times: [], ready: [] };
    kept.times.push(Date.now() / 1000);
    kept.ready.push(pool.ready);
    if (kept.times.length > POINTS_MAX) (kept.times.shift(), kept.ready.shift());
    history.set(pool.name, kept);
  }
  return pools;
}

export function PoolsPage() {
  return (
    <Page name="Pools" read={(signal) => call<PoolList>("get", "/v1/pools", { signal }).then(note)}>
      {(pools) => (
        <>
          <p class="muted">
            Members take {bytes(pools.memory_bytes)} of at most {bytes(pools.memory_max_bytes)}.
          </p>
          <Table
            label="Pools"
            head={["Of", "Isolation", "Ready", "Being made", "Hits", "Making one takes", "Problem"]}
            rows={pools.items}
            key={(one) => one.name}
            empty="No pools: each sandbox is made when it is asked for."
            cells={(one) => [
              <strong>{nameOf(one)}</strong>,
              one.isolation ?? "unknown",
              `${one.ready} of ${one.target}`,
              one.making,
              hitRatio(one),
              duration(one.make_ms),
              one.problem ?? "none",
            ]}
          />
          <div class="metrics">
            {pools.items.map((one) => {
              const { times, ready } = history.get(one.name) ?? { times: [], ready: [] };
              return (
                <section class="card metric" key={one.name}>
                  <h2>{nameOf(one)}</h2>
                  <p class="figure">{one.ready} ready</p>
                  <Chart label={`Members of ${nameOf(one)}`} times={times} values={ready} top={one.max} write={(value) => value.toFixed(0)} />
                </section>
              );
            })}
          </div>
        </>
      )}
    </Page>
  );
}

export function VolumesPage() {
  return (
    <Page name="Volumes" read={() => every<Volume>("/v1/volumes")}>
      {(items) => (
        <Table
          label="Volumes"
          head={["Name", "State", "Size", "Used by", "Age"]}
          rows={items}
          key={(one) => one.id}
          empty="No volumes."
          cells={(one) => [
            <strong>{one.name}</strong>,
            one.read_only ? `${one.state}, read-only` : one.state,
            bytes(one.size_bytes),
            one.used_by.length ? one.used_by.map((id) => <a key={id} href={`/sandboxes/${id}`}>{id} </a>) : "nobody",
            <Age since={one.created_at_ms} />,
          ]}
        />
      )}
    </Page>
  );
}
