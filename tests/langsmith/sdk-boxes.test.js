// Sandboxes, snapshots, registries and links with the JavaScript SDK: node --test.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import test from "node:test";

import { SandboxClient, hasWs, madeUp, named, raw, since, text, until } from "./sdk.js";

const client = new SandboxClient();

// Runs a test with a sandbox of its own.
const withBox = (work, ...options) => async () => {
  const box = await client.createSandbox(...options);
  try {
    await work(box);
  } finally {
    await client.deleteSandbox(box.id ?? box.name);
  }
};

test("lists, finds, renames", withBox(async (box) => {
  assert.ok((await client.listSandboxes()).some((one) => one.name === box.name));
  assert.equal((await client.getSandbox(box.name)).id, box.id);
  assert.equal((await client.getSandbox(box.id)).name, box.name);
  const name = madeUp();
  await client.updateSandbox(box.name, since(0, 9) ? { newName: name } : name);
  assert.equal((await client.getSandboxStatus(name)).status, "ready");
  assert.equal((await client.waitForSandbox(name)).name, name);
  // The old object still works.
  assert.equal((await box.run("echo on")).stdout, "on\n");
  const other = await client.createSandbox();
  try {
    await assert.rejects(client.updateSandbox(other.name, name), named("LangSmithResourceNameConflictError"));
  } finally {
    await client.deleteSandbox(other.name);
  }
}));

test("what it is made with comes back", async () => {
  const name = madeUp();
  const more = since(0, 12) ? { labels: { thread: name }, runConfig: { work_dir: "/srv", env_vars: { A: "1" } } } : {};
  const box = await client.createSandbox({ name, vCpus: 1, memBytes: 512 << 20, fsCapacityBytes: 1 << 30, idleTtlSeconds: 120, deleteAfterStopSeconds: 600, ...more });
  try {
    assert.deepEqual([box.name, box.status, box.mem_bytes, box.fs_capacity_bytes], [name, "ready", 512 << 20, 1 << 30]);
    assert.deepEqual([box.idle_ttl_seconds, box.delete_after_stop_seconds], [120, 600]);
    if (since(0, 12)) {
      assert.deepEqual(box.labels, { thread: name });
      assert.equal((await box.run('echo "$PWD $A"')).stdout, "/srv 1\n");
      // The client finds a thread's sandbox by its label.
      const again = (await client.listSandboxes()).find((one) => one.labels?.thread === name);
      assert.equal(again.id, box.id);
    }
    assert.equal((await client.updateSandbox(name, { idleTtlSeconds: 0 })).idle_ttl_seconds, 0);
  } finally {
    await client.deleteSandbox(name);
  }
  await assert.rejects(client.getSandbox(name), named("LangSmithResourceNotFoundError"));
});

test("stops, wakes, starts", withBox(async (box) => {
  await box.write("/home/user/file", "kept");
  await client.stopSandbox(box.name);
  assert.equal((await client.getSandboxStatus(box.name)).status, "stopped");
  // The object from before the stop still works: its request wakes the sandbox.
  assert.equal((await box.run("cat /home/user/file")).stdout, "kept");
  const found = await client.getSandbox(box.name);
  await found.stop();
  await found.start();
  assert.equal(found.status, "ready");
  assert.equal(text(await found.read("/home/user/file")), "kept");
  await client.stopSandbox(box.name);
  assert.equal((await client.startSandbox(box.name)).status, "ready");
  assert.equal((await raw("GET", `/v2/sandboxes/boxes/${box.name}`))[1].status, "ready");
}));

test("keeps its memory when asked to", { skip: !since(0, 12) }, withBox(async (box) => {
  await box.run("setsid sleep 4321 >/dev/null 2>&1 & echo");
  const before = (await box.run("pgrep -x sleep")).stdout;
  await box.stop();
  assert.equal((await client.getSandboxStatus(box.name)).status, "stopped");
  assert.equal((await box.run("pgrep -x sleep")).stdout, before);
}, { preserveMemoryOnStop: true }));

test("two clients on one sandbox", withBox(async (box) => {
  const same = await new SandboxClient().getSandbox(box.name);
  const results = await Promise.all([box, same].map((one) => one.run("sleep 0.2; echo done")));
  assert.deepEqual(results.map((result) => result.stdout), ["done\n", "done\n"]);
  await box.write("/tmp/shared", "by one");
  assert.equal(text(await same.read("/tmp/shared")), "by one");
}));

test("snapshots", withBox(async (box) => {
  const name = madeUp();
  await box.write("/home/user/kept", "kept");
  const snapshot = await client.captureSnapshot(box.name, name);
  try {
    assert.deepEqual([snapshot.name, snapshot.status, snapshot.source_sandbox_id], [name, "ready", box.id]);
    for (const args of [[snapshot.id], [name], [{ snapshotName: name }], [`${name}:latest`]]) {
      const copy = await client.createSandbox(...args);
      try {
        assert.equal(text(await copy.read("/home/user/kept")), "kept");
      } finally {
        await client.deleteSandbox(copy.name);
      }
    }
    assert.equal((await client.getSnapshot(snapshot.id)).id, snapshot.id);
    assert.ok((await client.listSnapshots()).some((one) => one.id === snapshot.id));
  } finally {
    await client.deleteSnapshot(snapshot.id);
  }
  await assert.rejects(client.getSnapshot(snapshot.id), named("LangSmithResourceNotFoundError"));
}));

test("a snapshot of an image, one that cannot be had, and a Dockerfile", async (t) => {
  const name = madeUp();
  const snapshot = await client.createSnapshot(name, "host", 1 << 30);
  assert.equal((await client.waitForSnapshot(snapshot.id)).status, "ready");
  await client.deleteSnapshot(name);
  await assert.rejects(client.createSnapshot(name, "127.0.0.1:1/no/where:1", 1 << 30), named("LangSmith"));
  if (since(0, 12)) {
    const place = mkdtempSync(path.join(process.env.TMPDIR ?? "/var/tmp", "atoll-dockerfile-"));
    t.after(() => rmSync(place, { recursive: true }));
    writeFileSync(path.join(place, "Dockerfile"), "FROM scratch\n");
    await assert.rejects(client.createSnapshotFromDockerfile(name, "Dockerfile", 1 << 30, { context: place }), /Docker/);
  }
});

test("registries", { skip: !since(0, 9) }, async () => {
  const name = madeUp();
  const made = await client.registries.create({ name, url: `https://${name}.example.com`, username: "u", password: "sesame" });
  assert.equal(made.name, name);
  assert.ok(!JSON.stringify(await client.registries.list()).includes("sesame"));
  assert.equal((await client.registries.retrieve(name)).url, `${name}.example.com`);
  await client.registries.update(name, { password: "other" });
  await client.registries.delete(name);
  await assert.rejects(client.registries.retrieve(name));
});

test("a link to a file", { skip: !since(0, 9) }, withBox(async (box) => {
  await box.write("/tmp/report.txt", "report");
  const link = await box.generateDownloadURL("/tmp/report.txt", { expiresInSeconds: 60, contentType: "text/plain" });
  const response = await fetch(link.download_url);
  assert.equal(await response.text(), "report");
  await client.stopSandbox(box.name);
  assert.equal((await fetch(link.download_url)).status, 200, "it wakes the sandbox");
}));

const SERVER = "import http.server as h\nh.test(h.SimpleHTTPRequestHandler, h.ThreadingHTTPServer, port=8000, bind='127.0.0.1')\n";

test("a port", { skip: !since(0, 12) }, withBox(async (box) => {
  await box.write("/srv/www/page", "from inside");
  await box.write("/tmp/server.py", SERVER);
  await box.run("cd /srv/www && setsid python3 /tmp/server.py >/dev/null 2>&1 & echo");
  await until("it serves", async () => (await box.run("(echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null")).exit_code === 0);
  const service = await client.serviceUrl(box.name, { port: 8000, expiresInSeconds: 60 });
  assert.equal(await (await service.fetch("/page")).text(), "from inside");
  assert.ok(await service.token() && await service.expiresAt() && (await service.browserUrl()).startsWith("http"));
  assert.equal((await fetch(`${await service.serviceUrl()}/page`)).status, 401);
  await assert.rejects(client.serviceUrl(box.name, { port: 8000, access: "workspace" }), /login/);
}));

test("proxy_config comes back without its secrets", { skip: !since(0, 12) }, withBox(async (box) => {
  const rule = { name: "api", match_hosts: ["api.example.com"], headers: [{ name: "Authorization", type: "opaque", value: "Bearer sesame" }], env_vars: { API: "there" } };
  await client.updateSandbox(box.name, { proxyConfig: { rules: [rule] } });
  const [, answer] = await raw("GET", `/v2/sandboxes/boxes/${box.name}`);
  assert.ok(answer.proxy_config.rules[0].headers[0].is_set && !JSON.stringify(answer).includes("sesame"));
  assert.equal((await box.run("echo $API")).stdout, "there\n");
}));

test("errors have their types", async () => {
  const wrong = new SandboxClient({ apiKey: "wrong" });
  await assert.rejects(wrong.listSandboxes(), named("LangSmithSandboxAuthenticationError"));
  const bad = client.createSandbox({ name: "Not A Name" });
  await assert.rejects(bad, (error) => named("LangSmithValidationError")(error) && error.field === "name");
  await assert.rejects(client.createSandbox(madeUp()), named("LangSmithResourceNotFoundError"));
  for (const call of [() => client.stopSandbox("nobody"), () => client.startSandbox("nobody"), () => client.deleteSandbox("nobody"), () => client.captureSnapshot("nobody", "x")]) {
    await assert.rejects(call(), named("LangSmithResourceNotFoundError"));
  }
});

test("a sandbox that is gone is no missing file", async () => {
  const box = await client.createSandbox();
  await client.deleteSandbox(box.name);
  await assert.rejects(box.read("/etc/passwd"), (error) => error.name !== "LangSmithResourceNotFoundError");
  await assert.rejects(box.run("true"));
});
