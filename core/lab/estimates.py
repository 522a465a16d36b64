"""What runs take, from those that were: so that none is begun which the budget does not see the end of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from .contrasts import Cell
from .results_file import Row


class Estimates:
    """rows: of earlier sittings, whose time counts; budget: seconds of all sittings together."""

    def __init__(self, rows: Sequence[Row], budget: float, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.clock = clock
        self.start = clock()
        self.spent_before: float = sum(row.get("wall_seconds", 0.0) for row in rows)
        self._seconds: dict[Cell, list[float]] = defaultdict(list)
        for row in rows:
            if row["kind"] == "run":
                self.note((row["arm"], row["cache"]), row["wall_seconds"])
        self.check_seconds = sum(row.get("wall_seconds", 0.0) for row in rows if row["kind"] == "equality")
        """What reading the outputs of all arms took."""

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.budget - self.spent_before - (self.clock() - self.start)

    def note(self, cell: Cell, seconds: float) -> None:
        """What a run took, its start included."""
        self._seconds[cell].append(seconds)

    def of(self, cell: Cell) -> float:
        """The median of its runs; of a cell that never ran the longest of the others; 0 before there is any."""
        if cell in self._seconds:
            return median(self._seconds[cell])
        return max((median(seconds) for seconds in self._seconds.values()), default=0.0)

    def sum_of(self, cells: Iterable[Cell]) -> float:
        return sum(map(self.of, cells))
