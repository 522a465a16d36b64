"""Single effects, and results with few of them, for tests of how they are shown."""

from __future__ import annotations

from dataclasses import replace

from switchgear.core.lab.analysis import Analysis, Effect

EFFECT = Effect(
    switch="prefix_cache",
    metric="ttft_p50",
    arm="all on",
    against="without prefix_cache",
    cache="cold",
    ratio=0.21,
    low=0.19,
    high=0.24,
    num_blocks=8,
    method="t",
    is_significant=True,
)


def effect(ratio: float, low: float, high: float, metric: str = "ttft_p50", num_blocks: int = 8) -> Effect:
    """Significant if its interval leaves 1 out."""
    is_significant = low > 1 or high < 1
    return replace(
        EFFECT,
        ratio=ratio,
        low=low,
        high=high,
        metric=metric,
        num_blocks=num_blocks,
        is_significant=is_significant,
    )


def only(analysis: Analysis, *metrics: str) -> Analysis:
    """With comparisons on these metrics alone: each has pictures, and a picture takes time to draw."""
    effects = tuple(found for found in analysis.effects if found.metric in metrics)
    interactions = tuple(found for found in analysis.interactions if found.metric in metrics)
    return replace(analysis, effects=effects, interactions=interactions)
