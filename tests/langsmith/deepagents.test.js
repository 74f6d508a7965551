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

test("its file tools, which need only a shell in the image", async () => {
  assert.equal((await sandbox.execute("echo out; echo err >&2; exit 3")).exitCode, 3);
  await sandbox.write("/tmp/js/a.txt", "one\ntwo\nthree\n");
  await sandbox.edit("/tmp/js/a.txt", "two", "2");
  const text = await sandbox.downloadFiles(["/tmp/js/a.txt", "/tmp/js/none"]);
  assert.equal(new TextDecoder().decode(text[0].content), "one\n2\nthree\n");
  assert.equal(text[1].error, "file_not_found");
  const uploaded = await sandbox.uploadFiles([["/tmp/js/b.bin", new Uint8Array([0, 255, 7])]]);
  assert.equal(uploaded[0].error, null);
  const found = JSON.stringify(await (sandbox.glob ?? sandbox.globInfo).call(sandbox, "*.txt", "/tmp/js"));
  assert.match(found, /a\.txt/);
  const lines = JSON.stringify(await (sandbox.grep ?? sandbox.grepRaw).call(sandbox, "three", "/tmp/js"));
  assert.match(lines, /three/);
});
