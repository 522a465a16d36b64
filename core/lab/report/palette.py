"""The colours of page and pictures, by what they stand for, in daylight and in the dark.

Pictures are drawn in the colours of daylight. Inside the page each of them is a variable, so that the same picture
follows the reader's preference. Meaning never rests on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "track": "#f3f5f7",
    "rule": "#cfd6dd",
    "ink": "#1b1f24",
    "muted": "#535c66",
    "better": "#0550ae",
    "worse": "#a84300",
    "broken": "#b3141c",
}
"""track: behind a bar, a heading or a line of code. rule: of a table, an axis."""

DARK: Mapping[str, str] = {
    "paper": "#0f1318",
    "track": "#1a2027",
    "rule": "#3a434d",
    "ink": "#e8edf2",
    "muted": "#a3adb8",
    "better": "#79b8ff",
    "worse": "#ffab70",
    "broken": "#ff8a85",
}

PAPER, TRACK, RULE, INK, MUTED, BETTER, WORSE, BROKEN = LIGHT.values()


def variables(colours: Mapping[str, str]) -> str:
    """CSS declarations."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
