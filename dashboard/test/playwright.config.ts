import { defineConfig } from "@playwright/test";

export default defineConfig({
  testDir: ".",
  testMatch: "*.spec.ts",
  // Long enough for a machine on which other tests run at the same time.
  timeout: 300_000,
  expect: { timeout: 60_000 },
  workers: 1,
  reporter: "list",
  outputDir: process.env.DASHBOARD_OUT ?? "../test-results",
  use: {
    viewport: { width: 1280, height: 800 },
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      // The tests run as root, and Chromium does not use its own sandbox for root.
      args: ["--no-sandbox"],
    },
  },
});
