// Deep Agents for JavaScript with its LangSmith backend; a scripted model: node --test.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import test, { after, before } from "node:test";

const require = createRequire(path.join(process.cwd(), "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { createDeepAgent, LangSmithSandbox } = (await load("deepagents")).default ?? (await load("deepagents"));
const { SandboxClient } = await load("langsmith/sandbox");
const { FakeListChatModel } = await load("@langchain/core/utils/testing");
const { AIMessage } = await load("@langchain/core/messages");

class Scripted extends FakeListChatModel {
  constructor(script) {
    super({ responses: ["unused"] });
    this.script = script;
  }
  bindTools() { return this; }
  async _generate() {
    const message = this.script.shift();
    return { generations: [{ text: "", message }] };
  }
}

let calls = 0;
const call = (name, args) => new AIMessage({ content: "", tool_calls: [{ id: `call-${calls += 1}`, name, args }] });

let client;
let box;
let sandbox;
before(async () => {
  client = new SandboxClient();
  box = await client.createSandbox();
  sandbox = new LangSmithSandbox({ sandbox: box });
});
after(async () => client.deleteSandbox(box.name));

test("an agent writes a file, runs it, reads what came of it", async () => {
  const model = new Scripted([
    call("write_file", { file_path: "/workspace/sum.py", content: "print(sum(range(101)))\n" }),
    call("execute", { command: "python3 /workspace/sum.py > /workspace/out; cat /workspace/out" }),
    call("read_file", { file_path: "/workspace/out" }),
    new AIMessage("The sum is 5050."),
  ]);
  const agent = createDeepAgent({ model, backend: sandbox });
  const result = await agent.invoke({ messages: [{ role: "user", content: "sum 1 to 100" }] }, { recursionLimit: 100 });
  const texts = result.messages.filter((message) => message.getType() === "tool").map((message) => JSON.stringify(message.content));
  assert.match(texts[1], /5050/);
  assert.match(texts[2], /5050/);
  assert.equal(result.messages.at(-1).content, "The sum is 5050.");
});

// The file tools of Deep Agents, which run commands: the areas of the vendor's standard tests.

const json = (value) => JSON.stringify(value);
const content = async (file) => new TextDecoder().decode((await sandbox.downloadFiles([file]))[0].content);

test("execute: streams, codes, much output, a timeout", async () => {
  const result = await sandbox.execute("echo out; echo err >&2; exit 3");
  assert.deepEqual([result.exitCode, result.truncated], [3, false]);
  assert.match(result.output, /out\n[^]*err/);
  assert.equal((await sandbox.execute("seq 1 100000")).output.trim().split("\n").length, 100000);
  assert.equal((await sandbox.execute("printf 'ü€😀'")).output.trim(), "ü€😀");
  await assert.rejects(async () => {
    const late = await sandbox.execute("sleep 30", { timeout: 1 });
    if (late.exitCode !== 0) throw new Error("ended");
  });
});

test("write: parents, overwriting, special characters, empty, large", async () => {
  const texts = { "a/b/c.txt": "deep", "quotes.txt": "it's \"so\" `now` $HOME \\n\n", "empty.txt": "", "ünïcode ☃.txt": "grüße 😀\n", "large.txt": "0123456789\n".repeat(50_000) };
  for (const [name, text] of Object.entries(texts)) {
    assert.equal((await sandbox.write(`/tmp/js/${name}`, text)).error, undefined, name);
    assert.equal(await content(`/tmp/js/${name}`), text, name);
  }
});

test("read: whole, by lines, what is not there", async () => {
  await sandbox.write("/tmp/js/lines.txt", Array.from({ length: 100 }, (_, n) => `line ${n}`).join("\n"));
  assert.match(json(await sandbox.read("/tmp/js/lines.txt")), /line 0.*line 99/s);
  const part = json(await sandbox.read("/tmp/js/lines.txt", 10, 5));
  assert.ok(/line 10/.test(part) && /line 14/.test(part) && !/line 15/.test(part) && !/line 9[^0-9]/.test(part), part);
  assert.match(json(await sandbox.read("/tmp/js/nothing.txt")), /error|not found/i);
  assert.match(json(await sandbox.readRaw("/tmp/js/lines.txt")), /line 42/);
});

test("edit: once, everywhere, not there, ambiguous", async () => {
  await sandbox.write("/tmp/js/edit.txt", "one two two\n$1 & \\1 'q'\n");
  assert.equal((await sandbox.edit("/tmp/js/edit.txt", "one", "1")).occurrences, 1);
  assert.ok((await sandbox.edit("/tmp/js/edit.txt", "two", "2")).error, "two places");
  assert.equal((await sandbox.edit("/tmp/js/edit.txt", "two", "2", true)).occurrences, 2);
  assert.ok((await sandbox.edit("/tmp/js/edit.txt", "three", "3")).error);
  assert.ok((await sandbox.edit("/tmp/js/nothing.txt", "a", "b")).error);
  assert.equal((await sandbox.edit("/tmp/js/edit.txt", "$1 & \\1 'q'\n", "multi\nline\n")).occurrences, 1);
  assert.equal(await content("/tmp/js/edit.txt"), "1 2 2\nmulti\nline\n");
});

test("ls, glob, grep", async () => {
  for (const name of ["x/one.txt", "x/two.md", "x/sub/three.txt", "x/.hidden.txt", "x/with space.txt"]) {
    await sandbox.write(`/tmp/js/${name}`, `needle in ${name}\nother (a|b) [c]\n`);
  }
  const listed = json(await sandbox.ls("/tmp/js/x"));
  assert.ok(/one\.txt/.test(listed) && /sub/.test(listed) && /with space/.test(listed) && !/three/.test(listed), listed);
  const flat = json(await sandbox.glob("*.txt", "/tmp/js/x"));
  assert.ok(/one\.txt/.test(flat) && !/two\.md/.test(flat), flat);
  assert.match(json(await sandbox.glob("**/*.txt", "/tmp/js/x")), /three\.txt/);
  assert.doesNotMatch(json(await sandbox.glob("*.none", "/tmp/js/x")), /\.txt/);
  assert.match(json(await sandbox.grep("needle", "/tmp/js/x")), /three\.txt/);
  assert.doesNotMatch(json(await sandbox.grep("needle", "/tmp/js/x", "*.md")), /one\.txt/);
  // `grep` searches for text, not for a pattern.
  assert.match(json(await sandbox.grep("(a|b) [c]", "/tmp/js/x")), /one\.txt/);
  assert.doesNotMatch(json(await sandbox.grep("n.edle", "/tmp/js/x")), /one\.txt/);
});

test("up- and download: binary, in order, what cannot be", async () => {
  const bytes = new Uint8Array(300_000).map((_, index) => (index * 7) % 256);
  const files = [["/tmp/js/up/b.bin", bytes], ["/tmp/js/up/a.bin", new Uint8Array()]];
  assert.deepEqual((await sandbox.uploadFiles(files)).map(({ path, error }) => [path, error]), files.map(([path]) => [path, null]));
  const loaded = await sandbox.downloadFiles(["/tmp/js/up/b.bin", "/tmp/js/none", "/tmp/js/up", "/tmp/js/up/a.bin"]);
  assert.equal(Buffer.compare(Buffer.from(loaded[0].content), Buffer.from(bytes)), 0);
  assert.deepEqual(loaded.map(({ error }) => error), [null, "file_not_found", "is_directory", null]);
});

test("delete", async () => {
  await sandbox.write("/tmp/js/gone.txt", "x");
  assert.equal((await sandbox.delete("/tmp/js/gone.txt")).error, undefined);
  assert.equal((await sandbox.downloadFiles(["/tmp/js/gone.txt"]))[0].error, "file_not_found");
});

test("its life: made by name of a snapshot, stopped, started, captured, closed", async () => {
  const name = `js-${Math.random().toString(36).slice(2, 10)}`;
  const snapshot = await sandbox.captureSnapshot(name);
  try {
    const other = await LangSmithSandbox.create({ templateName: name });
    assert.ok(other.isRunning && other.id !== sandbox.id);
    await other.write("/root/kept", "kept");
    await other.stop();
    await other.start();
    assert.equal((await other.execute("cat /root/kept")).output.trim(), "kept");
    await other.close();
    await assert.rejects(client.getSandbox(other.id));
    // A name instead of an id, as the package's own tests pass it.
    await (await LangSmithSandbox.create({ snapshotId: name })).close();
  } finally {
    await client.deleteSnapshot(snapshot.id);
  }
});
