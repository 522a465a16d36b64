"""How the time of single requests is spread in every arm: a histogram on a logarithmic axis for each."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...records import FloatArray
from ..analysis import ArmSummary
from . import drawing
from .log_ticks import most
from .palette import BETTER, BROKEN, INK, MUTED, PAPER, RULE, TRACK
from .wording import seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Time = Literal["ttft", "tpot"]

TITLES = {"ttft": "Time to first token of each request", "tpot": "Time per output token of each request"}
TITLE, LINE, HILL, GAP, FOOT = 24.0, 12.0, 22.0, 8.0, 34.0
"""Heights in points: of the title, a line of text, a histogram, what separates rows, and the axis."""
NUM_BINS = 48
HILL_OPACITY = 0.45
LETTERS = 54
MAX_TICKS = 6
ROOM = 0.13
"""Share of the axis from label to label."""
DIGITS = ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 4, 7), (1, 2, 5), (1, 3), (1,))
"""By which the places begin; of each of the first ones there is one in any factor of two."""


def times_of(arm: ArmSummary, time: Time) -> FloatArray:
    """Seconds of the requests that have one above 0: a logarithm has no place for the others."""
    values = np.asarray(arm.ttft if time == "ttft" else arm.tpot, dtype=np.float64)
    return values[np.isfinite(values) & (values > 0)]


def arm_name(arm: ArmSummary, arms: Sequence[ArmSummary]) -> str:
    """With the state of its cache where there are two."""
    return f"{arm.name}, {arm.cache}" if len({each.cache for each in arms}) > 1 else arm.name


def with_times(arms: Sequence[ArmSummary], time: Time) -> list[ArmSummary]:
    return [arm for arm in arms if len(times_of(arm, time))]


def spread_text(times: FloatArray) -> str:
    middle, late = np.percentile(times, [50, 99])
    return f"p50 {seconds_text(middle)}, p99 {seconds_text(late)}"


def distributions(time: Time, arms: Sequence[ArmSummary]) -> Figure:
    """One row for each arm with requests, of which there must be one."""
    rows = with_times(arms, time)
    values = [times_of(arm, time) for arm in rows]
    names = [textwrap.wrap(arm_name(arm, arms), LETTERS, break_on_hyphens=False) for arm in rows]
    spreads = [spread_text(each) for each in values]
    below = [len(name[-1]) + len(words) > LETTERS for name, words in zip(names, spreads, strict=True)]
    num_lines = [len(name) + is_below for name, is_below in zip(names, below, strict=True)]
    body = sum(lines * LINE + HILL + GAP for lines in num_lines)
    figure = drawing.new_figure(drawing.PHONE_WIDTH, TITLE + body + FOOT)
    drawing.add_title(figure, TITLES[time])
    axes = drawing.add_panel(figure, drawing.MARGIN, TITLE, drawing.PHONE_WIDTH - 2 * drawing.MARGIN, body)
    edges = edges_of(np.concatenate(values))
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    places = ticks(edges[0], edges[-1])
    axes.set_xticks(places, [seconds_text(place) for place in places])
    axes.set_xticks([], minor=True)
    at_edge = axes.get_yaxis_transform()
    y = 0.0
    for arm, name, words, each, lines in zip(rows, names, spreads, values, num_lines, strict=True):
        colour = BROKEN if arm.is_broken else INK
        for number, line in enumerate(name):
            axes.text(0, y + LINE * (number + 0.5), line, transform=at_edge, va="center", color=colour)
        y += lines * LINE
        axes.text(1, y - LINE / 2, words, transform=at_edge, ha="right", va="center", color=MUTED)
        base = y + HILL
        axes.axhspan(y + 1, base, color=TRACK, linewidth=0, zorder=0)
        axes.vlines(places, y + 1, base, colors=RULE, linewidth=0.6, zorder=1)
        counts, _ = np.histogram(each, edges)
        heights = base - (HILL - 3) * counts / counts.max()
        fill = BROKEN if arm.is_broken else BETTER
        axes.stairs(heights, edges, baseline=base, fill=True, color=fill, alpha=HILL_OPACITY, linewidth=0, zorder=2)
        middle, late = np.percentile(each, [50, 99])
        axes.vlines(middle, y + 1, base, colors=fill, linewidth=1.8, zorder=3)
        axes.plot(late, base - 4, "D", color=fill, markerfacecolor=PAPER, markersize=4, markeredgewidth=1.2, zorder=4)
        y = base + GAP
    axes.set_xlabel("line: p50; diamond: p99; each histogram to its own peak", labelpad=3)
    return figure


def edges_of(values: FloatArray) -> FloatArray:
    """`[NUM_BINS + 1]` evenly on the logarithm, around all values and at least a factor of two wide."""
    low, high = np.log(values.min()), np.log(values.max())
    widen = max(0.03 * (high - low), (np.log(2) - (high - low)) / 2)
    return np.exp(np.linspace(low - widen, high + widen, NUM_BINS + 1))


def ticks(low: float, high: float) -> list[float]:
    """Round times between the ends."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    families = [[digit * 10.0**decade for decade in decades for digit in digits] for digits in DIGITS]
    return most(families, low, high, MAX_TICKS, ROOM)
