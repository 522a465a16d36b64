"""What the sections find, as a table to read and a file to keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. A share is of a limit or of a rival; 1 is as good as that."""

    section: str
    point: str
    value: float
    unit: str
    share: float | None = None
    of: str = ""
    """What the share is of."""
    goal: float | None = None
    """The least share that is wanted."""
    is_wrong: bool = False
    """The result itself is not what it must be."""

    @property
    def verdict(self) -> str:
        if self.is_wrong:
            return "WRONG"
        if self.share is None or self.goal is None:
            return ""
        return "met" if self.share >= self.goal else "MISSED"

    def table(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


HEAD = ("section", "point", "value", "share", "of", "goal", "")


def lines_of(figures: Iterable[Figure]) -> list[str]:
    """A table in Markdown."""
    rows = [HEAD, tuple("---" for _ in HEAD)]
    for figure in figures:
        share = "" if figure.share is None else f"{figure.share:.2f}"
        goal = "" if figure.goal is None else f"{figure.goal:.2f}"
        value = f"{figure.value:.4g} {figure.unit}"
        rows.append((figure.section, figure.point, value, share, figure.of, goal, figure.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
