// Every example of the pages runs, each in a fresh process; `// → text` is the output that the line must print.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { promisify } from "node:util";

const examples = join(import.meta.dirname, "examples");
for (const name of readdirSync(examples).filter((name) => name.endsWith(".mjs"))) {
  test(name, async () => {
    const { stdout } = await promisify(execFile)(process.execPath, [join(examples, name)], { timeout: 120_000 });
    const source = readFileSync(join(examples, name.replace(".mjs", ".ts")), "utf8");
    for (const [, text] of source.matchAll(/\/\/ → (.*)$/gm)) assert.ok(stdout.includes(text), `${text} is not in ${stdout}`);
  });
}
