// Every request of the dashboard goes through this module: the session, its CSRF token, errors, paths.
//
// Paths and methods are checked by the compiler against the API's document; bodies and answers have the types that are
// generated from it for the SDK.

import type document from "../../openapi/atoll.json";
import type * as t from "../../sdk/typescript/src/types";

export type * from "../../sdk/typescript/src/types";

type Paths = (typeof document)["paths"];
type Path = keyof Paths & `/v1/${string}`;
type Method = "get" | "post" | "put" | "patch" | "delete";
type Query = Record<string, string | number | boolean | string[] | null | undefined>;

interface Request {
  /** Values of the parameters in the path. */
  in?: Record<string, string | number>;
  query?: Query;
  json?: unknown;
  /** A body that is sent as it is. */
  raw?: Blob | string;
  signal?: AbortSignal;
}

/** A method, a path of the API's document that has this method, and the request. */
type Ask = { [P in Path]: [method: Method & keyof Paths[P], path: P, request?: Request] }[Path];

/** The answer of `/session`: what the page needs to use its session. The session itself is in a cookie. */
export interface Session {
  /** The CSRF token, sent with every request that is not a GET. A page of another site cannot read it. */
  csrf: string;
}

/** The server's refusal of a request, with the server's message. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string | null,
  ) {
    super(message);
  }
}

let session: Promise<Session> | undefined;

/** The session, fetched once. */
export function signIn(): Promise<Session> {
  session ??= fetch("/session", { credentials: "same-origin", headers: { accept: "application/json" } }).then(
    async (answer) => {
      if (!answer.ok) throw await refusal(answer);
      return (await answer.json()) as Session;
    },
  );
  session.catch(() => (session = undefined));
  return session;
}

/** The name of the identity provider at which people log in, for the button; undefined when there is none. */
export async function issuer(): Promise<string | undefined> {
  const answer = await fetch("/login/with", { headers: { accept: "application/json" } });
  const told = answer.ok ? ((await answer.json()) as { name: string } | null) : null;
  return told?.name;
}

/** Ends the session, and everything that was opened with it, in other tabs too. */
export async function signOut(): Promise<void> {
  const { csrf } = await signIn();
  const answer = await fetch("/session", { method: "DELETE", credentials: "same-origin", headers: { "x-atoll-csrf": csrf } });
  // 401 means that the session has ended already.
  if (!answer.ok && answer.status !== 401) throw await refusal(answer);
  location.assign("/");
}

/** The address of a path of the API, for links, streams and WebSockets. */
export function address(path: Path, within: Request["in"] = {}, query: Query = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(within[name])));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one));
  }
  return search.size ? `${filled}?${search}` : filled;
}

/** Opens a WebSocket to a path of the API. */
export function socket(path: Path, within: Request["in"], query: Query = {}): WebSocket {
  const url = new URL(address(path, within, query), location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const made = new WebSocket(url);
  made.binaryType = "arraybuffer";
  return made;
}

/** Sends a request and returns the answer's `Response`. */
export async function send(...[method, path, request = {}]: Ask): Promise<Response> {
  const { csrf } = await signIn();
  const headers: Record<string, string> = { accept: "application/json" };
  if (method !== "get") headers["x-atoll-csrf"] = csrf;
  if (request.json !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(address(path, request.in, request.query), {
    method: method.toUpperCase(),
    credentials: "same-origin",
    headers,
    body: request.json !== undefined ? JSON.stringify(request.json) : request.raw,
    signal: request.signal,
  });
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/** Sends a request and returns the answer's JSON, or undefined for status 204. */
export async function call<T>(...ask: Ask): Promise<T> {
  const answer = await send(...ask);
  return (answer.status === 204 ? undefined : await answer.json()) as T;
}

async function refusal(answer: Response): Promise<Refused> {
  const body = (await answer.json().catch(() => ({}))) as Partial<t.ErrorBody> & { error?: Partial<t.ErrorBody> };
  const error = body.error ?? body;
  const message = error.message ?? `the server answered ${answer.status}`;
  return new Refused(answer.status, error.code ?? "unknown", message, error.hint ?? null);
}

type Listing =
  | "/v1/sandboxes"
  | "/v1/templates"
  | "/v1/images"
  | "/v1/snapshots"
  | "/v1/volumes"
  | "/v1/keys";

/** Every item of a listing that comes in pages. */
export async function every<T>(path: Listing, query: Query = {}): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null | undefined;
  do {
    const page: { items: T[]; next_cursor?: string | null } = await call("get", path, {
      query: { ...query, cursor },
    });
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return items;
}
