// A whole story in a real browser with a real sandbox: create, type in the terminal, edit a file, see the timeline.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { accessible, direct, expect, link, look, test } from "./kit";

// A test that fails leaves no sandbox to the next test.
test.afterEach(async () => {
  const { items } = await direct<{ items: { id: string }[] }>("GET", "/v1/sandboxes");
  for (const { id } of items) await direct("DELETE", `/v1/sandboxes/${id}`);
});

test("create, type, edit, look back", async ({ page }) => {
  await page.getByRole("button", { name: "New sandbox" }).click();
  await page.getByRole("textbox", { name: "Name" }).fill("story");
  await page.getByRole("textbox", { name: "Labels" }).fill("team=core");
  await accessible(page);
  await look(page, "create");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { name: "story" })).toBeVisible();
  await expect(page.locator(".top .state")).toHaveText("running");
  await expect(page.getByText("Processor")).toBeVisible();
  await expect(page.locator(".chart canvas")).toHaveCount(4);

  await page.getByRole("link", { name: "Terminal" }).click();
  await page.getByRole("button", { name: "New terminal" }).click();
  await expect(page.getByText("Connected")).toBeVisible();
  await page.locator(".xterm-helper-textarea").focus();
  await page.keyboard.type("cd /root; echo from-the-$((40+2)) | tee typed.txt\n");
  await expect(page.locator(".xterm-accessibility")).toContainText("from-the-42");
  await accessible(page);
  await look(page, "terminal");
  await page.keyboard.type("exit\n");

  await page.getByRole("link", { name: "Files" }).click();
  await page.getByRole("button", { name: "typed.txt", exact: true }).click();
  const text = page.getByLabel("Text of the file");
  await expect(text).toHaveValue("from-the-42\n");
  await text.fill("edited in the browser\n");
  await page.keyboard.press("Control+s");
  await expect(page.getByText("Saved")).toBeVisible();
  await accessible(page);
  await look(page, "editor");
  await page.getByRole("button", { name: "Close" }).click();

  await page.getByRole("link", { name: "Commands" }).click();
  await page.getByLabel("Command to run").fill("cat /root/typed.txt; curl -s http://refused.example; seq 3");
  await page.getByRole("button", { name: "Run" }).click();
  const output = page.getByLabel("Output of the command");
  await expect(output).toContainText("edited in the browser");
  await page.getByPlaceholder("Search the output").fill("BROWSER");
  await expect(page.locator("mark")).toHaveText(["browser"]);
  await accessible(page);
  await look(page, "commands");

  await page.getByRole("link", { name: "Network" }).click();
  await expect(page.getByRole("cell", { name: "refused.example", exact: true })).toBeVisible();
  await accessible(page);
  await look(page, "network");
  await page.getByRole("button", { name: "Allow this" }).click();
  await expect(page.getByText("Only what a rule allows is reached.")).toBeVisible();

  await page.getByRole("link", { name: "Timeline" }).click();
  const tree = page.getByRole("tree");
  await expect(tree.getByRole("treeitem", { name: /^tee typed.txt/ })).toBeVisible();
  await expect(tree.getByRole("treeitem", { name: /^curl/ })).toBeVisible();
  await expect(page.locator(".log .bad").first()).toContainText("refused.example");
  await page.getByRole("button", { name: "Verify" }).click();
  await expect(page.getByText("The journal is as it was written")).toBeVisible();
  await accessible(page);
  await look(page, "timeline");

  await page.getByRole("link", { name: "Overview" }).click();
  await page.getByRole("button", { name: "Checkpoint" }).click();
  await expect(page.getByText("from the dashboard")).toBeVisible();
  await page.waitForTimeout(5_000);
  await accessible(page);
  await look(page, "overview");
  await page.getByRole("button", { name: "Pause" }).click();
  await expect(page.locator(".top .state")).toHaveText("paused");
  // Events of the pause may come after its answer, and lock the buttons for a moment: the list is read again after them.
  await page.waitForResponse((answer) => new URL(answer.url()).pathname === "/v1/sandboxes");
  await expect(page.locator(".top .state")).toHaveText("paused");
  await page.getByRole("button", { name: "Resume" }).click();
  await expect(page.locator(".top .state")).toHaveText("running");
  page.on("dialog", (dialog) => void dialog.accept());
  await page.getByRole("button", { name: "Delete" }).click();
  await expect(page.getByText("No sandboxes yet")).toBeVisible();
});

test("the list is live, filters, and acts on many", async ({ page }) => {
  await expect(page.getByText("No sandboxes yet")).toBeVisible();
  for (const name of ["blue-1", "blue-2", "red-1"]) {
    await direct("POST", "/v1/sandboxes", { name, labels: { colour: name.slice(0, -2) } });
  }
  const rows = page.locator(".row:not(.head)");
  await expect(rows).toHaveCount(3);
  await accessible(page);
  await look(page, "sandboxes");

  await page.keyboard.press("/");
  await page.keyboard.type("colour=blue");
  await expect(rows).toHaveCount(2);
  await page.getByLabel("Choose all that are shown").check();
  await page.getByRole("toolbar").getByRole("button", { name: "Pause" }).click();
  await expect(page.getByText("Paused: 2 of 2")).toBeVisible();
  await page.getByRole("group", { name: "State" }).getByRole("button", { name: "paused" }).click();
  await expect(rows).toHaveCount(2);
  // Another client resumes one of the sandboxes, which then leaves the list of paused ones.
  await direct("POST", "/v1/sandboxes/blue-1/resume");
  await expect(rows).toHaveCount(1);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.getByRole("group", { name: "State" }).getByRole("button", { name: "all" }).click();
  await accessible(page);
  await look(page, "sandboxes-dark");

  await page.keyboard.press("Control+k");
  await expect(page.getByRole("combobox", { name: "Go to" })).toBeFocused();
  await page.keyboard.type("red timeline");
  await accessible(page);
  await look(page, "palette");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "red-1" })).toBeVisible();
  await expect(page.getByRole("heading", { name: "Events" })).toBeVisible();
  for (const name of ["blue-1", "blue-2", "red-1"]) await direct("DELETE", `/v1/sandboxes/${name}`);
});

test("talk to an agent", async ({ page }) => {
  const { id } = await direct<{ id: string }>("POST", "/v1/sandboxes", { name: "home" });
  // The agent repeats the message that it gets. On "ask", it asks for an approval.
  const program = `
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] == "answer": print(json.dumps({"type": "text", "text": "you chose " + told["option"]})); print(json.dumps({"type": "done"}), flush=True)
    if told["type"] != "message": continue
    if told["text"] == "ask": print(json.dumps({"type": "approval", "id": "1", "title": "May I?", "options": [{"id": "yes", "name": "Of course"}]}), flush=True); continue
    for piece in ("heard: ", "<b>" + told["text"] + "</b>"): print(json.dumps({"type": "text", "text": piece}))
    print(json.dumps({"type": "tool", "name": "look"})); print(json.dumps({"type": "done"}), flush=True)
`;
  await direct("POST", "/v1/agents", { name: "echo", sandbox: id, argv: ["python3", "-u", "-c", program], adapter: "jsonl" });
  await page.getByRole("link", { name: "Agents" }).click();
  await page.getByRole("link", { name: "echo" }).click();
  await expect(page.getByText("Nobody has spoken to it yet")).toBeVisible();
  await page.getByRole("button", { name: "New session" }).click();
  const message = page.getByLabel("Message");
  await message.fill("hello");
  await page.keyboard.press("Enter");
  const said = page.getByRole("log", { name: "What was said" });
  await expect(said.getByText("heard: <b>hello</b>")).toBeVisible();
  await expect(said.getByText("tool look")).toBeVisible();
  await expect(message).toHaveValue("");
  await message.fill("ask");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.locator(".output .state")).toHaveText("waiting for approval");
  await accessible(page);
  await look(page, "agent");
  await said.getByRole("button", { name: "Of course" }).click();
  await expect(said.getByText("you chose yes")).toBeVisible();
  await expect(said.getByText("answered: Of course")).toBeVisible();
  await page.reload();
  await expect(said.getByText("you chose yes")).toBeVisible();
  await page.getByRole("link", { name: "Agents" }).click();
  await accessible(page);
  await look(page, "agents");
  await direct("DELETE", "/v1/agents/echo");
});

test("a build is followed to its end", async ({ page }) => {
  const begun = await direct<{ id: string }>("POST", "/v1/builds", {
    name: "counted",
    steps: [{ from: "host" }, { run: "for n in 1 2 3; do echo piece-$n; sleep 1; done" }, { run: "exit 3" }],
  });
  await page.getByRole("link", { name: "Builds" }).click();
  await page.getByRole("link", { name: "counted" }).click();
  const log = page.getByRole("log", { name: "Log of the build" });
  await expect(log).toContainText("piece-3");
  await expect(page.locator(".top .state")).toHaveText("failed");
  await expect(log.locator("p.bad").last()).toContainText("3");
  await accessible(page);
  await look(page, "build");
  await page.goBack();
  await expect(page.getByRole("cell", { name: /^failed/ })).toBeVisible();
  await accessible(page);
  await look(page, "builds");
  expect(begun.id).not.toBe("");
});

test("a secret goes in and does not come out", async ({ page }) => {
  await page.getByRole("link", { name: "Secrets" }).click();
  await page.getByRole("button", { name: "New secret" }).click();
  await page.getByLabel("Name").fill("MODEL_KEY");
  await page.locator("input[type=password]").fill("sk-very-secret");
  await page.getByLabel("Hosts").fill("api.example.com");
  await page.getByLabel("Note").fill("for the tests");
  await accessible(page);
  await look(page, "secret");
  await page.getByRole("button", { name: "Store" }).click();
  await expect(page.getByRole("cell", { name: "api.example.com" })).toBeVisible();
  await page.getByRole("button", { name: "New value" }).click();
  await page.locator("input[type=password]").fill("sk-another-secret");
  await page.getByRole("button", { name: "Store" }).click();
  await expect(page.getByRole("cell", { name: "2", exact: true })).toBeVisible();
  expect(await page.content()).not.toMatch(/sk-(very|another)/);
  await accessible(page);
  await look(page, "secrets-with-one");
  page.on("dialog", (dialog) => void dialog.accept());
  await page.getByRole("button", { name: "Delete" }).click();
  await expect(page.getByText("No secrets.")).toBeVisible();
});

test("what came of what, and all that happened", async ({ page }) => {
  const { id } = await direct<{ id: string }>("POST", "/v1/sandboxes", { name: "first" });
  const take = (of: string, tag: string) => direct<{ id: string }>("POST", `/v1/sandboxes/${of}/snapshots`, { tags: [tag] });
  const base = await take("first", "family:base");
  await take("first", "family:later");
  await direct("POST", "/v1/sandboxes", { name: "second", snapshot: base.id });
  await take("second", "family:child");
  await page.getByRole("link", { name: "Snapshots" }).click();
  await page.getByRole("button", { name: "family" }).click();
  const root = page.locator(".family > li").filter({ hasText: "family:base" });
  await expect(root).toHaveCount(1);
  await expect(root.getByText("family:later")).toBeVisible();
  await expect(root.getByText("family:child")).toBeVisible();
  await expect(root.getByRole("link", { name: "second" })).toBeVisible();
  await accessible(page);
  await look(page, "family");

  await direct("POST", "/v1/sandboxes/second/execs", { argv: ["sh", "-c", "echo an-audited-command"], wait_ms: 20000 });
  await page.getByRole("link", { name: "Audit" }).click();
  const log = page.getByRole("list", { name: "Events, the newest first" });
  await page.getByLabel("Filter events").fill("an-audited");
  await expect(log.getByText("an-audited-command").first()).toBeVisible();
  await page.getByLabel("Filter events").fill(id);
  await expect(log.getByRole("listitem").filter({ hasText: "an-audited" })).toHaveCount(0);
  await expect(log.getByRole("link", { name: id }).first()).toBeVisible();
  await accessible(page);
  await look(page, "audit-of-one");
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export" }).click()]);
  expect(file.suggestedFilename()).toBe("events.jsonl");
  const lines = (await readFile(await file.path(), "utf8")).trim().split("\n");
  expect(lines.every((line) => (JSON.parse(line) as { sandbox: string }).sandbox === id)).toBe(true);
  for (const { id } of (await direct<{ items: { id: string }[] }>("GET", "/v1/sandboxes")).items) await direct("DELETE", `/v1/sandboxes/${id}`);
  for (const { id } of (await direct<{ items: { id: string }[] }>("GET", "/v1/snapshots")).items.reverse()) await direct("DELETE", `/v1/snapshots/${id}`);
});

test("every page opens, and is accessible", async ({ page }) => {
  const names = ["Templates", "Images", "Pools", "Snapshots", "Volumes", "Keys", "Secrets", "Usage", "Audit", "Nodes", "Doctor"];
  for (const name of names) {
    await test.step(name, async () => {
      await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name }).click();
      await expect(page.getByRole("heading", { name })).toBeVisible();
      await expect(page.getByText("Reading…")).toHaveCount(0);
      await expect(page.getByRole("alert")).toHaveCount(0);
      await accessible(page);
      await look(page, name.toLowerCase());
    });
  }
});

test("without a session nothing is shown", async ({ page, origin, context }) => {
  await context.clearCookies();
  await page.goto(origin);
  await expect(page.getByText("You are not signed in here")).toBeVisible();
  await accessible(page);
});

test("a link signs in once, and signing out ends it", async ({ page, origin }) => {
  const other = await page.context().newPage();
  await other.goto(`${origin}/keys`);
  await expect(other.getByRole("heading", { name: "Keys" })).toBeVisible();
  const [cookie, ...more] = await page.context().cookies(origin);
  expect([cookie.name, cookie.httpOnly, cookie.sameSite, cookie.domain]).toEqual(["atoll_console", true, "Strict", new URL(origin).hostname]);
  expect(more).toEqual([]);
  const used = await link();
  await page.goto(used);
  await expect(page).toHaveURL(`${origin}/`);
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByText("You are not signed in here")).toBeVisible();
  await other.reload();
  await expect(other.getByText("You are not signed in here")).toBeVisible();
  await page.goto(used);
  await expect(page.getByRole("heading", { name: "This link does not work" })).toBeVisible();
  await expect(page.getByText("A link works once")).toBeVisible();
});

test("a page of a sandbox cannot use the session", async ({ page, origin }) => {
  const made = await direct<{ id: string }>("POST", "/v1/sandboxes", { name: "hostile" });
  const { port } = new URL(origin);
  const server = "cd /root && echo '<h1>hostile</h1>' > index.html && exec python3 -m http.server 3000";
  await direct("POST", "/v1/sandboxes/hostile/execs", { shell: server });
  await direct("POST", "/v1/sandboxes/hostile/access", { port: 3000, public: true });
  // Stands for a port that `atoll tunnel` forwards to this machine. Browsers send cookies to every port of a host.
  const tunnel = createServer((_, answer) => answer.setHeader("content-type", "text/html").end("<h1>hostile</h1>"));
  await new Promise<void>((done) => tunnel.listen(0, "127.0.0.1", done));
  const shown = (tunnel.address() as AddressInfo).port;
  for (const hostile of [`http://3000-hostile.localhost:${port}/`, `http://console.localhost:${shown}/`]) {
    const inside = await page.context().newPage();
    await expect(async () => {
      await inside.goto(hostile);
      await expect(inside.getByRole("heading", { name: "hostile" })).toBeVisible({ timeout: 1_000 });
    }).toPass();
    const tried = await inside.evaluate(async ([origin, id]) => {
      const ask = (path: string, init: RequestInit) =>
        fetch(origin + path, { credentials: "include", ...init }).then((answer) => answer.status, () => "refused");
      for (const domain of ["", "; Domain=localhost", "; Domain=console.localhost"]) {
        document.cookie = `atoll_console=tossed; Path=/${domain}`;
      }
      return {
        read: await ask("/session", {}),
        blind: await ask(`/v1/sandboxes/${id}`, { method: "DELETE", mode: "no-cors" }).then(() => ask("/v1/sandboxes", {})),
        socket: await new Promise((done) => {
          const socket = new WebSocket(`${origin.replace("http", "ws")}/v1/events`);
          socket.onopen = () => done("open");
          socket.onerror = () => done("refused");
        }),
      };
    }, [origin, made.id]);
    expect(tried, hostile).toEqual({ read: "refused", blind: "refused", socket: "refused" });
    await inside.close();
  }
  tunnel.close();
  // The sandbox is still there, and the session still works.
  await direct("GET", `/v1/sandboxes/${made.id}`);
  await page.goto(`${origin}/sandboxes/hostile`);
  await expect(page.getByRole("heading", { name: "hostile" })).toBeVisible();
  await direct("DELETE", "/v1/sandboxes/hostile");
});
