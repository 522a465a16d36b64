"""The metrics of a run, each with one definition for every target, and the sums that make them.

A request's times begin when it was due, not when a lagging client sent it. Percentiles interpolate linearly between the
two nearest values. Failed requests count as errors and nowhere else, but for the share that meets an objective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from ..records import FloatArray
from .objective import Objective
from .served import UNKNOWN, Served

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a run."""

    name: str
    label: str
    unit: str
    """`s`, `tokens/s`, `requests/s`, `share`, `price`, or nothing where it is a count."""
    better: Better


def spread(name: str, label: str, *statistics: str) -> list[Metric]:
    """A time of each request, once for each statistic of it."""
    return [Metric(f"{name}_{statistic}", f"{label}, {statistic}", "s", "lower") for statistic in statistics]


PERCENTILES = ("p50", "p90", "p99")

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("output_tokens_per_s", "output tokens a second", "tokens/s", "higher"),
        Metric("total_tokens_per_s", "prompt and output tokens a second", "tokens/s", "higher"),
        Metric("requests_per_s", "requests a second", "requests/s", "higher"),
        Metric("goodput", "requests a second that meet the objective", "requests/s", "higher"),
        Metric("attainment", "share of requests that meet the objective", "share", "higher"),
        *spread("ttft", "time to first token", "mean", *PERCENTILES),
        *spread("tpot", "time per output token", "mean", *PERCENTILES),
        *spread("itl", "gap between tokens", *PERCENTILES, "max"),
        *spread("e2e", "end to end", "mean", *PERCENTILES),
        *spread("queue_wait", "wait in the queue", "p50", "p99"),
        Metric("batch_size", "rows in a step", "", "higher"),
        Metric("kv_residency", "share of the KV pool in use", "share", "higher"),
        Metric("prefix_hit_rate", "share of prompt tokens not computed again", "share", "higher"),
        Metric("acceptance_rate", "share of drafts accepted", "share", "higher"),
        Metric("preemptions", "preemptions", "", "lower"),
        Metric("errors", "failed requests", "", "lower"),
        Metric("seconds", "duration", "s", "lower"),
        Metric("client_cpu_seconds", "CPU time of the client", "s", "lower"),
        Metric("cost_per_million_tokens", "price of a million output tokens", "price", "lower"),
    )
}
"""By name, in the order in which they are shown."""

EXTRAS = ("batch_size", "kv_residency", "prefix_hit_rate", "acceptance_rate", "preemptions", "client_cpu_seconds")
"""What a target may know beside its answers."""


def summarise(
    served: Sequence[Served],
    seconds: float,
    extras: Mapping[str, float] | None = None,
    objective: Objective | None = None,
    price_per_hour: float | None = None,
) -> dict[str, float]:
    """Every metric of `METRICS` that can be known of these answers, in its order; what cannot be is left out.

    seconds: from the start to the last answer. extras: of the names in `EXTRAS`. price_per_hour: of the machine, in any
    currency.
    """
    answered = [one for one in served if not one.error]
    num_output = sum(one.num_output for one in answered)
    found: dict[str, float] = {"errors": len(served) - len(answered), "seconds": seconds}
    if seconds > 0:
        found["output_tokens_per_s"] = num_output / seconds
        found["total_tokens_per_s"] = (num_output + sum(one.num_prompt for one in answered)) / seconds
        found["requests_per_s"] = len(answered) / seconds
        if objective is not None:
            found["goodput"] = sum(map(objective.is_met, served)) / seconds
    if objective is not None and served:
        found["attainment"] = objective.attainment(served)
    if price_per_hour is not None and num_output:
        found["cost_per_million_tokens"] = price_per_hour / 3600 * seconds / num_output * 1e6
    for name, values in times(answered).items():
        found |= statistics(name, values)
    if (hit_rate := prefix_hit_rate(answered)) is not None:
        found["prefix_hit_rate"] = hit_rate
    found |= {name: value for name, value in (extras or {}).items() if name in EXTRAS}
    return {name: float(found[name]) for name in METRICS if name in found}


def times(answered: Sequence[Served]) -> dict[str, FloatArray]:
    """Per kind of time, the values that are known."""
    values = {
        "ttft": [one.ttft for one in answered],
        "tpot": [one.tpot for one in answered],
        "itl": [gap for one in answered for gap in gaps(one)],
        "e2e": [one.end_to_end for one in answered],
        "queue_wait": [one.queue_wait for one in answered],
    }
    known = {name: np.array(each, dtype=np.float64) for name, each in values.items()}
    return {name: each[~np.isnan(each)] for name, each in known.items()}


def gaps(served: Served) -> list[float]:
    """Seconds between one moment at which tokens came and the next: what a reader of the stream waits for."""
    moments = sorted(set(served.token_times))
    return [after - before for before, after in pairwise(moments)]


def statistics(name: str, values: FloatArray) -> dict[str, float]:
    """Those that `METRICS` names, of at least one value."""
    if not len(values):
        return {}
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    everything = {"mean": values.mean(), "p50": p50, "p90": p90, "p99": p99, "max": values.max()}
    named = {f"{name}_{statistic}": float(value) for statistic, value in everything.items()}
    return {metric: value for metric, value in named.items() if metric in METRICS}


def prefix_hit_rate(answered: Sequence[Served]) -> float | None:
    """Cached prompt tokens over prompt tokens, of the requests whose target says how many were cached."""
    known = [one for one in answered if one.num_cached != UNKNOWN]
    num_prompt = sum(one.num_prompt for one in known)
    return sum(one.num_cached for one in known) / num_prompt if num_prompt else None
