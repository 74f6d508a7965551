/** Templates, images, snapshots, secrets and volumes. */

import { InvalidRequest, ServerError, fromBody } from "./errors.js";
import { Pager } from "./pager.js";
import { WAIT_MS, newKey, segment } from "./transport.js";
import type { Call, Query, Transport } from "./transport.js";
import type {
  Build, BuildEvent, BuildLogPage, CreateBuild, CreateTemplate, FileEntry, FileList, Image, ImageList, ImageProgress,
  Secret, SecretList, SecretScope, SecretUse, SecretUseList, SetTemplateTag, Snapshot, Step, Template, TemplateList,
  TemplateTag, TemplateTagList, Volume, VolumeList,
} from "./types.js";
import { bytes } from "./units.js";
import type { Size } from "./units.js";

class Part {
  protected readonly transport: Transport;

  constructor(transport: Transport) {
    this.transport = transport;
  }

  protected read<T>(path: string, query: Query = {}): Promise<T> {
    return this.transport.json<T>({ method: "GET", path, query });
  }

  protected make<T>(path: string, body: object): Promise<T> {
    return this.transport.json<T>({ method: "POST", path, body, key: newKey() });
  }

  protected async remove(path: string, query: Query = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path, query });
  }
}

export interface BuildOptions {
  /** The Dockerfile's text. */
  dockerfile?: string;
  /** A list of steps, instead of a Dockerfile. */
  steps?: readonly Step[];
  /** A tar archive of the files that the build copies. */
  context?: Uint8Array | Blob;
  onLog?: (event: BuildEvent) => void;
  /** Further fields of the API's request. */
  more?: CreateBuild;
}

/** The server's templates: named, versioned recipes for sandboxes. */
export class Templates extends Part {
  /** Lists all templates, each in its newest version. */
  async list(): Promise<Template[]> {
    return (await this.read<TemplateList>("/v1/templates")).items;
  }

  get(name: string, version?: number): Promise<Template> {
    return this.read<Template>(`/v1/templates/${segment(name)}`, { version });
  }

  /** Makes a template, or a new version of one, from an image or a snapshot. The server builds nothing. */
  create(spec: CreateTemplate): Promise<Template> {
    return this.make<Template>("/v1/templates", spec);
  }

  /** Deletes one version of a template, or all versions. */
  delete(name: string, version?: number): Promise<void> {
    return this.remove(`/v1/templates/${segment(name)}`, { version });
  }

  /** Lists the tags of a template. A tag names a version: `NAME:TAG` can be used wherever `NAME:VERSION` can. */
  async tags(name: string): Promise<TemplateTag[]> {
    return (await this.read<TemplateTagList>(`/v1/templates/${segment(name)}/tags`)).items;
  }

  /** Makes a tag point to a version, or to the newest when `version` is absent. An existing tag is moved. */
  tag(name: string, tag: string, version?: number): Promise<TemplateTag> {
    const path = `/v1/templates/${segment(name)}/tags/${segment(tag)}`;
    const body: SetTemplateTag = version === undefined ? {} : { version };
    return this.transport.json<TemplateTag>({ method: "PUT", path, body });
  }

  /** Removes a tag. The version to which it pointed stays. */
  untag(name: string, tag: string): Promise<void> {
    return this.remove(`/v1/templates/${segment(name)}/tags/${segment(tag)}`);
  }

  /** Builds a template. Throws {@link ServerError} with the step that failed and the end of its output. */
  async build(name: string, options: BuildOptions = {}): Promise<Template> {
    const { dockerfile, steps } = options;
    const body = { ...options.more, name, ...(dockerfile === undefined ? {} : { dockerfile }), ...(steps && { steps: [...steps] }) };
    const build = await this.make<Build>("/v1/builds", body);
    const path = `/v1/builds/${segment(build.id)}`;
    if (build.needs_context) {
      if (!options.context) {
        await this.transport.text({ method: "POST", path: `${path}/cancel`, again: "always" });
        throw new InvalidRequest("the build copies files", { code: "invalid_argument", hint: "pass context" });
      }
      const content = options.context as BodyInit;
      await this.transport.text({ method: "PUT", path: `${path}/context`, content, contentType: "application/x-tar" });
    }
    await this.#follow(path, options.onLog);
    const { template, failure, state } = await this.read<Build>(path);
    if (!template) {
      const said = failure?.output ? `: ${failure.output.slice(-1000)}` : "";
      throw new ServerError((failure?.message ?? `the build is ${state}`) + said, {
        code: failure?.code ?? `build_${state}`,
        hint: failure?.hint,
      });
    }
    const [made = "", version] = template.split(":");
    return this.get(made, version === undefined ? undefined : Number(version));
  }

  async #follow(path: string, onLog: BuildOptions["onLog"]): Promise<void> {
    let offset = 0;
    for (;;) {
      const call: Call = { method: "GET", path: `${path}/log`, query: { offset, wait_ms: WAIT_MS }, waitMs: WAIT_MS };
      const page = await this.transport.json<BuildLogPage>(call);
      for (const event of page.entries) onLog?.(event);
      if (page.over && page.next_offset === offset) return;
      offset = page.next_offset;
    }
  }
}

export interface PullOptions {
  username?: string;
  password?: string;
  onProgress?: (event: ImageProgress) => void;
  signal?: AbortSignal;
}

/** Fetching an image may take long: one hour is added to the client's timeout. */
const PATIENCE_MS = 3_600_000;

/** The images that the server has. */
export class Images extends Part {
  async list(): Promise<Image[]> {
    return (await this.read<ImageList>("/v1/images")).items;
  }

  /** Fetches an image from a registry, such as `docker.io/library/node:24-slim`. */
  pull(reference: string, options: PullOptions = {}): Promise<Image> {
    const { username, password = "" } = options;
    const body = { reference, ...(username === undefined ? {} : { credentials: { username, password } }) };
    const call = { method: "POST", path: "/v1/images/pull", body, signal: options.signal ?? null };
    return this.#done(call, options.onProgress);
  }

  /** Makes an image from the tar archive of a root file system. */
  importTar(archive: Uint8Array | Blob | ReadableStream<Uint8Array>, name: string): Promise<Image> {
    return this.#done({ method: "POST", path: "/v1/images/import", query: { name }, content: archive as BodyInit, contentType: "application/x-tar" });
  }

  /** Loads images from an archive that `docker save` wrote. Returns the last image of the archive. */
  load(archive: Uint8Array | Blob | ReadableStream<Uint8Array>, name?: string): Promise<Image> {
    return this.#done({ method: "POST", path: "/v1/images/load", query: { name }, content: archive as BodyInit, contentType: "application/x-tar" });
  }

  /** Removes a name of an image. Removing the last name removes the image. */
  delete(name: string): Promise<void> {
    // The name of an image may have slashes, as in `docker.io/library/node`. They stay slashes in this path.
    return this.remove(`/v1/images/${name.split("/").map(segment).join("/")}`);
  }

  #done(call: Call, onProgress?: PullOptions["onProgress"]): Promise<Image> {
    return this.transport.send({ ...call, waitMs: PATIENCE_MS }, async (response) => {
      let image: Image | undefined;
      for await (const line of lines(response)) {
        const event = JSON.parse(line) as ImageProgress;
        if (event.type === "error") throw fromBody(event.error, true);
        if (event.type === "done") image = event.image;
        onProgress?.(event);
      }
      if (!image) throw new ServerError("the server's answer ended early", { code: "bad_answer", mayHaveRun: true });
      return image;
    });
  }
}

async function* lines(response: Response): AsyncGenerator<string> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const parts = (rest + (value ?? "")).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part.trim() !== "") yield part;
    if (done) {
      if (rest.trim() !== "") yield rest;
      return;
    }
  }
}

/** The server's snapshots. A snapshot is a sandbox's disk at one moment, from which sandboxes can be made. */
export class Snapshots extends Part {
  list(options: { sandbox?: string; name?: string } = {}): Pager<Snapshot> {
    return new Pager(this.transport, "/v1/snapshots", { ...options }, (one) => one as Snapshot);
  }

  /** Gets one snapshot by its id or a tag. */
  get(snapshot: string): Promise<Snapshot> {
    return this.read<Snapshot>(`/v1/snapshots/${segment(snapshot)}`);
  }

  /** Gives a snapshot one more tag. A tag that points to another snapshot is moved to this one. */
  tag(snapshot: string, tag: string): Promise<Snapshot> {
    const path = `/v1/snapshots/${segment(snapshot)}/tags`;
    return this.transport.json<Snapshot>({ method: "POST", path, body: { tag }, again: "always" });
  }

  /** Given a tag, removes only the tag. Given an id, deletes the snapshot with all its tags. */
  delete(snapshot: string): Promise<void> {
    return this.remove(`/v1/snapshots/${segment(snapshot)}`);
  }
}

/** The server's secrets: values that sandboxes use and never see. */
export class Secrets extends Part {
  /** Lists all secrets, without their values. The server never returns a value. */
  async list(): Promise<Secret[]> {
    return (await this.read<SecretList>("/v1/secrets")).items;
  }

  get(name: string): Promise<Secret> {
    return this.read<Secret>(`/v1/secrets/${segment(name)}`);
  }

  /** Makes a secret, or changes a secret's value, scope or note. `hosts` are the hosts that may receive it. */
  put(name: string, value?: string, options: { hosts?: readonly string[]; note?: string; scope?: SecretScope } = {}): Promise<Secret> {
    const { hosts, note } = options;
    const scope = hosts ? { ...options.scope, hosts: [...hosts] } : options.scope;
    return this.transport.json<Secret>({ method: "PUT", path: `/v1/secrets/${segment(name)}`, body: { value, scope, note } });
  }

  delete(name: string): Promise<void> {
    return this.remove(`/v1/secrets/${segment(name)}`);
  }

  /** Lists the requests into which the gateway put a secret's value, newest first. */
  async uses(options: { secret?: string; sandbox?: string } = {}): Promise<SecretUse[]> {
    return (await this.read<SecretUseList>("/v1/secret-uses", { ...options })).items;
  }
}

/** The server's volumes: storage that outlives sandboxes, and that several sandboxes can share. */
export class Volumes extends Part {
  async list(): Promise<Volume[]> {
    return (await this.read<VolumeList>("/v1/volumes")).items;
  }

  get(volume: string): Promise<Volume> {
    return this.read<Volume>(`/v1/volumes/${segment(volume)}`);
  }

  /** Makes a volume: empty, or a copy of the volume `copyOf`. */
  create(name: string, size?: Size, options: { copyOf?: string; readOnly?: boolean } = {}): Promise<Volume> {
    return this.make<Volume>("/v1/volumes", {
      name, size_bytes: size === undefined ? undefined : bytes(size), from: options.copyOf, read_only: options.readOnly ?? false,
    });
  }

  delete(volume: string): Promise<void> {
    return this.remove(`/v1/volumes/${segment(volume)}`);
  }

  readBytes(volume: string, path: string): Promise<Uint8Array> {
    const call = { method: "GET", path: `/v1/volumes/${segment(volume)}/files`, query: { path } };
    return this.transport.send(call, async (response) => new Uint8Array(await response.arrayBuffer()));
  }

  async write(volume: string, path: string, data: string | Uint8Array): Promise<void> {
    await this.transport.text({
      method: "PUT", path: `/v1/volumes/${segment(volume)}/files`, query: { path, parents: true },
      content: data as BodyInit, contentType: "application/octet-stream",
    });
  }

  async listFiles(volume: string, path = "/"): Promise<FileEntry[]> {
    return (await this.read<FileList>(`/v1/volumes/${segment(volume)}/files/list`, { path })).items;
  }
}
