/** OpenTelemetry, where `@opentelemetry/api` is installed: one `execute_tool` span for each run, and `traceparent`. */

import type { Span } from "@opentelemetry/api";
import type { Result } from "./results.js";

type Api = typeof import("@opentelemetry/api");

// The name is not written in the import itself, so that bundlers do not demand a package that may be absent.
const NAME = "@opentelemetry/api";
let loading: Promise<Api | null> | undefined;
let loaded: Api | null | undefined;

function load(): Promise<Api | null> {
  loading ??= (import(/* @vite-ignore */ /* webpackIgnore: true */ NAME) as Promise<Api>).then(
    (api) => (loaded = api),
    () => (loaded = null),
  );
  return loading;
}

/** Adds the headers of the current trace to a request's headers, if there is a trace. */
export async function inject(headers: Record<string, string>): Promise<void> {
  const api = loaded === undefined ? await load() : loaded;
  if (api?.trace.getActiveSpan()) api.propagation.inject(api.context.active(), headers);
}

/** Runs `work` in a new span. Its attributes follow OpenTelemetry's conventions for generative AI. */
export async function inToolSpan(sandbox: string, work: () => Promise<Result>): Promise<Result> {
  const api = loaded === undefined ? await load() : loaded;
  if (!api) return work();
  const attributes = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "atoll.run",
    "gen_ai.tool.type": "extension",
    "atoll.sandbox.id": sandbox,
  };
  const inside = async (span: Span): Promise<Result> => {
    try {
      const result = await work();
      // The command and its output stay out of the span: they are the caller's own.
      span.setAttributes({ "gen_ai.tool.call.id": result.exec.id, "atoll.exec.end": result.end });
      if (result.exitCode !== null) span.setAttribute("process.exit.code", result.exitCode);
      return result;
    } catch (error) {
      span.recordException(error as Error);
      span.setStatus({ code: api.SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  };
  return api.trace.getTracer("atoll").startActiveSpan("execute_tool atoll.run", { attributes }, inside);
}
