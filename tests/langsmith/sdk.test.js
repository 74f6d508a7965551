// Commands and files with the JavaScript SDK: node --test.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import test, { after, before } from "node:test";

import { SandboxClient, hasWs, named, since, text, until } from "./sdk.js";

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

test("variables, a directory, a shell", async () => {
  const result = await box.run('echo "$A $PWD"', { env: { A: "1" }, cwd: "/usr" });
  assert.equal(result.stdout, "1 /usr\n");
  assert.equal((await box.run("echo $0", { shell: "/bin/sh" })).stdout, "/bin/sh\n");
  if (since(0, 12)) {
    const run = await box.run('echo "$A $PWD $(id -un)"', { runConfig: { user: "nobody", work_dir: "/tmp", env_vars: { A: "2" } } });
    assert.equal(run.stdout, "2 /tmp nobody\n");
  }
});

test("streams output to callbacks", { skip: !hasWs }, async () => {
  let out = "";
  let err = "";
  await box.run("for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.1; done", {
    onStdout: (piece) => { out += piece; },
    onStderr: (piece) => { err += piece; },
  });
  assert.deepEqual([out, err], ["1\n2\n3\n", "e1\ne2\ne3\n"]);
});

test("much output is complete", async () => {
  const result = await box.run("seq 1 300000", { timeout: 120 });
  assert.equal(result.stdout.length, 1988895);
});

test("characters stay whole and what is no text is replaced", async () => {
  const result = await box.run("for i in $(seq 20000); do printf 'ä€😀'; done; printf '\\377'");
  assert.equal(result.stdout, "ä€😀".repeat(20000) + "�");
});

test("a background child holds nothing up", async () => {
  assert.equal((await box.run("sleep 1000 & echo done", { timeout: 30 })).stdout, "done\n");
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

test("reconnecting in the middle, at an offset", { skip: !hasWs }, async () => {
  const handle = await box.run("echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo second", { wait: false });
  for await (const chunk of handle) {
    assert.deepEqual([chunk.data, chunk.offset], ["first\n", 0]);
    break;
  }
  const other = await box.reconnect(handle.commandId, { stdoutOffset: "first\n".length });
  await box.write("/tmp/go", "");
  assert.equal((await other.result).stdout, "second\n");
  // After the end the client reads the output from the beginning.
  assert.equal((await (await box.reconnect(handle.commandId)).result).stdout, "first\nsecond\n");
});

test("input that is closed ends what reads it", { skip: !hasWs || !since(0, 12) }, async () => {
  assert.equal((await box.run("cat; echo end", { timeout: 30 })).stdout, "end\n");
});

test("a command ends with its last client, or its idle timeout after that", { skip: !hasWs || !since(0, 9) }, async () => {
  const sdk = JSON.stringify(new URL("./sdk.js", import.meta.url));
  for (const options of [{ killOnDisconnect: true }, { idleTimeout: 1 }]) {
    // This client starts a command and disconnects.
    const program = `import { SandboxClient } from ${sdk};
      const box = await new SandboxClient().getSandbox(${JSON.stringify(box.name)});
      const handle = await box.run("echo $$; exec sleep 1000", { wait: false, ...${JSON.stringify(options)} });
      for await (const chunk of handle) { console.log(chunk.data); process.exit(); }`;
    const { stdout: pid } = spawnSync(process.execPath, ["--input-type=module", "-e", program], { encoding: "utf8" });
    assert.match(pid, /^\d+\s*$/);
    await until("it ends", async () => (await box.run(`kill -0 ${Number(pid)} 2>/dev/null || echo gone`)).stdout === "gone\n");
  }
});

test("a terminal", { skip: !hasWs }, async () => {
  const result = await box.run("stty size; echo $TERM", { pty: true });
  assert.match(result.stdout, /24 80/);
});

test("a timeout", async () => {
  await assert.rejects(box.run("sleep 30", { timeout: 1 }), hasWs && since(0, 9) ? named("Timeout") : undefined);
});

test("files", async () => {
  await box.write("/tmp/deep/file", "grüße");
  assert.equal(text(await box.read("/tmp/deep/file")), "grüße");
  const large = new Uint8Array(10 << 20).map((_, index) => index * 31);
  await box.write("/tmp/large", large);
  assert.deepEqual(Buffer.from(await box.read("/tmp/large")).compare(Buffer.from(large)), 0);
  await assert.rejects(box.read("/tmp/nothing"), named("LangSmithResourceNotFoundError"));
  await assert.rejects(box.read("/tmp"), /directory/);
  await assert.rejects(box.write("/tmp", "x"), named("LangSmithSandboxOperationError"));
  await box.write("relative", "home");
  assert.equal((await box.run("cat /home/user/relative")).stdout, "home");
});

test("parts of files, and searching", { skip: !since(0, 12) }, async () => {
  await box.write("/tmp/s/part.txt", "0123456789");
  const chunk = await box.readRange("/tmp/s/part.txt", { start: 2, end: 4 });
  assert.deepEqual([text(chunk.content), chunk.start, chunk.total_bytes, chunk.partial], ["234", 2, 10, true]);
  const unchanged = await box.readRange("/tmp/s/part.txt", { start: 0, ifNoneMatch: chunk.etag });
  assert.equal(unchanged.unchanged, true);
  assert.equal(text((await box.readRange("/tmp/s/part.txt", { suffixBytes: 2 })).content), "89");
  await assert.rejects(box.readRange("/tmp/s/part.txt", { start: 99 }));
  const stat = await box.stat("/tmp/s/part.txt");
  assert.deepEqual([stat.size_bytes, stat.etag], [10, chunk.etag]);
  assert.equal((await box.glob("*.txt", "/tmp/s")).matches[0].path, "/tmp/s/part.txt");
  assert.equal((await box.ls("/tmp/s")).matches.length, 1);
  const [match] = (await box.grep("345", "/tmp/s", { glob: "*.txt" })).matches;
  assert.deepEqual([match.path, match.line, match.text], ["/tmp/s/part.txt", 1, "0123456789"]);
  await assert.rejects(box.glob("*", "/tmp/no/such"), named("LangSmithResourceNotFoundError"));
});

test("without ws there is no streaming, and the client says so", { skip: hasWs }, async () => {
  await assert.rejects(box.run("echo", { wait: false }));
});
