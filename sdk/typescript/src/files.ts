/** Files and ports of a sandbox. */

import { AtollError, Conflict, Unreachable } from "./errors.js";
import { joined } from "./results.js";
import { segment } from "./transport.js";
import type { Query, Transport } from "./transport.js";
import type {
  Access, AccessCreated, AccessList, FileEntry, FileList, FileWritten, FoundFile, FoundFiles, Port, PortList,
} from "./types.js";
import { milliseconds } from "./units.js";
import type { Duration } from "./units.js";

export interface WriteOptions {
  /** Permissions in octal, such as `0755`. */
  mode?: string;
  /** Name or id of the owner, optionally with `:group`. */
  user?: string;
  /** Whether to make missing directories above the path: true when absent. */
  parents?: boolean;
}

/** Files and directories of one sandbox. Paths are absolute. */
export class Files {
  readonly #transport: Transport;
  readonly #base: string;

  constructor(transport: Transport, base: string) {
    this.#transport = transport;
    this.#base = base;
  }

  #get<T>(what: string, query: Query): Promise<T> {
    return this.#transport.json<T>({ method: "GET", path: `${this.#base}/files${what}`, query });
  }

  /** Reads a file as text. Throws a `TypeError` when the file is not UTF-8. */
  async read(path: string): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true }).decode(await this.readBytes(path));
  }

  /** Reads a file as bytes. */
  readBytes(path: string): Promise<Uint8Array> {
    const call = { method: "GET", path: `${this.#base}/files`, query: { path } };
    return this.#transport.send(call, async (response) => new Uint8Array(await response.arrayBuffer()));
  }

  /**
   * Reads a file, one piece at a time. When the connection breaks, it reconnects and goes on at the same byte; throws
   * {@link Conflict} when the file was changed since.
   */
  async *stream(path: string, options: { signal?: AbortSignal } = {}): AsyncGenerator<Uint8Array> {
    let at = 0;
    let tag: string | null = null;
    let tries = this.#transport.maxRetries;
    for (;;) {
      const headers: Record<string, string> = at > 0 ? { range: `bytes=${at}-` } : {};
      const call = { method: "GET", path: `${this.#base}/files`, query: { path }, headers, signal: options.signal ?? null };
      const answer = await this.#transport.send(call, async (response) => response);
      if (at > 0 && (answer.status !== 206 || answer.headers.get("etag") !== tag)) {
        await answer.body?.cancel();
        throw new Conflict(`${path} was changed while it was read`, { code: "file_changed", retryable: true });
      }
      tag = answer.headers.get("etag");
      try {
        for await (const piece of pieces(answer)) {
          at += piece.length;
          tries = this.#transport.maxRetries;
          yield piece;
        }
        return;
      } catch (cause) {
        options.signal?.throwIfAborted();
        if (tries-- <= 0) {
          throw new Unreachable(`the connection broke off while ${path} was read`, { code: "unreachable", retryable: true, cause });
        }
      }
    }
  }

  /** Writes a file, whole or not at all, and returns its length. Only data that is not a stream can be sent again. */
  async write(path: string, data: string | Uint8Array | Blob | ReadableStream<Uint8Array>, options: WriteOptions = {}): Promise<number> {
    const query = { path, mode: options.mode, user: options.user, parents: options.parents ?? true };
    const written = await this.#transport.json<FileWritten>({
      method: "PUT",
      path: `${this.#base}/files`,
      query,
      content: data as BodyInit,
      contentType: "application/octet-stream",
      again: data instanceof ReadableStream ? "never" : "always",
    });
    return written.bytes;
  }

  /** Removes a file, a link or a directory, which must be empty unless `recursive`. */
  async remove(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    const query = { path, recursive: options.recursive ?? false };
    await this.#transport.text({ method: "DELETE", path: `${this.#base}/files`, query });
  }

  /** Describes the file, directory or link at a path. */
  stat(path: string, options: { follow?: boolean } = {}): Promise<FileEntry> {
    return this.#get<FileEntry>("/stat", { path, follow: options.follow ?? true });
  }

  /** Whether a file, directory or link exists at a path. */
  async exists(path: string): Promise<boolean> {
    try {
      await this.stat(path, { follow: false });
      return true;
    } catch (error) {
      if (error instanceof AtollError && ["file_not_found", "not_a_directory"].includes(error.code)) return false;
      throw error;
    }
  }

  /** Lists the entries below a directory, down to `depth` levels. 1 lists only its own entries. */
  async list(path: string, options: { depth?: number; limit?: number } = {}): Promise<FileEntry[]> {
    return (await this.#get<FileList>("/list", { path, depth: options.depth ?? 1, limit: options.limit })).items;
  }

  /** Finds files below a directory whose path matches a pattern such as `**\/*.py`. */
  async find(path: string, pattern: string, options: { limit?: number } = {}): Promise<FileEntry[]> {
    return (await this.#find({ path, pattern, ...options })).map((found) => found.file);
  }

  /** Finds lines that contain a text, in files below a directory. With `pattern`, only in files that match it. */
  grep(text: string, path: string, options: { pattern?: string; limit?: number } = {}): Promise<FoundFile[]> {
    return this.#find({ path, text, ...options });
  }

  async #find(body: object): Promise<FoundFile[]> {
    // This POST changes nothing, so it can always be sent again.
    const call = { method: "POST", path: `${this.#base}/files/find`, body, again: "always" as const };
    return (await this.#transport.json<FoundFiles>(call)).items;
  }

  /** Makes a directory. Unless `parents` is false, makes missing directories above it, and it may exist already. */
  async mkdir(path: string, options: WriteOptions = {}): Promise<void> {
    const parents = options.parents ?? true;
    const body = { path, mode: options.mode, user: options.user, parents };
    await this.#transport.text({ method: "POST", path: `${this.#base}/files/mkdir`, body, again: parents ? "always" : "never" });
  }

  /** Moves or renames a file or directory. */
  async move(from: string, to: string, options: { replace?: boolean } = {}): Promise<void> {
    const body = { from, to, no_replace: !(options.replace ?? true) };
    await this.#transport.text({ method: "POST", path: `${this.#base}/files/move`, body });
  }

  /** Changes the permissions (`mode`, in octal) or the owner of a file or directory. */
  async chmod(path: string, mode?: string, options: { user?: string } = {}): Promise<void> {
    const body = { path, mode, user: options.user };
    await this.#transport.text({ method: "POST", path: `${this.#base}/files/chmod`, body, again: "always" });
  }

  /** Reads a file or directory with everything below as a tar stream. The sandbox makes it, so do not trust it. */
  archive(path: string, options: { signal?: AbortSignal } = {}): Promise<ReadableStream<Uint8Array>> {
    const call = { method: "GET", path: `${this.#base}/archive`, query: { path }, signal: options.signal ?? null };
    return this.#transport.send(call, async (response) => response.body ?? new ReadableStream());
  }

  /** Unpacks a tar archive below a directory of the sandbox. Makes the directory when it is absent. */
  async unpack(path: string, archive: Uint8Array | Blob | ReadableStream<Uint8Array>, options: { user?: string } = {}): Promise<void> {
    await this.#transport.text({
      method: "PUT",
      path: `${this.#base}/archive`,
      query: { path, user: options.user },
      content: archive as BodyInit,
      contentType: "application/x-tar",
      again: archive instanceof ReadableStream ? "never" : "always",
    });
  }
}

async function* pieces(response: Response): AsyncGenerator<Uint8Array> {
  if (!response.body) return;
  const reader = response.body.getReader();
  try {
    for (;;) {
      const next = await reader.read();
      if (next.done) return;
      yield next.value;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Reads a whole stream. */
export async function collected(stream: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  const all: Uint8Array[] = [];
  for await (const piece of stream) all.push(piece);
  return joined(all);
}

export interface OpenOptions {
  /** The access ends after this long, or with the sandbox. */
  ttl?: Duration;
  /** Whether the port can be reached without a token. */
  public?: boolean;
  /** A name that tells people the purpose of the access. */
  name?: string;
}

/** Access to the ports of one sandbox from outside. */
export class Ports {
  readonly #transport: Transport;
  readonly #base: string;

  constructor(transport: Transport, base: string) {
    this.#transport = transport;
    this.#base = base;
  }

  /** Lists the ports on which a process of the sandbox listens. */
  async list(): Promise<Port[]> {
    return (await this.#transport.json<PortList>({ method: "GET", path: `${this.#base}/ports` })).items;
  }

  /** Opens a port and returns a URL for browsers. The URL has a token in it; with `public`, it needs none. */
  async url(port: number, options: OpenOptions = {}): Promise<string> {
    return (await this.open(port, options)).link;
  }

  /** Opens a port as `url` does, and returns the whole access, such as its token and the id that `close` takes. */
  open(port: number, options: OpenOptions = {}): Promise<AccessCreated> {
    const body = {
      port, public: options.public ?? false, name: options.name,
      ttl_ms: options.ttl === undefined ? undefined : milliseconds(options.ttl),
    };
    // A repeated request may make a second access that no caller knows. It does no harm: it ends as the first does.
    return this.#transport.json<AccessCreated>({ method: "POST", path: `${this.#base}/access`, body, again: "always" });
  }

  /** Ends an access. `access` is its id. */
  async close(access: string): Promise<void> {
    await this.#transport.text({ method: "DELETE", path: `${this.#base}/access/${segment(access)}` });
  }

  /** Lists the accesses of the sandbox. */
  async opened(): Promise<Access[]> {
    return (await this.#transport.json<AccessList>({ method: "GET", path: `${this.#base}/access` })).items;
  }
}
