"""OpenTelemetry spans of a request: its queue, its prefill and its decode, made from its timing once it has ended."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ..errors import ConfigError
from .results import Result


class Tracer:
    """Hands spans to the provider that this process was set up with; without one they go nowhere.

    Only the API is needed, and it is imported here, where somebody switched tracing on.
    """

    def __init__(self, plan_hash: str, model: str) -> None:
        if find_spec("opentelemetry") is None:
            raise ConfigError("[server] tracing needs opentelemetry-api, which is not installed: pip install it")
        self._trace: Any = importlib.import_module("opentelemetry.trace")
        self._propagate: Any = importlib.import_module("opentelemetry.propagate")
        self._tracer = self._trace.get_tracer("switchgear")
        self._attributes = {"gen_ai.system": "switchgear", "gen_ai.request.model": model, "switchgear.plan": plan_hash}

    def record(self, result: Result, begin: int, headers: Mapping[str, str]) -> None:
        """The spans of an answered prompt. begin: when it was submitted; headers: may name the trace it belongs to."""
        # of several outputs, the first to begin and the last to end
        queue = min(choice.timing.queue for choice in result.choices)
        first = min(choice.timing.ttft for choice in result.choices)
        total = max(choice.timing.total for choice in result.choices)
        request = self._tracer.start_span(
            "request",
            context=self._propagate.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=begin,
            attributes={
                **self._attributes,
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
