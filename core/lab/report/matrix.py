"""The interaction matrix: by which factor two switches together do more than the product of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..analysis import Interaction
from . import drawing
from .palette import BETTER, INK, MUTED, TRACK, WORSE
from .wording import TIMES, label_of, number, verdict_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE, HEAD, ROW, FOOT = 24.0, 16.0, 26.0, 34.0
"""Heights in points: of the title, the numbers above the columns, a row, and the words below."""
CELL = 40.0
NAMES_WIDTH = 138.0
LETTERS = 25
"""Of a name before it is cut."""
STRONGEST = math.log(1.5)
"""The logarithm of a factor at which a cell's colour is full."""
FULL = 0.5
"""Opacity of that colour: text on it stays readable."""


def names_of_all(interactions: Sequence[Interaction]) -> list[str]:
    """In the order in which they come: of a pair, the one that comes later is the row."""
    return list(dict.fromkeys([found.first for found in interactions] + [found.second for found in interactions]))


def matrix(metric: str, interactions: Sequence[Interaction], where: str = "") -> Figure:
    """Interactions on one metric with one state of the cache; a dash instead of a number where none was measured."""
    names = names_of_all(interactions)
    columns = names[:-1]
    width = max(drawing.PHONE_WIDTH, NAMES_WIDTH + CELL * len(columns) + drawing.MARGIN)
    body = HEAD + ROW * len(names)
    figure = drawing.new_figure(width, TITLE + body + FOOT)
    drawing.add_title(figure, f"{label_of(metric)}{where}")
    axes = drawing.add_panel(figure, 0, TITLE, width, body + FOOT)
    axes.set_xlim(0, width)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    for column in range(len(columns)):
        axes.text(NAMES_WIDTH + (column + 0.5) * CELL, HEAD / 2, str(column + 1), ha="center", va="center", color=MUTED)
    found = {frozenset((each.first, each.second)): each for each in interactions}
    for row, name in enumerate(names):
        y = HEAD + row * ROW
        text = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
        axes.text(drawing.MARGIN, y + ROW / 2, f"{row + 1}  {text}", va="center")
        for column, other in enumerate(columns[:row]):
            each = found.get(frozenset((name, other)))
            left = NAMES_WIDTH + column * CELL
            if each is None:
                axes.text(left + CELL / 2, y + ROW / 2, "\N{EN DASH}", ha="center", va="center", color=MUTED)
            else:
                draw_cell(axes, each, left, y)
    words = f"both together, over the product of each alone;\n{TIMES}1: their effects multiply"
    axes.text(drawing.MARGIN, body + 6, words, va="top", color=MUTED, fontsize=drawing.FONT_SIZE - 0.5)
    return figure


def draw_cell(axes: Axes, found: Interaction, left: float, top: float) -> None:
    """Coloured only where it is significant, the stronger the more."""
    from matplotlib.patches import Rectangle

    colour, opacity = TRACK, 1.0
    if found.is_significant:
        colour = {"better": BETTER, "worse": WORSE, "": MUTED}[verdict_of(found.metric, found.ratio)]
        opacity = FULL * min(1.0, 0.2 + 0.8 * abs(math.log(found.ratio)) / STRONGEST)
    place = left + 1, top + 1
    axes.add_patch(Rectangle(place, CELL - 2, ROW - 2, facecolor=colour, alpha=opacity, linewidth=0))
    text = f"{TIMES}{number(found.ratio, 2)}{'*' if found.is_significant else ''}"
    middle = left + CELL / 2, top + ROW / 2
    weight = "bold" if found.is_significant else "normal"
    size = drawing.FONT_SIZE - 0.5
    axes.text(*middle, text, ha="center", va="center", color=INK, fontweight=weight, fontsize=size)
