/** Starts Atoll servers from Node. The rest of the SDK does not need Node. */

import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { openSync, closeSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { Atoll } from "./client.js";
import { ServerError } from "./errors.js";
import { bundled } from "./program.cjs";
import type { AtollOptions } from "./transport.js";

const READY_MS = 60_000;
const STOP_MS = 30_000;

// This shell script starts the server, and ends it when the pipe from the client closes. The pipe closes also when the
// client is killed. The shell reads from the pipe; the server does not inherit it.
const GUARD = `
exec 3<&0 </dev/null
"$@" 3<&- & server=$!
exec >&-
(read -r _ <&3; kill -TERM "$server" 2>/dev/null) & waiter=$!
exec 3<&-
wait "$server"; code=$?
kill "$waiter" 2>/dev/null
exit "$code"
`;

/** A client with a server that was started for it. The server ends with the client and leaves nothing behind. */
export class LocalAtoll extends Atoll implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly #directory: string;

  constructor(options: AtollOptions, child: ChildProcess, directory: string) {
    super(options);
    this.#child = child;
    this.#directory = directory;
  }

  /** Ends the server and waits until it is gone. */
  async close(): Promise<void> {
    await stop(this.#child, this.#directory);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/**
 * Starts a server on this machine: the program that `ATOLL_BIN` names, the one that was installed with this package, or
 * `atoll` on the PATH, with `args` after `atoll serve`. The server needs Linux and root.
 */
export async function local(options: Omit<AtollOptions, "url" | "apiKey"> & { args?: readonly string[] } = {}): Promise<LocalAtoll> {
  const { args = [], ...rest } = options;
  const directory = await mkdtemp(join(process.env["TMPDIR"] ?? "/var/tmp", "atoll-local-"));
  const serve = ["serve", "--ephemeral", "--listen", "127.0.0.1:0", "--ready-json"];
  const log = openSync(join(directory, "log"), "w");
  const program = process.env["ATOLL_BIN"] || bundled() || "atoll";
  const child = spawn("/bin/sh", ["-c", GUARD, "atoll", program, ...serve, ...args], {
    stdio: ["pipe", "pipe", log],
    detached: true,
  });
  closeSync(log);
  try {
    const ready = JSON.parse(await firstLine(child)) as { url: string; api_key: string };
    // Node may exit while the server runs.
    child.unref();
    return new LocalAtoll({ ...rest, url: ready.url, apiKey: ready.api_key }, child, directory);
  } catch (cause) {
    const said = (await readFile(join(directory, "log"), "utf8")).slice(-2000).trim();
    await stop(child, directory);
    throw new ServerError(`the server did not start: ${said}`, { code: "not_started", cause });
  }
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    if (!child.stdout) return reject(new Error("no output"));
    const timer = setTimeout(() => reject(new Error("it was not ready in time")), READY_MS);
    const lines = createInterface({ input: child.stdout });
    const settle = (act: () => void) => () => {
      clearTimeout(timer);
      // `act` runs before `close`: the event of `close` would reject the promise as if the server had ended.
      act();
      lines.close();
    };
    child.once("error", (error) => settle(() => reject(error))());
    lines.once("close", settle(() => reject(new Error("it ended"))));
    lines.once("line", (line) => settle(() => resolve(line))());
  });
}

async function stop(child: ChildProcess, directory: string): Promise<void> {
  if (child.pid !== undefined && child.exitCode === null && child.signalCode === null) {
    const gone = new Promise((resolve) => child.once("exit", resolve));
    const pid = child.pid;
    const timer = setTimeout(() => {
      try {
        process.kill(-pid, "SIGKILL");
      } catch {
        // The server has ended by itself.
      }
    }, STOP_MS);
    child.ref();
    child.stdin?.end();
    child.stdout?.destroy();
    await gone;
    clearTimeout(timer);
  }
  await rm(directory, { recursive: true, force: true });
}
