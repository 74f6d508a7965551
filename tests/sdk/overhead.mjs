// Measures the time that the TypeScript SDK adds to a call, over raw `fetch`: prints medians in milliseconds.
//     tests/sdk/with-server node overhead.mjs [CALLS]        beside an installed atoll-sandbox
// Each round sends the same request both ways, one after the other, so that other load of the machine affects both.
import { Atoll } from "atoll-sandbox";

const calls = Number(process.argv[2] ?? 1000);
const authorization = `Bearer ${process.env.ATOLL_API_KEY}`;
const median = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1];
const box = await new Atoll().sandboxes.create();
const path = `${process.env.ATOLL_URL}/v1/sandboxes/${box.id}`;
const json = { authorization, "content-type": "application/json" };
const body = JSON.stringify({ argv: ["true"], wait_ms: 30000 });
const cases = {
  get: [async () => (await fetch(path, { headers: { authorization } })).json(), () => box.refresh()],
  run: [async () => (await fetch(`${path}/execs`, { method: "POST", headers: json, body })).json(), () => box.run(["true"])],
};
for (const [name, ways] of Object.entries(cases)) {
  const wall = [[], []];
  const cpu = [[], []];
  for (let round = 0; round < (name === "get" ? calls : calls / 5); round++) {
    for (const [way, ask] of ways.entries()) {
      const used = process.cpuUsage();
      const began = performance.now();
      await ask();
      wall[way].push(performance.now() - began);
      const more = process.cpuUsage(used);
      cpu[way].push((more.user + more.system) / 1000);
    }
  }
  const [raw, sdk] = wall.map(median);
  const [rawCpu, sdkCpu] = cpu.map(median);
  console.log(
    `${name}: raw ${raw.toFixed(3)} ms, SDK ${sdk.toFixed(3)} ms, overhead ${(sdk - raw).toFixed(3)} ms; ` +
      `processor time ${(sdkCpu - rawCpu).toFixed(3)} ms`,
  );
}
await box.delete();
