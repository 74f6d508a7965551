// The JavaScript SDK.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { AlreadyExistsError, ModalClient, NotFoundError, SandboxFilesystemNotFoundError } from "modal";

const modal = new ModalClient();
let app, image, box;

before(async () => {
  app = await modal.apps.fromName("tests-js", { createIfMissing: true });
  image = await modal.images.fromId("im-debian-slim");
  box = await modal.sandboxes.create(app, image, { timeoutMs: 300_000 });
});

after(async () => {
  await box?.terminate();
  modal.close();
});

test("a command", async () => {
  const command = await box.exec(["sh", "-c", "cat; echo err >&2; exit 3"]);
  await command.stdin.writeText("input\n");
  await command.closeStdin();
  assert.equal(await command.stdout.readText(), "input\n");
  assert.equal(await command.stderr.readText(), "err\n");
  assert.equal(await command.wait(), 3);
});

test("bytes, environment, directory", async () => {
  const bytes = await box.exec(["printf", "\\377\\000"], { mode: "binary" });
  assert.deepEqual([...(await bytes.stdout.readBytes())], [255, 0]);
  const more = await box.exec(["sh", "-c", "echo $A; pwd"], { env: { A: "b" }, workdir: "/tmp" });
  assert.equal(await more.stdout.readText(), "b\n/tmp\n");
});

test("files", async () => {
  await box.filesystem.writeText("hello", "/tmp/js/file");
  assert.equal(await box.filesystem.readText("/tmp/js/file"), "hello");
  const names = (await box.filesystem.listFiles("/tmp/js")).map((entry) => entry.name);
  assert.deepEqual(names, ["file"]);
  await assert.rejects(box.filesystem.readText("/tmp/js/none"), SandboxFilesystemNotFoundError);
});

test("from its id, its name, lists, tags", async () => {
  const named = await modal.sandboxes.create(app, image, { name: "js-named", tags: { from: "js" }, timeoutMs: 60_000 });
  assert.equal((await modal.sandboxes.fromId(named.sandboxId)).sandboxId, named.sandboxId);
  assert.equal((await modal.sandboxes.fromName("tests-js", "js-named")).sandboxId, named.sandboxId);
  assert.deepEqual(await named.getTags(), { from: "js" });
  await assert.rejects(modal.sandboxes.create(app, image, { name: "js-named" }), AlreadyExistsError);
  const listed = [];
  for await (const one of modal.sandboxes.list({ appId: app.appId, tags: { from: "js" } })) listed.push(one.sandboxId);
  assert.deepEqual(listed, [named.sandboxId]);
  await named.terminate();
  await assert.rejects(modal.sandboxes.fromName("tests-js", "js-named"), NotFoundError);
});

test("its end", async () => {
  const short = await modal.sandboxes.create(app, image, { command: ["sh", "-c", "exit 7"], timeoutMs: 60_000 });
  assert.equal(await short.wait(), 7);
});

test("a directory is an image", async () => {
  await box.filesystem.writeText("kept", "/project/file");
  const directory = await box.snapshotDirectory("/project");
  await box.mountImage("/elsewhere", directory);
  await box.filesystem.writeText("changed", "/elsewhere/file");
  assert.equal(await box.filesystem.readText("/project/file"), "kept");
  await box.unmountImage("/elsewhere");
  await assert.rejects(box.filesystem.readText("/elsewhere/file"), SandboxFilesystemNotFoundError);
});
