// Writes dist/licenses.txt: the licences of what is in the build.

import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
const seen = new Set();

function collect(name) {
  if (seen.has(name)) return;
  seen.add(name);
  const inner = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8")).dependencies ?? {};
  Object.keys(inner).forEach(collect);
}
Object.keys(dependencies).forEach(collect);

const texts = [...seen].sort().map((name) => {
  const file = readdirSync(`node_modules/${name}`).find((one) => /^licen[sc]e/i.test(one));
  if (!file) throw new Error(`${name} comes without its licence`);
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  return `${name} ${version}\n\n${readFileSync(`node_modules/${name}/${file}`, "utf8").trim()}\n`;
});
writeFileSync("dist/licenses.txt", texts.join(`\n${"-".repeat(80)}\n\n`));
