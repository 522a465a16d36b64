"""A page of Prometheus metrics, read back: values, and histograms with their quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ConfigError

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts up to each bound, as Prometheus has them."""

    bounds: tuple[float, ...]
    """Ascending; the last one is infinite."""
    counts: tuple[float, ...]
    """Observations that are not above each bound."""
    sum: float

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float:
        """NaN of nothing."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, share: float) -> float:
        """The value that a share of all observations does not exceed; NaN of nothing.

        Linear within its bucket, and the last finite bound for what is above it: as `histogram_quantile` of Prometheus.
        """
        rank = share * self.count
        if not self.count:
            return math.nan
        index = next(index for index, count in enumerate(self.counts) if count >= rank and count > 0)
        if math.isinf(self.bounds[index]):
            return self.bounds[index - 1] if index else math.nan
        start, before = (self.bounds[index - 1], self.counts[index - 1]) if index else (0.0, 0.0)
        width = self.counts[index] - before
        return start + (self.bounds[index] - start) * ((rank - before) / width if width else 1.0)


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """One look at a server."""

    samples: Samples
    is_counted: frozenset[str]
    """Names whose values only grow, so that two looks have a difference."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.samples)

    def value(self, name: str, /, **labels: str) -> float | None:
        """The sum of all samples with these labels, whatever others they have; None if there is none."""
        wanted = frozenset(labels.items())
        found = [value for (each, its), value in self.samples.items() if each == name and wanted <= its]
        return sum(found) if found else None

    def by_label(self, name: str, label: str, /, **labels: str) -> dict[str, float]:
        """Values by one of their labels."""
        wanted = frozenset(labels.items())
        return {
            dict(its)[label]: value
            for (each, its), value in self.samples.items()
            if each == name and wanted <= its and label in dict(its)
        }

    def histogram(self, name: str) -> Histogram | None:
        """None if the page does not have it whole."""
        buckets = sorted((float(bound), count) for bound, count in self.by_label(f"{name}_bucket", "le").items())
        total = self.value(f"{name}_sum")
        if total is None or not buckets or not math.isinf(buckets[-1][0]):
            return None
        return Histogram(tuple(bound for bound, _ in buckets), tuple(count for _, count in buckets), total)

    def since(self, earlier: MetricsPage) -> MetricsPage:
        """What was counted between two looks; gauges as they are now.

        A counter that fell started again in between, as a server does, and counts from there.
        """

        def grown(key: tuple[str, Labels], value: float) -> float:
            before = earlier.samples.get(key, 0.0) if key[0] in self.is_counted else 0.0
            return value - before if value >= before else value

        return MetricsPage({key: grown(key, value) for key, value in self.samples.items()}, self.is_counted)


def read_page(text: str) -> MetricsPage:
    """Reads Prometheus's text format. Raises ConfigError for anything else."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise ConfigError(f"metrics cannot be read ({error}): pip install 'switchgear[server]'") from error
    samples: dict[tuple[str, Labels], float] = {}
    is_counted: set[str] = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name, frozenset(sample.labels.items())] = sample.value
                if family.type in ("counter", "histogram", "summary"):
                    is_counted.add(sample.name)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"what was read is no page of Prometheus metrics: {error}") from error
    if not samples:
        raise ConfigError("what was read is no page of Prometheus metrics: it has no sample")
    return MetricsPage(samples, frozenset(is_counted))
