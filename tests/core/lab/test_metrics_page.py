"""Prometheus pages read back, against the library that writes them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as Written
from switchgear.core.errors import ConfigError
from switchgear.core.lab.metrics_page import Histogram, MetricsPage, read_page

BOUNDS = (0.1, 0.5, 1.0, 5.0)


def page_of(values: list[float]) -> MetricsPage:
    registry = CollectorRegistry()
    histogram = Written("waits_seconds", "Waits.", buckets=BOUNDS, registry=registry)
    for value in values:
        histogram.observe(value)
    return read_page(generate_latest(registry).decode())


@given(st.lists(st.floats(0.0, 5.0), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_real_one(values: list[float], share: float) -> None:
    histogram = page_of(values).histogram("waits_seconds")
    assert histogram is not None
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    bucket = next(index for index, bound in enumerate(BOUNDS) if exact <= bound)
    lower = BOUNDS[bucket - 1] if bucket else 0.0
    assert lower - 1e-9 <= histogram.quantile(share) <= BOUNDS[bucket] + 1e-9
    assert histogram.count == len(values)
    assert histogram.mean == pytest.approx(sum(values) / len(values))


def test_a_quantile_is_linear_in_its_bucket_and_ends_at_the_last_bound() -> None:
    histogram = Histogram((1.0, 2.0, math.inf), (4.0, 8.0, 10.0), 20.0)
    assert [histogram.quantile(share) for share in (0.2, 0.4, 0.6, 0.8, 0.99)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert math.isnan(Histogram((1.0, math.inf), (0.0, 0.0), 0.0).quantile(0.5))
    assert math.isnan(Histogram((1.0, math.inf), (0.0, 0.0), 0.0).mean)


def test_labels_choose_and_what_is_not_there_is_none() -> None:
    registry = CollectorRegistry()
    counter = Counter("outputs", "Outputs.", ("reason",), registry=registry)
    counter.labels("stop").inc(2)
    counter.labels("length").inc(3)
    page = read_page(generate_latest(registry).decode())
    assert page.value("outputs_total") == 5
    assert page.value("outputs_total", reason="stop") == 2
    assert page.by_label("outputs_total", "reason") == {"stop": 2, "length": 3}
    assert page.value("outputs_total", reason="abort") is None
    assert page.value("inputs_total") is None
    assert page.histogram("outputs") is None


def test_two_looks_have_a_difference_in_what_is_counted_alone() -> None:
    registry = CollectorRegistry()
    counter, gauge = Counter("steps", "Steps.", registry=registry), Gauge("usage", "Usage.", registry=registry)
    histogram = Written("waits_seconds", "Waits.", buckets=BOUNDS, registry=registry)
    counter.inc(5)
    gauge.set(0.5)
    histogram.observe(3.0)
    first = read_page(generate_latest(registry).decode())
    counter.inc(2)
    gauge.set(0.75)
    histogram.observe(0.3)
    between = read_page(generate_latest(registry).decode()).since(first)
    assert (between.value("steps_total"), between.value("usage")) == (2, 0.75)
    waits = between.histogram("waits_seconds")
    assert waits is not None
    assert waits.count == 1
    assert waits.mean == pytest.approx(0.3)
    # started again in between, so all that there is came since
    assert first.since(read_page("# TYPE steps counter\nsteps_total 9\n")).value("steps_total") == 5


@pytest.mark.parametrize("text", ["", "<html>not found</html>", "steps_total five", '{"object": "list"}'])
def test_what_is_no_page_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no page of Prometheus metrics"):
        read_page(text)
