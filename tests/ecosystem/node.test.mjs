// ComputeSDK and the AI SDK, as they are on npm: runs the code of docs/frameworks.md on a real server.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";

/** The module that the page shows below a heading. */
async function recipe(heading) {
  const page = readFileSync(process.env.FRAMEWORKS_PAGE, "utf8");
  const section = page.split(`\n## ${heading}\n`)[1].split("\n## ")[0];
  const [, code] = section.match(/^```ts\n([\s\S]*?)^```$/m);
  const file = `${process.cwd()}/recipe-${heading.toLowerCase().replaceAll(/\W+/g, "-")}.mjs`;
  writeFileSync(file, code);
  return await import(file);
}

test("ComputeSDK's provider for E2B", { timeout: 120_000 }, async () => {
  const { compute, sandbox } = await recipe("ComputeSDK");
  try {
    const done = await sandbox.runCommand("echo out; echo err >&2; exit 3");
    assert.deepEqual([done.stdout.trim(), done.stderr.trim(), done.exitCode], ["out", "err", 3]);
    const shaped = await sandbox.runCommand("sh -c 'pwd; echo $GIVEN'", { cwd: "/tmp", env: { GIVEN: "a b" } });
    assert.equal(shaped.stdout, "/tmp\na b\n");
    await sandbox.filesystem.mkdir("/home/user/d");
    await sandbox.filesystem.writeFile("/home/user/d/a.txt", "written");
    assert.equal(await sandbox.filesystem.readFile("/home/user/d/a.txt"), "written");
    assert.deepEqual((await sandbox.filesystem.readdir("/home/user/d")).map((one) => one.name), ["a.txt"]);
    assert.equal(await sandbox.filesystem.exists("/home/user/d/none"), false);
    const again = await compute.sandbox.getById(sandbox.sandboxId);
    assert.equal((await again.runCommand("cat /home/user/d/a.txt")).stdout, "written");
    assert.ok((await compute.sandbox.list()).some((one) => one.sandboxId === sandbox.sandboxId));
  } finally {
    await sandbox.destroy();
  }
  await assert.rejects(async () => {
    const gone = await compute.sandbox.getById(sandbox.sandboxId);
    if (gone === null) throw new Error("gone");
  });
});

test("an agent of the AI SDK with a sandbox as its tool", { timeout: 120_000 }, async () => {
  const { generateText, stepCountIs } = await import("ai");
  const { MockLanguageModelV2 } = await import("ai/test");
  const { sandbox, shell } = await recipe("AI SDK");
  const usage = { inputTokens: 1, outputTokens: 1, totalTokens: 2 };
  const steps = [
    {
      content: [{ type: "tool-call", toolCallId: "1", toolName: "shell", input: JSON.stringify({ command: "echo $((6*7)); exit 4" }) }],
      finishReason: "tool-calls", usage, warnings: [],
    },
    { content: [{ type: "text", text: "done" }], finishReason: "stop", usage, warnings: [] },
  ];
  const model = new MockLanguageModelV2({ doGenerate: async () => steps.shift() });
  try {
    const result = await generateText({ model, tools: { shell }, stopWhen: stepCountIs(5), prompt: "go" });
    assert.equal(result.text, "done");
    const [answer] = result.steps[0].toolResults;
    assert.deepEqual(answer.output, { stdout: "42\n", stderr: "", exitCode: 4 });
  } finally {
    await sandbox.kill();
  }
});
