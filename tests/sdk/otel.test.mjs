// OpenTelemetry: one span for each run, and the requests carry the trace.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { realpathSync } from "node:fs";
import test from "node:test";

import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { context, propagation, trace } from "@opentelemetry/api";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { Atoll } from "atoll-sandbox";

test("a run is a span", async () => {
  const spans = new InMemorySpanExporter();
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }));
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator({
    inject: (at, carrier, setter) => {
      const span = trace.getSpanContext(at);
      setter.set(carrier, "traceparent", `00-${span.traceId}-${span.spanId}-01`);
    },
    extract: (at) => at,
    fields: () => ["traceparent"],
  });
  const seen = [];
  const client = new Atoll({
    fetch: (url, init) => {
      seen.push(init.headers.traceparent);
      return fetch(url, init);
    },
  });
  const box = await client.sandboxes.create();
  const done = await box.run("exit 3");
  await box.delete();
  const [span, ...more] = spans.getFinishedSpans();
  assert.equal(more.length, 0);
  assert.equal(span.name, "execute_tool atoll.run");
  assert.equal(span.attributes["gen_ai.operation.name"], "execute_tool");
  assert.equal(span.attributes["gen_ai.tool.call.id"], done.exec.id);
  assert.equal(span.attributes["process.exit.code"], 3);
  assert.ok(seen[1].includes(span.spanContext().traceId));
  assert.equal(seen[0], undefined);
  assert.ok(realpathSync(createRequire(import.meta.url).resolve("atoll-sandbox")).includes("/app/"));
});
