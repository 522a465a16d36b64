"""OpenTelemetry spans of a request: its queue, its prefill and its decode, made from its timing once it has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..errors import ConfigError
from .results import Result


class Tracer:
    """Hands spans to the provider that this process was set up with; without one they go nowhere.

    Only the API is needed, and it is imported here, where somebody switched tracing on.
    """

    def __init__(self, model: str) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise ConfigError(
                "[server] tracing needs opentelemetry, which is not installed: pip install 'switchgear[tracing]'"
            ) from None
        self._trace = trace
        self._extract = propagate.extract
        self._tracer = trace.get_tracer("switchgear")
        self._model = model

    def record(self, result: Result, begin: int, headers: Mapping[str, str]) -> None:
        """The spans of an answered prompt. begin: when it was submitted; headers: may name the trace it belongs to."""
        # of several outputs, the first to begin and the last to end
        queue = min(choice.timing.queue for choice in result.choices)
        first = min(choice.timing.ttft for choice in result.choices)
        total = max(choice.timing.total for choice in result.choices)
        request = self._tracer.start_span(
            "request",
            context=self._extract(headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=begin,
            attributes={
                "gen_ai.system": "switchgear",
                "gen_ai.request.model": self._model,
                "switchgear.plan": result.plan_hash,
                "gen_ai.usage.input_tokens": len(result.prompt_token_ids),
                "gen_ai.usage.output_tokens": sum(len(choice.token_ids) for choice in result.choices),
                "gen_ai.response.finish_reasons": [choice.finish_reason for choice in result.choices],
            },
        )
        inside = self._trace.set_span_in_context(request)
        for name, start, end in (("queue", 0.0, queue), ("prefill", queue, first), ("decode", first, total)):
            span = self._tracer.start_span(name, context=inside, start_time=begin + nanoseconds(start))
            span.end(begin + nanoseconds(end))
        request.end(begin + nanoseconds(total))


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def nanoseconds_now() -> int:
    """Since the epoch, as spans are dated."""
    return time.time_ns()
