/** The client. */

import { Images, Secrets, Snapshots, Templates, Volumes } from "./catalog.js";
import { Sandboxes } from "./sandbox.js";
import { Transport } from "./transport.js";
import type { AtollOptions, Query } from "./transport.js";
import type { ServerInfo, UsageGroup, UsageItem, UsageList } from "./types.js";

/** A client of one Atoll server. */
export class Atoll {
  readonly sandboxes: Sandboxes;
  readonly templates: Templates;
  readonly images: Images;
  readonly snapshots: Snapshots;
  readonly volumes: Volumes;
  readonly secrets: Secrets;
  readonly #transport: Transport;

  constructor(options: AtollOptions = {}) {
    const transport = new Transport(options);
    this.#transport = transport;
    this.sandboxes = new Sandboxes(transport);
    this.templates = new Templates(transport);
    this.images = new Images(transport);
    this.snapshots = new Snapshots(transport);
    this.volumes = new Volumes(transport);
    this.secrets = new Secrets(transport);
  }

  /** The server's URL. */
  get url(): string {
    return this.#transport.url;
  }

  /** Asks the server about itself. */
  info(): Promise<ServerInfo> {
    return this.#transport.json<ServerInfo>({ method: "GET", path: "/v1/info" });
  }

  /** Returns the resources that were used: in total, or grouped by sandbox, key or hour. */
  async usage(options: { group?: UsageGroup; fromMs?: number; toMs?: number } = {}): Promise<UsageItem[]> {
    const query = { group: options.group ?? "total", from_ms: options.fromMs, to_ms: options.toMs };
    return (await this.#transport.json<UsageList>({ method: "GET", path: "/v1/usage", query })).items;
  }

  /** Calls an operation of the API that has no method in this SDK. Sends JSON and returns the answer's JSON. */
  request<T>(method: string, path: string, body?: unknown, options: { query?: Query; idempotencyKey?: string } = {}): Promise<T> {
    return this.#transport.json<T>({ method, path, body, query: options.query, key: options.idempotencyKey });
  }
}
