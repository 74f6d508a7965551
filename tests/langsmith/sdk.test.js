// The JavaScript SDK, in the version that is installed in the working directory: node --test.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import test, { after, before } from "node:test";

const installed = process.cwd();
const require = createRequire(path.join(installed, "package.json"));
const version = JSON.parse(readFileSync(path.join(installed, "node_modules/langsmith/package.json"))).version
  .split(".").map(Number);
const since = (major, minor) => version[0] > major || (version[0] === major && version[1] >= minor);
let hasWs = true;
try { require.resolve("ws"); } catch { hasWs = false; }
let module;
try { module = require.resolve("langsmith/sandbox"); } catch { module = require.resolve("langsmith/experimental/sandbox"); }
const { SandboxClient } = await import(pathToFileURL(module));

let client;
let box;
before(async () => {
  client = new SandboxClient();
  box = await client.createSandbox();
});
after(async () => {
  await client.deleteSandbox(box.name);
});

test("runs a command", async () => {
  const result = await box.run("echo out; echo err >&2; exit 3");
  assert.deepEqual([result.stdout, result.stderr, result.exit_code ?? result.exitCode], ["out\n", "err\n", 3]);
});

test("streams output to callbacks", { skip: !hasWs }, async () => {
  let text = "";
  await box.run("for i in 1 2 3; do echo $i; sleep 0.1; done", { onStdout: (piece) => { text += piece; } });
  assert.equal(text, "1\n2\n3\n");
});

test("much output is complete", async () => {
  const result = await box.run("seq 1 300000", { timeout: 120 });
  assert.equal(result.stdout.length, 1988895);
});

test("input, kill and reconnecting", { skip: !hasWs }, async () => {
  const options = since(0, 12) ? { closeInput: false } : {};
  const handle = await box.run("read line; echo got $line; sleep 1000", { wait: false, ...options });
  handle.sendInput("text\n");
  for await (const chunk of handle) {
    assert.equal(chunk.data, "got text\n");
    handle.kill();
  }
  const result = await handle.result;
  assert.equal(result.exit_code ?? result.exitCode, 137);
  const again = await (await box.reconnect(handle.commandId)).result;
  assert.equal(again.stdout, "got text\n");
});

test("a terminal", { skip: !hasWs }, async () => {
  const result = await box.run("stty size", { pty: true });
  assert.match(result.stdout, /24 80/);
});

test("a timeout", async () => {
  await assert.rejects(box.run("sleep 30", { timeout: 1 }));
});

test("files", async () => {
  await box.write("/tmp/deep/file", "grüße");
  assert.equal(new TextDecoder().decode(await box.read("/tmp/deep/file")), "grüße");
  await assert.rejects(box.read("/tmp/nothing"), (error) => error.name === "LangSmithResourceNotFoundError");
});

test("parts of files, and searching", { skip: !since(0, 12) }, async () => {
  await box.write("/tmp/s/part.txt", "0123456789");
  const chunk = await box.readRange("/tmp/s/part.txt", { start: 2, end: 4 });
  assert.equal(new TextDecoder().decode(chunk.content), "234");
  assert.equal((await box.glob("*.txt", "/tmp/s")).matches.length, 1);
  assert.equal((await box.grep("345", "/tmp/s")).matches[0].line, 1);
});

test("lists, finds, renames", async () => {
  assert.ok((await client.listSandboxes()).some((one) => one.name === box.name));
  assert.equal((await client.getSandbox(box.name)).id, box.id);
  const other = await client.createSandbox();
  const name = `js-${Math.random().toString(36).slice(2, 10)}`;
  await client.updateSandbox(other.name, since(0, 9) ? { newName: name } : name);
  assert.equal((await client.getSandboxStatus(name)).status, "ready");
  await client.deleteSandbox(name);
  await assert.rejects(client.getSandbox(name), (error) => error.name === "LangSmithResourceNotFoundError");
});

test("errors have their types", async () => {
  const wrong = new SandboxClient({ apiKey: "wrong" });
  await assert.rejects(wrong.listSandboxes(), (error) => error.name === "LangSmithSandboxAuthenticationError");
  await assert.rejects(client.createSandbox(undefined, { name: "Not A Name" }), (error) => /name/.test(error.message));
});
