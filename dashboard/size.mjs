// Fails the build when what a browser fetches before the first page stands is more than the budget, compressed.
import { readFileSync, readdirSync } from "node:fs";
import { gzipSync } from "node:zlib";

const BUDGET_BYTES = 250 * 1024;
const compressed = (path) => gzipSync(readFileSync(path), { level: 9 }).length;

const html = readFileSync("dist/index.html", "utf8");
const first = ["index.html", ...[...html.matchAll(/(?:src|href)="\/([^"]+)"/g)].map((match) => match[1])];
const total = first.reduce((sum, path) => sum + compressed(`dist/${path}`), 0);
const all = readdirSync("dist/assets").reduce((sum, name) => sum + compressed(`dist/assets/${name}`), 0);

const kib = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`;
console.log(`first load ${kib(total)} compressed (at most ${kib(BUDGET_BYTES)}), all assets ${kib(all)}`);
if (/<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=/i.test(html)) {
  console.error("index.html holds inline script or style, which the content security policy refuses");
  process.exit(1);
}
if (total > BUDGET_BYTES) {
  console.error("the first load is over its budget");
  process.exit(1);
}
