"""What Prometheus is told: counts and times of requests from here, the engine's gauges as they come with its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from ..engine.client import EngineClient
from ..plan import EffectivePlan
from .batch_size import EffectiveBatchSize
from .results import Result

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# a second series for each of ours, which says when counting began and nothing else
disable_created_metrics()  # type: ignore[no-untyped-call]

WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
LAGS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds in seconds."""

Stats = Mapping[str, Mapping[str, float]]


class Metrics:
    """The metrics of one server, in a registry of its own. Every label has few values, and no client chooses one."""

    def __init__(self, client: EngineClient) -> None:
        self.registry = registry = CollectorRegistry()
        self.plugin_stats: Stats = {}
        """Every plugin's counters, as last read."""
        self.batch_size = EffectiveBatchSize()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"switchgear_{name}_seconds", text, buckets=buckets, registry=registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"switchgear_{name}", text, labels, registry=registry)

        self.time_to_first_token = histogram(
            "time_to_first_token",
            "From a request's arrival to its first token, tokenising and queueing included.",
            WAITS,
        )
        self.time_per_output_token = histogram(
            "time_per_output_token", "Per token after the first, for each output.", PER_TOKEN
        )
        self.request_seconds = histogram("request", "From a request's arrival to its last token.", WHOLE)
        self.queue_seconds = histogram(
            "request_queue", "From the engine's receipt of a request to its first step.", WAITS
        )
        self.loop_lag = histogram("event_loop_lag", "How late the gateway's event loop woke up.", LAGS)
        self.requests = counter(
            "requests", "HTTP requests that have ended; status 0 was sent to nobody.", ("endpoint", "status")
        )
        self.outputs = counter("outputs", "Outputs that have ended.", ("finish_reason",))
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts, cached ones included.")
        self.cached_tokens = counter("cached_prompt_tokens", "Prompt tokens that were not computed again.")
        self.generated_tokens = counter("generated_tokens", "Tokens generated.")
        self.client_disconnects = counter(
            "client_disconnects", "Clients that left before their answer ended.", ("phase",)
        )
        self.requests_open = Gauge("switchgear_requests_open", "Requests inside the gateway.", registry=registry)
        self._plan = Gauge(
            "switchgear_plan_info",
            "The effective plan; always 1.",
            ("hash", "environment", "version", "model"),
            registry=registry,
        )
        registry.register(EngineCollector(client, self))
        ProcessCollector(registry=registry)

    def page(self) -> bytes:
        """In the text format of Prometheus."""
        return generate_latest(self.registry)

    def show_plan(self, plan: EffectivePlan) -> None:
        self._plan.labels(plan.hash, plan.environment, plan.version, plan.model).set(1)

    def count_request(self, endpoint: str, status: int) -> None:
        self.requests.labels(endpoint, str(status)).inc()

    def count_result(self, result: Result, seconds: float) -> None:
        """Enter a prompt that was answered. seconds: from its arrival here."""
        self.request_seconds.observe(seconds)
        self.queue_seconds.observe(result.timing.queue)
        self.prompt_tokens.inc(len(result.prompt_token_ids))
        self.cached_tokens.inc(result.num_cached_tokens)
        for choice in result.choices:
            self.outputs.labels(choice.finish_reason).inc()
            if not math.isnan(choice.timing.tpot):
                self.time_per_output_token.observe(choice.timing.tpot)


class EngineCollector(Collector):
    """The engine's own numbers, read when somebody asks."""

    def __init__(self, client: EngineClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        gauges = self._client.gauges

        def gauge(name: str, text: str, value: float) -> Metric:
            return GaugeMetricFamily(f"switchgear_{name}", text, value=value)

        def counter(name: str, text: str, value: float) -> Metric:
            return CounterMetricFamily(f"switchgear_{name}", text, value=value)

        yield gauge("requests_running", "Sequences that hold KV.", gauges.num_running)
        yield gauge("requests_waiting", "Sequences in the engine's queue.", gauges.num_waiting)
        yield gauge("requests_held", "Sequences that wait for a ticket.", gauges.num_held)
        yield gauge("kv_usage", "Share of the KV blocks that are in use.", gauges.kv_used / max(1, gauges.kv_total))
        yield gauge("kv_blocks", "KV blocks in the pool.", gauges.kv_total)
        yield gauge(
            "effective_batch_size", "Rows in a step, on average over the last seconds.", self._metrics.batch_size.mean()
        )
        yield gauge("engine_ready", "1 while the engine takes requests.", self._client.state == "ready")
        yield counter("engine_steps", "Steps.", gauges.num_steps)
        yield counter("engine_step_rows", "Rows, summed over all steps.", gauges.step_rows)
        yield counter("engine_step_tokens", "Tokens, summed over all steps.", gauges.step_tokens)
        yield counter("engine_step_seconds", "Time in steps.", gauges.step_seconds)
        yield counter("preemptions", "Sequences that lost their KV and were computed again.", gauges.num_preempted)
        yield counter("engine_restarts", "Times the engine was started again.", gauges.num_restarts)
        yield self._startup()
        yield self._plugins()

    def _startup(self) -> Metric:
        family = GaugeMetricFamily(
            "switchgear_engine_startup_seconds", "What the engine did until it was ready.", labels=("phase",)
        )
        for phase, seconds in self._client.startup.items():
            family.add_metric((phase,), seconds)
        return family

    def _plugins(self) -> Metric:
        family = GaugeMetricFamily(
            "switchgear_plugin", "What each plugin counts, by its own names.", labels=("plugin", "name")
        )
        for plugin, stats in self._metrics.plugin_stats.items():
            for name, value in stats.items():
                family.add_metric((plugin, name), value)
        return family
