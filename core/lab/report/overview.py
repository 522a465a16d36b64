"""The main picture: the same switches on several metrics side by side, as wide as a page of a paper."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..analysis import Effect
from ..metrics import METRICS
from . import drawing
from .forest import FOOT, GAP, LINE, TRACK_HEIGHT, draw_interval
from .ratio_axis import limits, set_ratio_axis
from .wording import names_of, short_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 518.0
"""Points: the text width of a page of a paper."""
NAMES_WIDTH = 140.0
LETTERS = 25
BETWEEN = 16.0
NUM_TICKS = 3
MARKER = 4.0


def overview(effects: Mapping[str, Sequence[Effect]]) -> Figure:
    """effects: of each metric, all with one state of the caches."""
    found = {metric: dict(zip(names_of(some), some, strict=True)) for metric, some in effects.items()}
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    lines = [textwrap.wrap(name, LETTERS, break_on_hyphens=False) for name in names]
    heights = [max(len(each) * LINE, TRACK_HEIGHT) + GAP for each in lines]
    width = (WIDTH - NAMES_WIDTH - drawing.MARGIN) / len(effects)
    titles = ["\n".join(textwrap.wrap(short_of(metric), int(width / 5.6))) for metric in effects]
    head = 8 + LINE * max(title.count("\n") + 1 for title in titles)
    body = sum(heights)
    figure = drawing.new_figure(WIDTH, head + body + FOOT)
    middles = [sum(heights[:row]) + (height - GAP) / 2 for row, height in enumerate(heights)]
    for words, middle in zip(lines, middles, strict=True):
        y = 1 - (head + middle) / (head + body + FOOT)
        figure.text(drawing.MARGIN / WIDTH, y, "\n".join(words), va="center", ha="left")
    for column, (metric, title) in enumerate(zip(effects, titles, strict=True)):
        axes = drawing.add_panel(figure, NAMES_WIDTH + column * width, head, width - BETWEEN, body)
        places = set_ratio_axis(axes, *limits(effects[metric]), NUM_TICKS)
        axes.set_title(title, fontsize=drawing.FONT_SIZE, fontweight="bold", loc="left", pad=4)
        axes.set_xlabel(f"{METRICS[metric].better} is better" if metric in METRICS else "", labelpad=2)
        for name, middle in zip(names, middles, strict=True):
            if name in found[metric]:
                draw_interval(axes, found[metric][name], middle, places, MARKER)
    return figure
