// Takes the TypeScript examples out of the pages, as modules that are checked, and as tests that run them:
// node examples.mjs ROOT TARGET COMPILER
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [root, target, compiler] = process.argv.slice(2);
const ts = (await import(compiler)).default;
let count = 0;
for (const page of ["sdk/typescript/README.md", "docs/sdk-typescript.md"]) {
  const text = readFileSync(join(root, page), "utf8");
  for (const match of text.matchAll(/^```ts\n([\s\S]*?)^```$/gm)) {
    const line = text.slice(0, match.index).split("\n").length;
    const name = `${page.split("/").slice(-2).join("-").replace(".md", "")}-${line}`;
    writeFileSync(join(target, `${name}.ts`), match[1]);
    const options = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 };
    writeFileSync(join(target, `${name}.mjs`), ts.transpileModule(match[1], { compilerOptions: options }).outputText);
    count++;
  }
}
if (count < 8) throw new Error(`only ${count} examples`);
