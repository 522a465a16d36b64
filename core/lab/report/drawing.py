"""The one place that touches matplotlib: how a picture is set up, and how it becomes a file.

The same results make the same bytes: no date, no random identifiers, none of the reader's own matplotlib settings.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ...errors import SwitchgearError
from .palette import INK, MUTED, PAPER, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS_AN_INCH = 72
PNG_DOTS_AN_INCH = 250

FONT_SIZE = 8.5
"""Points. A picture as wide as a phone is drawn at about its own size, so this stays readable there."""
PHONE_WIDTH = 288.0
"""Points: a picture this wide is scaled by little on a screen of 360 pixels."""
MARGIN = 5.0

STYLE: dict[str, Any] = {
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "font.family": ["DejaVu Sans"],
    "font.size": FONT_SIZE,
    "svg.fonttype": "none",
    "svg.hashsalt": "switchgear",
    "text.color": INK,
    "xtick.color": RULE,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": FONT_SIZE - 0.5,
    "xtick.major.size": 3,
    "xtick.minor.visible": False,
}


def check_can_draw() -> None:
    """Raise SwitchgearError where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise SwitchgearError(
            "the pictures of a report need matplotlib, which is not installed: pip install 'switchgear[lab]', or take "
            "--csv, which needs no pictures"
        ) from error


@contextmanager
def styled() -> Iterator[None]:
    """Everything is drawn and saved inside, whatever a reader's own settings are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> Figure:
    """Empty, of a size in points."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / POINTS_AN_INCH, height / POINTS_AN_INCH), facecolor=PAPER)


def add_panel(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in points from the upper left corner, with points down from its own top as y."""
    whole_width, whole_height = figure.get_size_inches() * POINTS_AN_INCH
    place = left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height
    axes = figure.add_axes(place)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.set_facecolor("none")
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    return axes


def add_title(figure: Figure, text: str, left: float = MARGIN) -> None:
    width, height = figure.get_size_inches() * POINTS_AN_INCH
    figure.text(left / width, 1 - 6 / height, text, fontsize=FONT_SIZE + 1.5, fontweight="bold", va="top", ha="left")


def save(figure: Figure, form: Literal["svg", "png"]) -> bytes:
    """The bytes of a file, inside `styled`."""
    buffer = io.BytesIO()
    if form == "svg":
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
        # the text stays text, for readers who have another font too
        return buffer.getvalue().replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, sans-serif")
    figure.savefig(buffer, format="png", dpi=PNG_DOTS_AN_INCH, metadata={"Software": None})
    return buffer.getvalue()
