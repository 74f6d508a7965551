/** What can go wrong: eleven classes, one for each thing that a program may want to do about it. */

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

/** Anything that Atoll says no to, or that is in the way of asking it. */
export class AtollError extends Error {
  /** Stable, for machines; those of the server are in the API's document. */
  readonly code: string;
  /** What to do about it. */
  readonly hint: string | null;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  /** Whether what was asked for may have been done although no answer came. */
  readonly mayHaveRun: boolean;
  /** Under which the server's log has it. */
  readonly requestId: string | null;
  /** Of the HTTP answer, if one came. */
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

/** No connection, or it broke off before the answer was whole. */
export class Unreachable extends AtollError {}
/** It took longer than it was given. A command that ran into its own timeout is no error but a result. */
export class TimedOut extends AtollError {}
/** Something about the request is wrong; the message names the field. */
export class InvalidRequest extends AtollError {}
/** The key is missing or wrong, or may not do this; or the sandbox's own permissions forbid it. */
export class NotAllowed extends AtollError {}
/** What was named is not there. */
export class NotFound extends AtollError {}
/** It does not fit the state in which things are: a name is taken, a sandbox failed, an exec has ended. */
export class Conflict extends AtollError {}
/** A limit, a budget or a disk is full. */
export class LimitReached extends AtollError {}
/** The server failed, or something that it depends on. */
export class ServerError extends AtollError {}

/** A command did not end with 0, and `check` was asked for. */
export class CommandFailed extends AtollError {
  /** How it ended, with its output. */
  readonly result: Result;

  constructor(result: Result) {
    const how = result.end === "exited" ? "" : ` (${result.end})`;
    const code = result.exitCode === null ? "" : ` with code ${result.exitCode}`;
    const said = (result.stderr || result.stdout).trim().slice(-500);
    super(`the command ended${code}${how}${said ? `: ${said}` : ""}`, { code: "command_failed", mayHaveRun: true });
    this.result = result;
  }
}

/** Code did not run to its end, and `check` was asked for. */
export class CodeFailed extends AtollError {
  /** How it ended, with what it said. */
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

// Answers of a proxy in front of the server, which has no words of its own.
const RETRYABLE = new Set([429, 502, 503, 504]);

interface Said {
  code?: string;
  message?: string;
  hint?: string | null;
  retryable?: boolean;
  request_id?: string | null;
}

/** The error that an HTTP answer means; `changes` says whether the request may have changed something. */
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
    // Not ours.
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

/** The error that stands in a stream, or in one line of a batch. */
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
