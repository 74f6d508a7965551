"""OpenTelemetry: one span for each run, and the requests carry the trace."""

import httpx
import pytest
from atoll import Atoll
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@pytest.fixture(scope="module")
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def test_a_run_is_a_span(spans):
    seen = []
    with httpx.Client(event_hooks={"request": [seen.append]}) as http, Atoll(http_client=http) as client:
        with client.sandboxes.create() as box:
            spans.clear()
            seen.clear()
            done = box.run("exit 3")
            box.files.exists("/")
    [span] = spans.get_finished_spans()
    assert span.name == "execute_tool atoll.run"
    assert span.attributes["gen_ai.operation.name"] == "execute_tool"
    assert span.attributes["gen_ai.tool.call.id"] == done.exec.id
    assert (span.attributes["process.exit.code"], span.attributes["atoll.sandbox.id"]) == (3, box.id)
    # The requests of the run name its span; other requests name none.
    assert f"{span.context.trace_id:032x}" in seen[0].headers["traceparent"]
    assert "traceparent" not in seen[-1].headers
