// Puts the build where the program takes it from, compressed as it is sent: crates/http/dashboard/dist. That is committed,
// so that building the program needs no node. With --check it changes nothing and fails when that is not of this build.

import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { brotliCompressSync, brotliDecompressSync, constants, gunzipSync, gzipSync } from "node:zlib";

const from = new URL("dist/", import.meta.url).pathname;
const to = new URL("../crates/http/dashboard/dist/", import.meta.url).pathname;
const files = (root) => readdirSync(root, { recursive: true }).filter((name) => statSync(join(root, name)).isFile());

// Compressors differ from one version of node to the next: what is compared is what comes out.
if (process.argv.includes("--check")) {
  const expected = files(from).flatMap((name) => [`${name}.br`, `${name}.gz`]).sort();
  const current =
    expected.join() === files(to).sort().join() &&
    files(from).every((name) => {
      const content = readFileSync(join(from, name));
      const gzip = gunzipSync(readFileSync(join(to, `${name}.gz`)));
      return content.equals(gzip) && content.equals(brotliDecompressSync(readFileSync(join(to, `${name}.br`))));
    });
  if (!current) {
    console.error("crates/http/dashboard/dist is not of this frontend: run 'npm run embed' in dashboard/ and commit it");
    process.exit(1);
  }
} else {
  rmSync(to, { recursive: true, force: true });
  for (const name of files(from)) {
    const content = readFileSync(join(from, name));
    mkdirSync(dirname(join(to, name)), { recursive: true });
    writeFileSync(join(to, `${name}.gz`), gzipSync(content, { level: 9 }));
    writeFileSync(join(to, `${name}.br`), brotliCompressSync(content, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: content.length } }));
  }
}
