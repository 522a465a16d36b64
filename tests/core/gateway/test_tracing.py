from __future__ import annotations

import sys

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.gateway.results import Choice, Result, Timing
from switchgear.core.gateway.tracing import Tracer

BEGIN = 1_700_000_000_000_000_000
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMING = Timing(queue=0.5, ttft=1.5, tpot=0.25, total=2.0)
RESULT = Result("r", (1, 2, 3), (Choice(0, (7, 8, 9), "", "stop", None, TIMING),), "cafe")


def test_the_spans_of_a_request_follow_its_timing() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    Tracer("tiny").record(RESULT, BEGIN, {"traceparent": PARENT})

    spans = {span.name: span for span in exporter.get_finished_spans()}
    seconds = {name: ((span.start_time or 0) - BEGIN, (span.end_time or 0) - BEGIN) for name, span in spans.items()}
    assert seconds == {
        "queue": (0, 500_000_000),
        "prefill": (500_000_000, 1_500_000_000),
        "decode": (1_500_000_000, 2_000_000_000),
        "request": (0, 2_000_000_000),
    }
    request = spans.pop("request")
    context = request.get_span_context()
    assert context is not None
    assert {span.parent.span_id for span in spans.values() if span.parent} == {context.span_id}
    assert request.parent is not None and f"{request.parent.trace_id:032x}" == PARENT.split("-")[1]
    assert request.attributes is not None
    assert request.attributes["switchgear.plan"] == "cafe"
    assert request.attributes["gen_ai.usage.input_tokens"] == request.attributes["gen_ai.usage.output_tokens"] == 3


def test_tracing_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"needs opentelemetry, .*switchgear\[tracing\]"):
        Tracer("tiny")
