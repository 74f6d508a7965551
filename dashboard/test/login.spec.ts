// People log in at an OpenID provider: in the browser with a code, on the command line with a device code.

import { spawn } from "node:child_process";
import { request } from "node:http";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test, type Page } from "@playwright/test";
import { accessible, direct, link, look } from "./kit";

const api = process.env.ATOLL_URL ?? "";
const program = process.env.ATOLL_BIN ?? "atoll";

// Directories of people on the command line: logins are in them.
const homes: string[] = [];

function newHome(): string {
  const home = mkdtempSync(join(tmpdir(), "atoll-login-"));
  homes.push(home);
  return home;
}

test.afterEach(() => {
  for (const home of homes.splice(0)) rmSync(home, { recursive: true, force: true });
});

interface Key {
  id: string;
  name: string;
  scope: string;
  person?: { issuer: string; subject: string; email: string | null; allowed: boolean };
}

/** Fills in the provider's login and consent pages, until it sends the browser on. */
async function atIssuer(page: Page, name: string): Promise<void> {
  await page.locator("input[name=login]").fill(name);
  await page.locator("input[name=password]").fill("any");
  await page.getByRole("button", { name: "Sign-in" }).click();
  await page.getByRole("button", { name: "Continue" }).click();
}

async function signIn(page: Page, name: string): Promise<void> {
  const { origin } = new URL(await link());
  await page.goto(origin);
  await page.getByRole("link", { name: "Log in with Example" }).click();
  await atIssuer(page, name);
  await page.waitForURL(`${origin}/**`);
}

async function people(): Promise<Key[]> {
  return (await direct<{ items: Key[] }>("GET", "/v1/keys")).items.filter((key) => key.person);
}

/** Runs `atoll` with an empty configuration. Returns its output and its exit code. */
function cli(home: string, ...args: string[]) {
  const { ATOLL_API_KEY: _key, ATOLL_URL: _url, ...env } = process.env;
  const child = spawn(program, args, { env: { ...env, HOME: home, XDG_CONFIG_HOME: home }, stdio: ["ignore", "pipe", "pipe"] });
  const said = { text: "" };
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (bytes) => (said.text += bytes));
  const ended = new Promise<number | null>((resolve) => child.on("close", resolve));
  return { said, ended };
}

test("a person signs in, is who they are, and is signed out by an administrator", async ({ page }) => {
  await page.goto(new URL(await link()).origin);
  await expect(page.getByRole("link", { name: "Log in with Example" })).toBeVisible();
  await accessible(page);
  await look(page, "signed-out");
  await signIn(page, "ann");
  await expect(page.getByRole("heading", { name: "Sandboxes" })).toBeVisible();
  const [ann] = await people();
  expect(ann).toMatchObject({ name: "ann@example.com", scope: "manage", person: { subject: "ann", email: "ann@example.com", allowed: true } });
  // The person owns the sandbox that they make, and the journal names the person.
  const made = await page.evaluate(async () => {
    const { csrf } = (await (await fetch("/session")).json()) as { csrf: string };
    const headers = { "x-atoll-csrf": csrf, "content-type": "application/json" };
    return (await (await fetch("/v1/sandboxes", { method: "POST", headers, body: "{}" })).json()) as { id: string; owner: string };
  });
  expect(made.owner).toBe(ann!.id);
  const journal = await direct<{ items: { call?: { subject?: string; email?: string } }[] }>("GET", `/v1/sandboxes/${made.id}/events?kind=call`);
  expect(JSON.stringify(journal)).toContain("ann@example.com");
  // A person of this scope may not list keys.
  expect(await page.evaluate(async () => (await fetch("/v1/keys")).status)).toBe(403);
  await direct("DELETE", `/v1/keys/${ann!.id}/logins`);
  expect(await page.evaluate(async () => (await fetch("/v1/sandboxes")).status)).toBe(401);
  await page.reload();
  await expect(page.getByText("You are not signed in here")).toBeVisible();
  // The person who logs in again has the same key as before.
  await page.getByRole("link", { name: "Log in with Example" }).click();
  await expect(page.getByRole("heading", { name: "Sandboxes" })).toBeVisible();
  expect((await people()).map((key) => key.id)).toEqual([ann!.id]);
  expect(await page.evaluate(async () => (await fetch("/v1/sandboxes")).status)).toBe(200);
  await direct("DELETE", `/v1/sandboxes/${made.id}`);
});

test("nobody comes in whom no rule names", async ({ page }) => {
  await signIn(page, "eve");
  await expect(page.getByText("no rule lets eve in")).toBeVisible();
  expect((await page.context().cookies()).map((cookie) => cookie.name)).not.toContain("atoll_console");
  expect((await people()).map((key) => key.name)).not.toContain("eve");
});

test("signing out ends the login everywhere", async ({ page }) => {
  await signIn(page, "bob");
  await expect(page.getByRole("heading", { name: "Sandboxes" })).toBeVisible();
  const cookies = await page.context().cookies();
  const session = cookies.find((cookie) => cookie.name === "atoll_console")!;
  expect(session).toMatchObject({ httpOnly: true, sameSite: "Strict", path: "/" });
  expect(cookies.map((cookie) => cookie.name)).not.toContain("atoll_login");
  // The API does not accept the session cookie as a key.
  const shown = await fetch(`${api}/v1/sandboxes`, { headers: { authorization: `Bearer ${session.value}` } });
  expect(shown.status).toBe(401);
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByText("You are not signed in here")).toBeVisible();
  await page.context().addCookies([session]);
  await page.reload();
  await expect(page.getByText("You are not signed in here")).toBeVisible();
});

test("a login is this browser's, and no other page begins or ends it", async ({ page, browser }) => {
  const { origin } = new URL(await link());
  await page.goto(origin);
  // The address with which the issuer sends the browser back.
  let back = "";
  page.on("request", (asked) => {
    if (asked.url().includes("/login/oidc/callback")) back = asked.url();
  });
  await signIn(page, "ann");
  await expect(page.getByRole("heading", { name: "Sandboxes" })).toBeVisible();
  expect(back).toContain("code=");
  const other = await browser.newContext();
  const stolen = await other.newPage();
  expect((await stolen.goto(back))!.status()).toBe(401);
  expect((await other.cookies()).map((cookie) => cookie.name)).not.toContain("atoll_console");
  await other.close();
  // The code was used: the same browser cannot use it again either, and the session that it opened goes on.
  expect((await page.goto(back))!.status()).toBe(401);
  await page.goto(origin);
  await expect(page.getByRole("heading", { name: "Sandboxes" })).toBeVisible();
  const begun = (headers: Record<string, string>, method = "GET") =>
    new Promise<number | undefined>((resolve, fail) => {
      const { hostname, port } = new URL(api);
      const all = { host: new URL(origin).host, ...headers };
      request({ hostname, port, method, path: "/login/oidc", headers: all }, (answer) => {
        answer.resume();
        resolve(answer.statusCode);
      })
        .on("error", fail)
        .end();
    });
  expect(await begun({ "sec-fetch-site": "same-origin" })).toBe(303);
  for (const foreign of [{ "sec-fetch-site": "cross-site" }, { "sec-fetch-site": "same-site" }, { "sec-purpose": "prefetch" }]) {
    expect(await begun(foreign)).toBe(403);
  }
  expect(await begun({}, "POST")).toBe(405);
});

test("a person logs in on the command line, and out", async ({ page }) => {
  const home = newHome();
  const login = cli(home, "login", api, "--oidc");
  await expect.poll(() => login.said.text).toMatch(/or open \S+/);
  await page.goto(/or open (\S+)/.exec(login.said.text)![1]!);
  await page.getByRole("button", { name: "Continue" }).click();
  await atIssuer(page, "ann");
  expect(await login.ended, login.said.text).toBe(0);
  expect(login.said.text).toContain("logged in as ann@example.com");
  const run = cli(home, "run", "--image", "host", "--", "echo", "by a person");
  expect(await run.ended, run.said.text).toBe(0);
  expect(run.said.text).toContain("by a person");
  const forbidden = cli(home, "key", "ls");
  expect(await forbidden.ended).not.toBe(0);
  const out = cli(home, "logout");
  expect(await out.ended, out.said.text).toBe(0);
  expect(out.said.text).toContain("the login has ended");
});

test("a login that an administrator ended says what to do", async ({ page }) => {
  const home = newHome();
  const login = cli(home, "login", api, "--oidc");
  await expect.poll(() => login.said.text).toMatch(/or open \S+/);
  await page.goto(/or open (\S+)/.exec(login.said.text)![1]!);
  await page.getByRole("button", { name: "Continue" }).click();
  await atIssuer(page, "ann");
  expect(await login.ended, login.said.text).toBe(0);
  const ann = (await people()).find((key) => key.name === "ann@example.com")!;
  await direct("DELETE", `/v1/keys/${ann.id}/logins`);
  const late = cli(home, "ls");
  expect(await late.ended).not.toBe(0);
  expect(late.said.text).toContain("atoll login --oidc");
});
