/** Sends requests: the key, timeouts, retries, and the errors that answers mean. */

import { AtollError, InvalidRequest, ServerError, TimedOut, Unreachable, fromAnswer } from "./errors.js";
import { inject } from "./telemetry.js";
import { VERSION } from "./version.js";

export type Query = Record<string, string | number | boolean | readonly string[] | null | undefined>;

/** When a request that may have been done is sent again: always; only when its answer was lost; never. */
export type Again = "always" | "lost" | "never";

export interface AtollOptions {
  /** The server's URL; `ATOLL_URL` when absent. */
  url?: string;
  /** The API key; `ATOLL_API_KEY` when absent. */
  apiKey?: string;
  /** Milliseconds that a call may take, retries included: 60,000 when absent. `Call.waitMs` is not counted. */
  timeoutMs?: number;
  /** How often the client tries a call again when that is safe: 5 when absent. */
  maxRetries?: number;
  /** The function that sends requests, instead of the global `fetch`. */
  fetch?: typeof fetch;
  /** Further headers of each request. */
  headers?: Record<string, string>;
  /** Called with a line for each request and each retry. The lines never have keys, commands or output. */
  log?: (line: string) => void;
}

export interface Call {
  method: string;
  path: string;
  query?: Query;
  body?: unknown;
  content?: BodyInit;
  contentType?: string;
  headers?: Record<string, string>;
  key?: string;
  again?: Again;
  /** How long the request asks the server to wait, in addition to the timeout. */
  waitMs?: number;
  signal?: AbortSignal | null;
}

/** How long one request asks the server to wait for output, an event or an end. */
export const WAIT_MS = 30_000;
const DELAY_MS = 100;
const DELAY_MAX_MS = 2000;
const LATER = new Set([429, 500, 502, 503, 504]);
const SAFE = new Set(["GET", "HEAD", "PUT", "DELETE"]);
// When the cause is one of these, nothing was sent.
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

/** Makes a random idempotency key. */
export function newKey(): string {
  return crypto.randomUUID();
}

/** Encodes a name or id as one segment of a URL's path. */
export function segment(text: string): string {
  if (text === "" || text === "." || text === "..") {
    throw new InvalidRequest(`'${text}' is no id and no name`, { code: "invalid_argument" });
  }
  return encodeURIComponent(text);
}

/** Waits `ms` milliseconds. Throws the signal's reason when the signal is aborted before. */
export function sleep(ms: number, signal?: AbortSignal | null): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

function environment(name: string): string | undefined {
  return (globalThis as { process?: { env?: Record<string, string> } }).process?.env?.[name];
}

/** Sends requests to one server with one key. */
export class Transport {
  readonly url: string;
  readonly timeoutMs: number;
  readonly maxRetries: number;
  readonly #headers: Record<string, string>;
  readonly #options: AtollOptions;

  constructor(options: AtollOptions) {
    const url = options.url ?? environment("ATOLL_URL");
    const apiKey = options.apiKey ?? environment("ATOLL_API_KEY");
    if (!url || !apiKey) {
      throw new InvalidRequest(`no ${url ? "key" : "url"} of a server was given`, {
        code: "invalid_argument",
        hint: "set ATOLL_URL and ATOLL_API_KEY, or pass url and apiKey",
      });
    }
    this.#options = { ...options, url, apiKey };
    this.url = url.replace(/\/+$/, "");
    this.timeoutMs = options.timeoutMs ?? 60_000;
    this.maxRetries = options.maxRetries ?? 5;
    this.#headers = { ...options.headers, authorization: `Bearer ${apiKey}` };
    // Browsers set their own user agent.
    if (environment("PATH") !== undefined) this.#headers["user-agent"] = `atoll-typescript/${VERSION}`;
  }

  withOptions(options: Pick<AtollOptions, "timeoutMs" | "maxRetries">): Transport {
    return new Transport({ ...this.#options, ...options });
  }

  /** Sends JSON and returns the answer's JSON, or undefined when the answer is empty. */
  async json<T>(call: Call): Promise<T> {
    const text = await this.text(call);
    try {
      return (text === "" ? undefined : JSON.parse(text)) as T;
    } catch (cause) {
      throw new ServerError("the server's answer is no JSON", { code: "bad_answer", cause });
    }
  }

  /** Sends a request and reads its whole answer as text. */
  text(call: Call): Promise<string> {
    return this.send(call, (response) => response.text());
  }

  /** Sends a request and returns the result of `read` for its answer. Retries both, when that is safe. */
  async send<T>(call: Call, read: (response: Response) => Promise<T>): Promise<T> {
    const again = call.again ?? (call.key !== undefined || SAFE.has(call.method) ? "always" : "never");
    const headers: Record<string, string> = {
      ...this.#headers,
      // The client chooses the request id, so that a request whose answer is lost can be found in the server's log.
      "x-request-id": crypto.randomUUID(),
      ...call.headers,
    };
    if (call.key !== undefined) headers["idempotency-key"] = call.key;
    if (call.body !== undefined) headers["content-type"] = "application/json";
    else if (call.contentType !== undefined) headers["content-type"] = call.contentType;
    await inject(headers);
    const content = call.body !== undefined ? JSON.stringify(call.body) : call.content;
    const attempts = new Attempts(this, call, again, headers["x-request-id"] ?? "", this.#options.log);
    for (;;) {
      call.signal?.throwIfAborted();
      const limit = new AbortController();
      const aborted = () => limit.abort(call.signal?.reason);
      call.signal?.addEventListener("abort", aborted, { once: true });
      const timer = setTimeout(() => limit.abort(attempts), attempts.remaining());
      let delay: number;
      try {
        const response = await (this.#options.fetch ?? fetch)(this.url + call.path + search(call.query), {
          method: call.method,
          headers,
          body: content ?? null,
          signal: limit.signal,
          // Redirects are not followed: they would send the key to another server.
          redirect: "error",
          ...(content instanceof ReadableStream ? { duplex: "half" } : {}),
        } as RequestInit);
        if (response.ok || (response.status === 404 && call.method === "DELETE" && attempts.wasLost)) {
          const value = await read(response);
          attempts.answered(response.status);
          return value;
        }
        delay = attempts.refused(response, await response.text());
      } catch (error) {
        if (error instanceof AtollError) throw error;
        call.signal?.throwIfAborted();
        delay = attempts.lost(error, limit.signal.aborted);
      } finally {
        clearTimeout(timer);
        call.signal?.removeEventListener("abort", aborted);
      }
      await sleep(delay, call.signal);
    }
  }
}

/** Counts the attempts at one request, and decides whether there is another. */
class Attempts {
  wasLost = false;
  #left: number;
  #delay = DELAY_MS;
  readonly #began = performance.now();
  readonly #deadline: number;

  constructor(
    transport: Transport,
    readonly call: Call,
    readonly again: Again,
    readonly requestId: string,
    readonly log: AtollOptions["log"],
  ) {
    this.#left = transport.maxRetries;
    this.#deadline = this.#began + transport.timeoutMs + (call.waitMs ?? 0);
  }

  remaining(): number {
    return Math.max(1, this.#deadline - performance.now());
  }

  answered(status: number): void {
    if (!this.log) return;
    const took = (performance.now() - this.#began).toFixed(1);
    this.log(`${this.call.method} ${this.call.path}: ${status} after ${took} ms [request ${this.requestId}]`);
  }

  get #changes(): boolean {
    return this.call.method !== "GET" && this.call.method !== "HEAD";
  }

  /** Called when no answer came. Returns how long to wait before the next attempt; throws when there is none. */
  lost(error: unknown, timedOut: boolean): number {
    const cause = error instanceof Error ? (error.cause as { code?: string } | undefined) : undefined;
    const sent = !UNSENT.has(cause?.code ?? "");
    const what = timedOut ? "did not answer in time" : sent ? "broke off" : "cannot be reached";
    const kind = timedOut ? TimedOut : Unreachable;
    const failure = new kind(`the server ${what} (${this.call.method} ${this.call.path}: ${String(error)})`, {
      code: timedOut ? "timeout" : "unreachable",
      hint: sent ? null : "is the url right, and does the server run?",
      retryable: true,
      mayHaveRun: this.#changes && (sent || this.wasLost),
      requestId: this.requestId,
      cause: error,
    });
    this.wasLost ||= sent;
    if (sent && this.again === "never") throw failure;
    return this.#next(failure, null);
  }

  /** Called when the answer is an error. Returns and throws as `lost` does. */
  refused(response: Response, said: string): number {
    const requestId = response.headers.get("x-request-id") ?? this.requestId;
    const failure = fromAnswer(response.status, said, this.#changes, this.wasLost, requestId);
    const later = failure.retryable && LATER.has(response.status);
    // A server that answers 429 has not begun the request, so it can be sent again.
    if (!later || (this.again !== "always" && response.status !== 429)) throw failure;
    return this.#next(failure, response.headers.get("retry-after"));
  }

  #next(failure: AtollError, retryAfter: string | null): number {
    let delay = this.#delay * (0.5 + Math.random());
    if (retryAfter !== null && /^\d+$/.test(retryAfter)) delay = Math.max(delay, Math.min(Number(retryAfter), 30) * 1000);
    this.#delay = Math.min(this.#delay * 2, DELAY_MAX_MS);
    if (this.#left <= 0 || delay >= this.remaining()) throw failure;
    this.#left--;
    this.log?.(`${failure.toString()}; trying again in ${Math.round(delay)} ms`);
    return delay;
  }
}

function search(query: Query | undefined): string {
  if (!query) return "";
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const one of value) found.append(name, String(one));
    else if (value !== null && value !== undefined) found.append(name, String(value));
  }
  const text = found.toString();
  return text && `?${text}`;
}
