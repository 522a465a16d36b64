"""Did the machine stay the same while a block was measured? One arm, the anchor, is run before, between and after.

The rule: a block is void if the anchor's runs in it lie further apart than the limit, 10 % unless told otherwise, in
one of a few metrics, and also further than three times what is usual here. The usual is a robust standard deviation:
1.4826 times the median distance over the blocks before, once there are five. So a machine that is noisy all the time
keeps its blocks, with intervals as wide as its noise, and one that moves loses those in which it moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

LIMIT = 0.10
METRICS = ("output_tokens_per_s", "e2e_p50", "tpot_p50")
"""Rates and medians: a tail moves by itself. A machine that slows down shows in one of them at any arrival rate."""
NUM_USUAL = 5
"""Blocks before there is something usual."""
NUM_DEVIATIONS = 3.0
NORMAL = 1.4826
"""From a median of absolute values to a standard deviation, of a normal law."""

Metrics = Mapping[str, float]
Spans = Mapping[str, float]


def spans(anchors: Sequence[Metrics]) -> dict[str, float]:
    """Per metric, the largest distance between two of the anchor's runs, as a difference of logarithms."""
    found = {}
    for name in METRICS:
        values = [anchor.get(name, 0.0) for anchor in anchors]
        if min(values) > 0:
            found[name] = math.log(max(values) / min(values))
    return found


def moved(now: Spans, before: Sequence[Spans], limit: float = LIMIT) -> str:
    """Why the block with these spans is void, given those of the blocks before it; empty if it counts."""
    for name, span in now.items():
        earlier = [spans[name] for spans in before if name in spans]
        allowed = math.log1p(limit)
        if len(earlier) >= NUM_USUAL:
            allowed = max(allowed, NUM_DEVIATIONS * NORMAL * median(earlier))
        if span > allowed:
            return (
                f"the anchor's {name} moved by {math.expm1(span):.0%} during the block, the limit is "
                f"{math.expm1(allowed):.0%}"
            )
    return ""
