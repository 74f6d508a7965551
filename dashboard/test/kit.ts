// Fixtures of every dashboard test: a page that is signed in, and that fails the test on an error, a violation of its
// content security policy, or a request to another origin.

import AxeBuilder from "@axe-core/playwright";
import { test as base, expect, type Page } from "@playwright/test";

export { expect };

const api = process.env.ATOLL_URL ?? "";
const authorization = `Bearer ${process.env.ATOLL_API_KEY}`;

/** Makes a link that signs in, as `atoll dashboard` prints it. */
export async function link(): Promise<string> {
  const made = await direct<{ link: string }>("POST", "/v1/dashboard/links");
  return made.link;
}

export const test = base.extend<{ page: Page }, { origin: string }>({
  // Playwright reads the needs of a fixture from these braces. This fixture needs nothing.
  // eslint-disable-next-line no-empty-pattern
  origin: [async ({}, use) => use(new URL(await link()).origin), { scope: "worker" }],
  page: async ({ page, origin }, use) => {
    const problems: string[] = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => {
      if (message.type() === "error" && /Content Security Policy|Uncaught/.test(message.text())) problems.push(message.text());
    });
    page.on("request", (request) => {
      const { origin: to } = new URL(request.url().replace(/^ws/, "http"));
      if (to !== origin && !request.url().startsWith("blob:")) problems.push(`a request to ${request.url()}`);
    });
    await page.goto(await link());
    await use(page);
    expect(problems).toEqual([]);
  },
});

/** Calls the server's API directly with the key, as a client other than the dashboard would. */
export async function direct<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await fetch(api + path, {
    method,
    headers: { authorization, "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  expect(answer.ok, `${method} ${path}: ${answer.status}`).toBe(true);
  return (answer.status === 204 ? undefined : await answer.json()) as T;
}

/** Expects that axe finds no accessibility problem on the page. */
export async function accessible(page: Page): Promise<void> {
  const { violations } = await new AxeBuilder({ page }).analyze();
  expect.soft(violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`)).toEqual([]);
}

/** Expects that the page fits into 1280 and 390 pixels. Saves screenshots in DASHBOARD_SHOTS, if it is set. */
export async function look(page: Page, name: string): Promise<void> {
  const directory = process.env.DASHBOARD_SHOTS;
  for (const width of [1280, 390]) {
    await page.setViewportSize({ width, height: width === 390 ? 844 : 800 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    expect.soft(wide, `${name} at ${width} px`).toBeLessThanOrEqual(width);
    await page.waitForTimeout(200);
    if (directory) await page.screenshot({ path: `${directory}/${name}-${width}.png` });
  }
  await page.setViewportSize({ width: 1280, height: 800 });
}
