// The TypeScript SDK against a real server.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import {
  Atoll, AtollError, CodeFailed, CommandFailed, Conflict, InvalidRequest, NotAllowed, NotFound, ServerError, TimedOut, Unreachable, VERSION,
  collected,
} from "atoll-sandbox";
import { local } from "atoll-sandbox/node";

const client = new Atoll();
let box;
before(async () => {
  box = await client.sandboxes.create({ labels: { for: "node" } });
});
after(() => box.delete());

async function all(iterable) {
  const found = [];
  for await (const one of iterable) found.push(one);
  return found;
}

async function until(what) {
  for (let tries = 0; tries < 600; tries++) {
    if (await what()) return;
    await sleep(100);
  }
  assert.fail("it did not come to be");
}

describe("the package", () => {
  test("is the same for require", () => {
    const required = createRequire(import.meta.url)("atoll-sandbox");
    assert.equal(required.VERSION, VERSION);
    assert.equal(typeof required.Atoll, "function");
  });
});

describe("code", () => {
  let coded;
  before(async () => {
    coded = await client.sandboxes.create({ template: "code-interpreter-v1" });
  });
  after(() => coded.delete());

  test("cells remember", async () => {
    assert.equal((await coded.code.run("x = 20")).text, null);
    const seen = [];
    const result = await coded.code.run("print('hi')\nx + 1", { onEvent: (event) => void seen.push(event.kind) });
    assert.deepEqual([result.text, result.stdout, result.state, result.executionCount], ["21", "hi\n", "done", 2]);
    assert.deepEqual([seen[0], seen.at(-1)], ["started", "end"]);
    const [shown] = (await coded.code.run("show(png='aGk=', html='<b>', chart={'type': 'bar'})")).results;
    assert.deepEqual([Buffer.from(shown.png).toString(), shown.html, shown.chart, shown.main], ["hi", "<b>", { type: "bar" }, false]);
    await assert.rejects(coded.code.run("1/0", { check: true }), (error) => error instanceof CodeFailed && error.result.error.name === "ZeroDivisionError");
    assert.equal((await coded.code.run("import time; time.sleep(1000)", { timeoutMs: 300 })).state, "timed_out");
  });

  test("contexts and cells are found again", async () => {
    const context = await coded.code.createContext("mine", { cwd: "/var", env: { A: "a" } });
    const printed = await context.run("import os; print(os.getcwd(), os.environ['A'], os.environ['B'])", { env: { B: "b" } });
    assert.equal(printed.stdout, "/var a b\n");
    assert.ok((await coded.code.contexts()).some((one) => one.info.name === "mine"));
    const cell = await context.start("print('here'); import time; time.sleep(1000)");
    for await (const event of cell.events()) if (event.kind === "stdout") break;
    const again = coded.code.context("mine").cell(cell.id);
    assert.equal((await again.info()).state, "running");
    await again.interrupt();
    const result = await cell.result();
    assert.deepEqual([result.state, result.stdout, result.error.name], ["interrupted", "here\n", "KeyboardInterrupt"]);
    await context.restart();
    await context.remove();
    await assert.rejects(context.run("1"), (error) => error instanceof NotFound && error.code === "context_not_found");
  });
});

describe("commands", () => {
  test("ends and streams are told apart", async () => {
    const done = await box.run("echo out; echo err >&2; exit 3");
    assert.deepEqual([done.stdout, done.stderr, done.exitCode, done.end, done.truncated], ["out\n", "err\n", 3, "exited", false]);
    assert.throws(() => done.check(), CommandFailed);
    await assert.rejects(box.run("false", { check: true }), (error) => error.result.exitCode === 1);
    assert.equal((await box.run(["printf", "%s", "$x"])).stdout, "$x");
    assert.equal((await box.run("sleep 1000", { timeoutMs: 300 })).end, "timed_out");
    assert.equal((await box.run("sleep 1000", { idleTimeoutMs: "300ms" })).end, "idle_timed_out");
    assert.equal((await box.run(["no-such-program"])).exitCode, 127);
    assert.equal((await box.run("pwd; echo $A; id -un", { cwd: "/tmp", env: { A: "ü" }, user: "root" })).stdout, "/tmp\nü\nroot\n");
  });

  test("input, binary and large output", async () => {
    assert.equal((await box.run("cat", { input: "in" })).stdout, "in");
    assert.equal((await box.run("wc -c", { input: new Uint8Array(2_500_000) })).stdout.trim(), "2500000");
    assert.equal((await box.run("exit 4", { input: "x".repeat(2_000_000) })).exitCode, 4);
    const done = await box.run("head -c 2000000 /dev/zero | tr '\\0' x; printf '\\377'");
    assert.equal(done.stdoutBytes.length, 2_000_001);
    assert.equal(done.stdoutBytes.at(-1), 255);
    const cut = await box.run("seq 100000", { maxOutput: 1000 });
    assert.ok(cut.truncated && cut.stdout.length === 1000 && cut.stdout.endsWith("\n100000\n"));
  });

  test("output as it comes, gaps, offsets", async () => {
    const seen = [];
    await box.run("echo a; echo b >&2", { onOutput: (piece) => void seen.push(piece) });
    assert.deepEqual(seen.map((piece) => [piece.type, piece.text]).sort(), [["output", "a\n"], ["output", "b\n"]]);
    const process = await box.start("seq 200000", { keepOutput: 65536 });
    await process.wait();
    const pieces = await all(process.output());
    assert.equal(pieces[0].type, "gap");
    let at = 0;
    for (const piece of pieces) {
      assert.equal(piece.type === "gap" ? piece.start : piece.offset, at);
      at = piece.nextOffset;
    }
    assert.equal(at, Array.from({ length: 200000 }, (_, n) => `${n + 1}\n`).join("").length);
  });

  test("a process is written to, signalled and found again", async () => {
    const process = await box.start(["cat"], { stdin: true });
    await process.write("one ");
    await process.write(new TextEncoder().encode("two\n"));
    const again = box.exec(process.id);
    await assert.rejects(again.wait({ timeoutMs: 100 }), TimedOut);
    await process.closeStdin();
    assert.equal((await process.wait()).exitCode, 0);
    assert.equal((await again.result()).stdout, "one two\n");
    assert.equal((await all(again.output({ since: 4 }))).map((piece) => piece.text).join(""), "two\n");
    await assert.rejects(process.write("x"), Conflict);
    const sleeper = await box.start("trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done");
    for await (const piece of sleeper.output()) if (piece.type === "output") break;
    await sleeper.signal("TERM");
    assert.equal((await sleeper.wait()).exitCode, 7);
    const endless = await box.start("sleep 1000");
    await endless.kill();
    assert.equal((await endless.wait()).end, "killed");
    assert.ok((await box.execs().all()).some((one) => one.id === endless.id));
  });

  test("one key, one run; giving up leaves it alone", async () => {
    const first = await box.start("echo x >> /tmp/once", { idempotencyKey: "job-1" });
    assert.equal((await box.start("echo x >> /tmp/once", { idempotencyKey: "job-1" })).id, first.id);
    await first.wait();
    assert.equal(await box.files.read("/tmp/once"), "x\n");
    const options = { idempotencyKey: "slow", signal: AbortSignal.timeout(200) };
    await assert.rejects(box.run("sleep 1; echo late > /late", options), { name: "TimeoutError" });
    assert.ok((await box.run("sleep 1; echo late > /late", { idempotencyKey: "slow" })).ok);
    assert.equal(await box.files.read("/late"), "late\n");
  });

  test("terminals", async () => {
    const tty = await box.terminal({ cols: 100, rows: 30 });
    void tty.send("stty size; ");
    // While bash waits for a line to be edited, it may put the terminal back to the size that it knows.
    await tty.send("echo do''ne; read line; stty size; echo aga''in; exit 5\n");
    assert.match(await tty.readUntil("done\r\n"), /30 100/);
    await tty.resize(120, 40);
    await tty.send("\n");
    assert.match(await tty.readUntil("again\r\n"), /40 120/);
    await all(tty);
    assert.equal(tty.ended.exitCode, 5);
    await tty.close();
    const other = await box.terminal();
    await other.close();
    assert.equal((await other.process.wait()).end, "killed");
  });
});

describe("sandboxes", () => {
  test("a life", async () => {
    const made = await client.sandboxes.create({
      name: "ts-life", labels: { task: "ts" }, env: { A: "1" }, memory: "256MiB", cpu: 0.5, workdir: "/w", idle: "10m", ttl: "1h",
    });
    assert.equal(made.info.resources.memory_bytes, 256 * 2 ** 20);
    assert.deepEqual([made.name, made.info.idle_timeout_ms, made.info.resources.cpu_millis], ["ts-life", 600_000, 500]);
    assert.equal((await made.run("pwd; echo $A")).stdout, "/w\n1\n");
    assert.equal((await client.sandboxes.get("ts-life")).id, made.id);
    await made.update({ labels: { task: "ts2" } });
    assert.deepEqual((await made.refresh()).labels, { task: "ts2" });
    assert.equal((await made.usage()).execs, 1);
    assert.ok((await made.metrics()).memory_bytes > 0);
    assert.equal((await made.pause()).paused, "frozen");
    assert.ok((await made.run("true")).ok);
    await made[Symbol.asyncDispose]();
    await assert.rejects(made.refresh(), (error) => error instanceof NotFound && error.code === "sandbox_not_found" && !!error.requestId);
    await made.delete();
  });

  test("listings page by themselves", async () => {
    const boxes = [];
    for (let number = 0; number < 3; number++) boxes.push(await client.sandboxes.create({ labels: { set: "ts-pages" } }));
    const listing = client.sandboxes.list({ labels: { set: "ts-pages" }, pageSize: 2 });
    assert.deepEqual((await all(listing)).map((one) => one.id), boxes.map((one) => one.id).reverse());
    assert.equal((await listing.page()).items.length, 2);
    for (const one of boxes) await one.delete();
  });

  test("errors say what is wrong", async () => {
    const cases = [
      [() => client.sandboxes.create({ image: "absent" }), NotFound, "image_not_found"],
      [() => client.sandboxes.create({ name: "No Name" }), InvalidRequest, "invalid_argument"],
      [() => client.sandboxes.get(".."), InvalidRequest, "invalid_argument"],
      [() => client.sandboxes.get("a/b"), NotFound, "sandbox_not_found"],
      [() => new Atoll({ apiKey: "wrong" }).info(), NotAllowed, "unauthorized"],
      [() => new Atoll({ url: "http://127.0.0.1:4", maxRetries: 1 }).sandboxes.create(), Unreachable, "unreachable"],
    ];
    for (const [call, kind, code] of cases) {
      await assert.rejects(call, (error) => error instanceof kind && error instanceof AtollError && error.code === code && !error.mayHaveRun);
    }
  });

  test("snapshots, forks, ways back", async () => {
    const made = await client.sandboxes.create();
    await made.files.write("/root/a", "1");
    const snapshot = await made.snapshot("ts-step");
    const point = await made.checkpoint("before");
    await made.files.write("/root/a", "2");
    assert.ok((await made.diff({ from: point.checkpoint })).changes.some((change) => change.path === "/root/a"));
    const copies = await made.fork(2);
    for (const copy of copies) assert.equal(await copy.files.read("/root/a"), "2");
    await made.rollback(point.checkpoint);
    assert.equal(await made.files.read("/root/a"), "1");
    for (const one of [made, ...copies]) await one.delete();
    const again = await client.sandboxes.create({ snapshot });
    assert.equal(await again.files.read("/root/a"), "1");
    await again.delete();
    assert.ok((await client.snapshots.list().all()).some((one) => one.id === snapshot.id));
    await client.snapshots.delete(snapshot.id);
  });

  test("networks, secrets, volumes, templates, ports", async () => {
    await client.secrets.put("TS_KEY", "v4lue", { hosts: ["api.example.com"] });
    await client.volumes.create("ts-data", "64MiB");
    await client.volumes.write("ts-data", "/a", "before");
    const network = { allow: ["*.example.org:443", "10.1.2.3:5432"], deny: ["bad.example.org"] };
    const made = await client.sandboxes.create({ network, secrets: ["TS_KEY"], volumes: { "/data": "ts-data:ro" } });
    assert.deepEqual(
      made.info.egress.rules.map((rule) => [rule.action, rule.domain ?? rule.cidr]),
      [["deny", "bad.example.org"], ["allow", "*.example.org"], ["allow", "10.1.2.3"], ["allow", "api.example.com"]],
    );
    assert.ok(!(await made.run("env")).stdout.includes("v4lue"));
    assert.equal(await made.files.read("/data/a"), "before");
    await made.update({}, { network: { internet: true } });
    assert.equal(made.info.egress.internet, "on");
    await made.start("python3 -m http.server 8000");
    await until(async () => (await made.ports.list()).some((port) => port.port === 8000));
    assert.match(await made.ports.url(8000, { ttl: "1m" }), /^http/);
    await made.delete();
    await client.volumes.delete("ts-data");
    await client.secrets.delete("TS_KEY");
    const events = [];
    const built = await client.templates.build("ts-app", { dockerfile: "FROM host\nRUN echo x > /x\n", onLog: (event) => events.push(event.type) });
    assert.ok(built.version === 1 && events.includes("end"));
    await assert.rejects(client.templates.build("ts-bad", { steps: [{ from: "host" }, { run: "exit 9" }] }), ServerError);
    await client.templates.delete("ts-app");
    await assert.rejects(client.images.pull("127.0.0.1:9/absent:1"), AtollError);
  });
});

test("files", async () => {
  const files = box.files;
  await files.write("/w/deep/a.txt", "häll", { mode: "0640" });
  assert.equal(await files.read("/w/deep/a.txt"), "häll");
  assert.equal((await files.stat("/w/deep/a.txt")).mode, "0640");
  const large = crypto.getRandomValues(new Uint8Array(60_000));
  const stream = new ReadableStream({ start: (control) => { control.enqueue(large); control.close(); } });
  assert.equal(await files.write("/w/big", stream), 60_000);
  assert.deepEqual(await collected(files.stream("/w/big")), large);
  assert.deepEqual((await files.list("/w")).map((entry) => entry.path).sort(), ["/w/big", "/w/deep"]);
  assert.deepEqual((await files.find("/w", "**/*.txt")).map((entry) => entry.path), ["/w/deep/a.txt"]);
  assert.equal((await files.grep("äll", "/w"))[0].line, 1);
  await files.move("/w/big", "/w/large");
  await files.chmod("/w/large", "0600");
  await files.mkdir("/w/x/y");
  assert.ok((await files.exists("/w/x/y")) && !(await files.exists("/w/none")));
  await files.unpack("/copy", await files.archive("/w"));
  assert.equal(await files.read("/copy/w/deep/a.txt"), "häll");
  await files.remove("/w", { recursive: true });
  await assert.rejects(files.read("/w/large"), NotFound);
  await files.write("/raw", new Uint8Array([255]));
  await assert.rejects(files.read("/raw"), TypeError);
});

describe("connections that break", () => {
  async function cutting(cuts, least, most, seed) {
    const args = [`${import.meta.dirname}/cutter.py`, process.env.ATOLL_URL, cuts, least, most, seed].map(String);
    const child = spawn("python3", args, { stdio: ["pipe", "pipe", "inherit"] });
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const url = (await lines.next()).value.trim();
    const count = async () => {
      child.stdin.write("\n");
      return Number((await lines.next()).value);
    };
    return { client: new Atoll({ url, maxRetries: 50, timeoutMs: 120_000 }), count, close: () => child.kill() };
  }

  for (let seed = 1; seed <= Number(process.env.ATOLL_SEEDS ?? 1); seed++) {
    test(`nothing runs twice, nothing is lost: ${seed}`, async () => {
      const { client: cut, count, close } = await cutting(20, 1, 1500, seed);
      const labels = { cuts: `ts-${seed}` };
      const boxes = [];
      for (let number = 0; number < 4; number++) boxes.push(await cut.sandboxes.create({ labels }));
      assert.equal((await client.sandboxes.list({ labels }).all()).length, 4);
      const wanted = Array.from({ length: 200 }, (_, n) => `${n + 1}\n`).join("");
      for (let number = 0; number < 10; number++) {
        assert.equal((await boxes[0].run(`echo ${number} >> /ran; seq 200`)).stdout, wanted);
      }
      assert.equal(await boxes[0].files.read("/ran"), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
      const cat = await boxes[0].start(["cat"], { stdin: true });
      for (let number = 0; number < 10; number++) await cat.write(`${number}\n`);
      await cat.closeStdin();
      assert.equal((await cat.result()).stdout, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
      for (const one of boxes) await one.delete();
      assert.ok((await count()) > 2);
      close();
    });

    test(`long output is whole: ${seed}`, async () => {
      const { client: cut, count, close } = await cutting(10, 1000, 250_000, seed);
      const process = await (await cut.sandboxes.get(box.id)).start("seq 300000");
      const pieces = await all(process.output());
      let at = 0;
      for (const piece of pieces) {
        assert.equal(piece.offset, at);
        at = piece.nextOffset;
      }
      assert.equal(pieces.map((piece) => piece.text).join(""), Array.from({ length: 300000 }, (_, n) => `${n + 1}\n`).join(""));
      assert.ok((await count()) > 1);
      close();
    });
  }
});

test("a server of one's own", async () => {
  const own = await local();
  const made = await own.sandboxes.create();
  assert.equal((await made.run("echo here")).stdout, "here\n");
  await own.close();
  await assert.rejects(() => new Atoll({ url: own.url, apiKey: "x", maxRetries: 0 }).info(), Unreachable);
  process.env.ATOLL_BIN = "/bin/false";
  await assert.rejects(local(), ServerError);
});
