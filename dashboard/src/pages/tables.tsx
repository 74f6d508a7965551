// What sandboxes are made of, as plain tables.

import { call, every, type Image, type Pool, type PoolList, type Snapshot, type Template, type Volume } from "../api";
import { bytes, duration } from "../format";
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

export function ImagesPage() {
  return (
    <Page name="Images" read={() => every<Image>("/v1/images")}>
      {(items) => (
        <Table
          label="Images"
          head={["Names", "Digest", "Size", "Layers", "Processor"]}
          rows={items}
          key={(one) => one.digest}
          empty="No images. Sandboxes start on this machine's own system until one is pulled: atoll image pull."
          cells={(one) => [
            <strong>{one.names.join(", ")}</strong>,
            <Copy text={one.digest} label={one.digest.slice(0, 19)} />,
            bytes(one.size_bytes),
            one.layers,
            one.architecture,
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

export function PoolsPage() {
  return (
    <Page name="Pools" read={() => call<PoolList>("get", "/v1/pools")}>
      {(pools) => (
        <>
          <p class="muted">
            Members take {bytes(pools.memory_bytes)} of at most {bytes(pools.memory_max_bytes)}.
          </p>
          <Table
            label="Pools"
            head={["Of", "Ready", "Being made", "Hits", "Making one takes", "Problem"]}
            rows={pools.items}
            empty="No pools: each sandbox is made when it is asked for."
            cells={(one) => [
              <strong>{one.template ?? one.image}</strong>,
              `${one.ready} of ${one.target}`,
              one.making,
              hitRatio(one),
              duration(one.make_ms),
              one.problem ?? "none",
            ]}
          />
        </>
      )}
    </Page>
  );
}

export function SnapshotsPage() {
  return (
    <Page name="Snapshots" read={() => every<Snapshot>("/v1/snapshots", { limit: 1000 })}>
      {(items) => (
        <Table
          label="Snapshots"
          head={["Snapshot", "Kind", "Of", "Image", "Stored", "Age"]}
          rows={items}
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
