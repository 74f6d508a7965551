/** The errors of the SDK: eleven classes, one for each way in which a program may want to react. */

import type { CodeResult } from "./code.js";
import type { Result } from "./results.js";

export interface ErrorDetails {
  code?: string;
  hint?: string | null;
  retryable?: boolean;
  mayHaveRun?: boolean;
  requestId?: string | null;
  status?: number;
  cause?: unknown;
}

/** The base class of all errors: the server refused the call, or the client could not make it. */
export class AtollError extends Error {
  /** A stable code for programs. The server's codes are in the API's document. */
  readonly code: string;
  /** What the caller can do about the error. */
  readonly hint: string | null;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  /** Whether the server may have done what the call asked for, although no answer came. */
  readonly mayHaveRun: boolean;
  /** The id under which the server's log has the request. */
  readonly requestId: string | null;
  /** The status of the HTTP answer, if one came. */
  readonly status: number | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { cause: details.cause });
    this.name = new.target.name;
    this.code = details.code ?? "client";
    this.hint = details.hint ?? null;
    this.retryable = details.retryable ?? false;
    this.mayHaveRun = details.mayHaveRun ?? false;
    this.requestId = details.requestId ?? null;
    this.status = details.status;
  }

  override toString(): string {
    const hint = this.hint ? `; ${this.hint}` : "";
    const request = this.requestId ? ` [request ${this.requestId}]` : "";
    return `${this.name}: ${this.message} (${this.code})${hint}${request}`;
  }
}

/** The client could not connect to the server, or the connection broke before the whole answer was here. */
export class Unreachable extends AtollError {}
/** The call took longer than its timeout. When a command reaches its own timeout, that is a result and no error. */
export class TimedOut extends AtollError {}
/** The request is wrong. The message names the field. */
export class InvalidRequest extends AtollError {}
/** The key is missing or wrong, or the key or the sandbox's own permissions do not allow the call. */
export class NotAllowed extends AtollError {}
/** The server has nothing with the name or id that the call gave. */
export class NotFound extends AtollError {}
/** The call does not fit the current state: the name is taken, the sandbox failed, or the exec has ended. */
export class Conflict extends AtollError {}
/** A limit is reached, a budget is used up, or a disk is full. */
export class LimitReached extends AtollError {}
/** The server failed, or a system that the server depends on. */
export class ServerError extends AtollError {}

/** A command did not end with 0, and the caller asked for `check`. */
export class CommandFailed extends AtollError {
  /** How the command ended, with its output. */
  readonly result: Result;

  constructor(result: Result) {
    const how = result.end === "exited" ? "" : ` (${result.end})`;
    const code = result.exitCode === null ? "" : ` with code ${result.exitCode}`;
    const said = (result.stderr || result.stdout).trim().slice(-500);
    super(`the command ended${code}${how}${said ? `: ${said}` : ""}`, { code: "command_failed", mayHaveRun: true });
    this.result = result;
  }
}

/** A cell did not run to its end, and the caller asked for `check`. */
export class CodeFailed extends AtollError {
  /** How the cell ended, with its output. */
  readonly result: CodeResult;

  constructor(result: CodeResult) {
    const { error } = result;
    const why = error ? `${error.name}: ${error.value}` : (result.reason ?? result.state).replaceAll("_", " ");
    super(`the code did not run to its end: ${why}`, { code: "code_failed", mayHaveRun: true });
    this.result = result;
  }
}

type Kind = new (message: string, details?: ErrorDetails) => AtollError;

const BY_STATUS: Record<number, Kind> = {
  400: InvalidRequest, 401: NotAllowed, 402: LimitReached, 403: NotAllowed, 404: NotFound, 405: InvalidRequest,
  409: Conflict, 413: InvalidRequest, 416: InvalidRequest, 422: InvalidRequest, 423: Conflict, 429: LimitReached,
  504: TimedOut, 507: LimitReached,
};

// Used when an answer does not say whether it is retryable, such as the answer of a proxy in front of the server.
const RETRYABLE = new Set([429, 502, 503, 504]);

interface Said {
  code?: string;
  message?: string;
  hint?: string | null;
  retryable?: boolean;
  request_id?: string | null;
}

/** Makes an error from an HTTP answer. `changes` says whether the request may change anything on the server. */
export function fromAnswer(
  status: number,
  body: string,
  changes: boolean,
  wasLost: boolean,
  requestId: string | null,
): AtollError {
  let said: Said = {};
  try {
    const parsed: unknown = JSON.parse(body);
    if (typeof parsed === "object" && parsed !== null) said = parsed as Said;
  } catch {
    // The body is no JSON: the answer is not the server's own.
  }
  const kind = BY_STATUS[status] ?? (status >= 500 ? ServerError : InvalidRequest);
  return new kind(said.message ?? `the server answered with status ${status}`, {
    code: said.code ?? `http_${status}`,
    hint: said.hint,
    retryable: said.retryable ?? RETRYABLE.has(status),
    mayHaveRun: changes && (wasLost || (status >= 500 && status !== 507)),
    requestId: said.request_id ?? requestId,
    status,
  });
}

/** Makes an error from the JSON of an error in a stream or in one entry of a batch. */
export function fromBody(said: Said, mayHaveRun = false): AtollError {
  const code = said.code ?? "internal";
  let kind: Kind = ServerError;
  if (code.endsWith("_not_found")) kind = NotFound;
  else if (["sandbox_failed", "name_taken", "invalid_state"].includes(code)) kind = Conflict;
  else if (["limit_exceeded", "budget_exhausted", "host_disk_full", "disk_full"].includes(code)) kind = LimitReached;
  else if (["invalid_argument", "image_invalid", "image_platform_mismatch"].includes(code)) kind = InvalidRequest;
  return new kind(said.message ?? code, {
    code, hint: said.hint, retryable: said.retryable, mayHaveRun, requestId: said.request_id,
  });
}
