"""Single effects, for tests of how one is shown."""

from __future__ import annotations

from dataclasses import replace

from switchgear.core.lab.analysis import Effect

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
