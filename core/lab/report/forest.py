"""Forest plots: each effect on one metric as a factor with its interval, on a logarithmic axis around 1.0."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..analysis import Effect
from ..metrics import METRICS
from . import drawing
from .palette import BETTER, INK, MUTED, PAPER, RULE, TRACK, WORSE
from .ratio_axis import limits, set_ratio_axis
from .wording import interval_text, label_of, names_of, verdict_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE, LINE, TRACK_HEIGHT, GAP, GROUP, FOOT = 24.0, 12.0, 13.0, 7.0, 16.0, 34.0
"""Heights in points: of the title, a line of text, the band behind an interval, what separates rows, a heading between
them, and the axis with its words."""
LETTERS = 54
"""Of a line in a picture as wide as a phone."""

CACHE_NAMES = {"cold": "cold cache", "warm": "warm cache", "warm/cold": "warm over cold cache"}


@dataclass(frozen=True, slots=True)
class Row:
    """One effect and the words beside it."""

    effect: Effect
    name: tuple[str, ...]
    """Lines."""
    value: str
    is_value_below: bool
    """Where name and value do not fit into one line."""

    @property
    def num_lines(self) -> int:
        return len(self.name) + self.is_value_below

    @property
    def height(self) -> float:
        return self.num_lines * LINE + TRACK_HEIGHT + GAP


def colour_of(effect: Effect) -> str:
    """Only what is significant has the colour of a verdict."""
    if not effect.is_significant:
        return MUTED
    return {"better": BETTER, "worse": WORSE, "": INK}[verdict_of(effect.metric, effect.ratio)]


def rows_of(effects: Sequence[Effect]) -> list[Row]:
    return [row_of(effect, name) for effect, name in zip(effects, names_of(effects), strict=True)]


def row_of(effect: Effect, name: str) -> Row:
    mark = " *" if effect.is_significant else ""
    value = f"{interval_text(effect)}{mark}"
    lines = tuple(textwrap.wrap(name, LETTERS, break_on_hyphens=False)) or ("",)
    return Row(effect, lines, value, len(lines[-1]) + len(value) > LETTERS)


def forest(metric: str, effects: Sequence[Effect]) -> Figure:
    """All effects on one metric, in a picture as wide as a phone; in groups where caches differ."""
    groups = [(cache, rows_of(list(some))) for cache, some in groupby(effects, lambda effect: effect.cache)]
    has_headings = {cache for cache, _ in groups} != {"cold"}
    body = sum(row.height for _, rows in groups for row in rows) + GROUP * has_headings * len(groups)
    figure = drawing.new_figure(drawing.PHONE_WIDTH, TITLE + body + FOOT)
    drawing.add_title(figure, label_of(metric))
    axes = drawing.add_panel(figure, drawing.MARGIN, TITLE, drawing.PHONE_WIDTH - 2 * drawing.MARGIN, body)
    places = set_ratio_axis(axes, *limits(effects))
    at_edge = axes.get_yaxis_transform()
    y = 0.0
    for cache, rows in groups:
        if has_headings:
            axes.text(0, y + GROUP / 2, CACHE_NAMES.get(cache, cache), transform=at_edge, va="center", color=MUTED)
            y += GROUP
        for row in rows:
            for line in row.name:
                axes.text(0, y + LINE / 2, line, transform=at_edge, ha="left", va="center")
                y += LINE
            y += LINE * row.is_value_below
            weight = "bold" if row.effect.is_significant else "normal"
            colour = colour_of(row.effect)
            words: dict[str, Any] = {"ha": "right", "va": "center", "color": colour, "fontweight": weight}
            axes.text(1, y - LINE / 2, row.value, transform=at_edge, **words)
            draw_interval(axes, row.effect, y + TRACK_HEIGHT / 2, places)
            y += TRACK_HEIGHT + GAP
    axes.set_xlabel(direction_of(metric), labelpad=3)
    return figure


def draw_interval(axes: Axes, effect: Effect, y: float, places: Sequence[float], size: float = 5.5) -> None:
    """A band with its grid, the interval and the estimate: filled where it is significant, hollow where not."""
    half = TRACK_HEIGHT / 2
    axes.axhspan(y - half, y + half, color=TRACK, linewidth=0, zorder=0)
    axes.vlines([place for place in places if place != 1], y - half, y + half, colors=RULE, linewidth=0.6, zorder=1)
    axes.vlines(1, y - half, y + half, colors=INK, linewidth=1.1, zorder=1)
    colour = colour_of(effect)
    if effect.num_blocks > 1:
        left, right = axes.get_xlim()
        low, high = max(effect.low, left), min(effect.high, right)
        axes.hlines(y, low, high, colors=colour, linewidth=2.0, zorder=2)
        for end, is_cut, marker in ((low, effect.low < left, "<"), (high, effect.high > right, ">")):
            if is_cut:
                axes.plot(end, y, marker, color=colour, markersize=5, clip_on=False, zorder=3)
            else:
                axes.vlines(end, y - 3, y + 3, colors=colour, linewidth=1.4, zorder=2)
    face = colour if effect.is_significant else PAPER
    axes.plot(effect.ratio, y, "o", color=colour, markerfacecolor=face, markeredgewidth=1.2, markersize=size, zorder=4)


def direction_of(metric: str) -> str:
    if metric not in METRICS:
        return "with the switch on, over off"
    better = METRICS[metric].better
    return f"with the switch on, over off: {better} is better"
