"""What came of each request of a workload so far, whoever serves it."""

from __future__ import annotations

import math

from .agenda import Agenda, Due
from .bench_run import OnServed
from .served import Served
from .workload import Workload

FOLLOWS_A_FAILURE = "not sent, since the request before it in its conversation failed"


class Ledger:
    """Hands out the requests of a workload by its `agenda`, and keeps how each ended."""

    def __init__(self, workload: Workload, on_served: OnServed | None) -> None:
        """on_served: told of each request when it has ended."""
        self.agenda = Agenda(workload)
        self._served: list[Served] = []
        self._on_served = on_served

    def enter(self, served: Served) -> None:
        """A request has ended, well or not; `agenda.answer` or `fail` says what follows from it."""
        self._served.append(served)
        if self._on_served is not None:
            self._on_served(served)

    def fail(self, index: int, now: float) -> None:
        """A request failed: the rest of its conversation has nothing to go on from, and fails too."""
        for follower in self.agenda.fail(index, now):
            self.enter(failed(Due(math.nan, follower), math.nan, FOLLOWS_A_FAILURE, math.nan))

    @property
    def served(self) -> tuple[Served, ...]:
        """In the order of the workload."""
        return tuple(sorted(self._served, key=lambda served: served.index))

    @property
    def seconds(self) -> float:
        """From the start to the last answer."""
        return max((one.finished for one in self._served if not math.isnan(one.finished)), default=0.0)


def failed(due: Due, sent: float, error: str, finished: float) -> Served:
    return Served(due.index, due.time, sent, (), finished, num_prompt=0, num_output=0, error=error)
