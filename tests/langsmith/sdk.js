// Shared by the tests of the JavaScript SDK: the version that is installed in the working directory, and raw requests.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const installed = process.cwd();
const require = createRequire(path.join(installed, "package.json"));
const version = JSON.parse(readFileSync(path.join(installed, "node_modules/langsmith/package.json"))).version
  .split(".").map(Number);
export const since = (major, minor) => version[0] > major || (version[0] === major && version[1] >= minor);

export let hasWs = true;
try { require.resolve("ws"); } catch { hasWs = false; }

let module;
try { module = require.resolve("langsmith/sandbox"); } catch { module = require.resolve("langsmith/experimental/sandbox"); }
export const { SandboxClient } = await import(pathToFileURL(module));

export const text = (bytes) => new TextDecoder().decode(bytes);
export const named = (name) => (error) => error.name === name || `${error.name}: ${error.message}`.includes(name);
export const madeUp = () => `js-${Math.random().toString(36).slice(2, 10)}`;

// Sends a raw request; returns status and JSON.
export async function raw(method, where, body) {
  const response = await fetch(process.env.LANGSMITH_ENDPOINT + where, {
    method,
    headers: { "X-Api-Key": process.env.LANGSMITH_API_KEY, "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const answer = await response.text();
  return [response.status, answer ? JSON.parse(answer) : undefined];
}

export async function until(what, check) {
  for (const deadline = Date.now() + 60_000; !(await check());) {
    if (Date.now() > deadline) throw new Error(`never: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}
