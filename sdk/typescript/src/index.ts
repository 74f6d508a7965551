/** Computers for AI agents, on your own machine: the TypeScript SDK of Atoll. */

// Older runtimes have no `Symbol.asyncDispose`. The code to which `await using` is compiled looks for this symbol then.
(Symbol as { asyncDispose?: symbol }).asyncDispose ??= Symbol.for("Symbol.asyncDispose");

export { Atoll } from "./client.js";
export { Cell, Code, CodeOutput, CodeResult, Context } from "./code.js";
export type { CellOptions, CodeError, ContextOptions, RunCodeOptions } from "./code.js";
export type { BuildOptions, PullOptions } from "./catalog.js";
export {
  AtollError, CodeFailed, CommandFailed, Conflict, InvalidRequest, LimitReached, NotAllowed, NotFound, ServerError, TimedOut,
  Unreachable,
} from "./errors.js";
export { Files, Ports, collected } from "./files.js";
export type { OpenOptions, WriteOptions } from "./files.js";
export type { Network, UseSecret } from "./network.js";
export { Pager } from "./pager.js";
export type { Page } from "./pager.js";
export { Process } from "./process.js";
export type { Command, RunOptions, StartOptions } from "./process.js";
export { Result } from "./results.js";
export type { Ended, Gap, Output, Piece } from "./results.js";
export { Sandbox, Sandboxes } from "./sandbox.js";
export type { CreateOptions, ForkOptions } from "./sandbox.js";
export { Terminal } from "./terminal.js";
export type { AtollOptions } from "./transport.js";
export type { Duration, Size } from "./units.js";
export { VERSION } from "./version.js";
export type * as types from "./types.js";
