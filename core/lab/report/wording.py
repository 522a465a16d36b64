"""How the report says a number: factors with their intervals, seconds, counts, and the names of metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..analysis import Effect, Interaction
from ..contrasts import CACHE
from ..metrics import METRICS

TIMES = "\N{MULTIPLICATION SIGN}"

HEADLINE = ("output_tokens_per_s", "goodput", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50", "e2e_p99")
"""What a reader asks for first, in this order. All others are shown too, further down."""

SHORT = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "gap between tokens",
    "e2e": "end-to-end time",
    "queue_wait": "wait in the queue",
}
UNITS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "\N{MICRO SIGN}s"))
"""The least number of seconds that each is for, how many make one second, and its sign."""


def label_of(metric: str) -> str:
    """As a heading. A metric that this version does not know stands under its own name."""
    return METRICS[metric].label if metric in METRICS else metric


def short_of(metric: str) -> str:
    """In a sentence or a column."""
    kind, _, statistic = metric.rpartition("_")
    return f"{SHORT[kind]} {statistic}" if kind in SHORT else label_of(metric)


def in_order(metrics: Iterable[str]) -> list[str]:
    """Each once: those of the headline, then the others in the order of `METRICS`, then the unknown."""
    names = list(dict.fromkeys(metrics))
    known = [*HEADLINE, *METRICS]
    return sorted(names, key=lambda name: known.index(name) if name in known else len(known))


def verdict_of(metric: str, ratio: float) -> str:
    """ "better" or "worse"; empty of a metric of which nobody knows, and of no change."""
    if metric not in METRICS or ratio == 1:
        return ""
    return "better" if (ratio > 1) == (METRICS[metric].better == "higher") else "worse"


def name_of(effect: Effect) -> str:
    """Of what was switched; a warm cache is one thing in each arm. An option's name goes without its first part."""
    if effect.switch == CACHE:
        return f"{CACHE}, {effect.arm.removesuffix(', warm')}"
    return effect.switch.replace("plugins.", "") if is_option(effect) else effect.switch


def is_option(effect: Effect) -> bool:
    """Whether an option was varied, and no plugin switched."""
    return "=" in effect.switch


def names_of(effects: Sequence[Effect]) -> list[str]:
    """As `name_of`, with the arms wherever a name alone would stand for two comparisons."""
    names = [name_of(effect) for effect in effects]
    keys = [(name, effect.cache) for name, effect in zip(names, effects, strict=True)]
    return [
        f"{name} ({effect.arm} over {effect.against})" if keys.count(key) > 1 else name
        for name, key, effect in zip(names, keys, effects, strict=True)
    ]


def interval_text(found: Effect | Interaction) -> str:
    """Such as `x0.21 (0.19 to 0.24)`, with as many decimals as the interval is narrow."""
    if found.num_blocks < 2 or not math.isfinite(found.high):
        return f"{TIMES}{number(found.ratio, 2)} (one block: no interval)"
    decimals = decimals_for(found)
    low, high = number(found.low, decimals), number(found.high, decimals)
    return f"{TIMES}{number(found.ratio, decimals)} ({low} to {high})"


def decimals_for(found: Effect | Interaction) -> int:
    """So many that the ends differ, and that a significant one does not end at 1 when rounded; two to four."""
    width = found.high - found.low
    wanted = max(2, min(4, math.ceil(-math.log10(width)))) if width > 0 else 3
    while found.is_significant and wanted < 4 and 1.0 in (round(found.low, wanted), round(found.high, wanted)):
        wanted += 1
    return wanted


def number(value: float, decimals: int) -> str:
    """A factor. Far from 1 in either direction decimals would say nothing, or all there is."""
    if value >= 100:
        return f"{value:,.0f}" if value < 1e6 else f"{value:.0e}"
    return f"{value:.1g}" if 0 < value < 0.01 else f"{value:.{decimals}f}"


def seconds_text(seconds: float) -> str:
    """Three digits in the unit that fits: `1.25 s`, `108 ms`, `35 us`."""
    _, scale, unit = next((each for each in UNITS if abs(seconds) >= each[0]), UNITS[-1 if seconds else 0])
    return f"{three_digits(seconds * scale)} {unit}"


def three_digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def value_text(metric: str, value: float) -> str:
    """A metric's value with its unit, where it has one."""
    unit = METRICS[metric].unit if metric in METRICS else ""
    if unit == "s":
        return seconds_text(value)
    if unit == "share":
        return f"{100 * value:.1f} %"
    return three_digits(value)


def listed(items: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def counted(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"
