"""Every live sequence and the queue it stands in. The one place that moves a sequence from state to state."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator

import numpy as np

from ..records import KVView, Limits, StepView
from .sequence import Sequence, State


class Requests:
    """Running sequences in the order of admission, waiting ones in queue order, held ones by ticket."""

    def __init__(self, max_overtaken: int, row_numbers: Iterator[int]) -> None:
        self.max_overtaken = max_overtaken
        self.by_row: dict[int, Sequence] = {}
        self.by_request: dict[str, dict[int, Sequence]] = {}
        """Per request id, its live sequences by row."""
        self.running: dict[int, Sequence] = {}
        self.waiting: dict[int, Sequence] = {}
        self.held: dict[str, dict[int, Sequence]] = {}
        """Per ticket, who waits for it by row."""
        self._completed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._row_numbers = row_numbers

    def __len__(self) -> int:
        return len(self.by_row)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self.by_row.values()))

    def new_row(self) -> int:
        return next(self._row_numbers)

    # -- transitions ------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence, ticket: str | None = None) -> None:
        """A new sequence waits, or is held until `ticket` completes."""
        self.by_row[sequence.row] = sequence
        self.by_request.setdefault(sequence.request, {})[sequence.row] = sequence
        if ticket is None:
            sequence.state = State.WAITING
            self.waiting[sequence.row] = sequence
        else:
            sequence.state, sequence.ticket = State.HELD, ticket
            self.held.setdefault(ticket, {})[sequence.row] = sequence

    def admit(self, sequence: Sequence) -> None:
        """From waiting to running; whoever arrived before and still waits has been overtaken once more."""
        del self.waiting[sequence.row]
        sequence.state = State.RUNNING
        sequence.num_overtaken = 0
        self.running[sequence.row] = sequence
        for other in self.waiting.values():
            if other.row < sequence.row:
                other.num_overtaken += 1

    def preempt(self, sequence: Sequence) -> None:
        """From running to the front of the queue, with nothing computed."""
        del self.running[sequence.row]
        sequence.state = State.WAITING
        sequence.num_preemptions += 1
        self.waiting = {sequence.row: sequence, **self.waiting}

    def complete(self, ticket: str) -> None:
        """Whatever was held for `ticket` may run. From any thread; an unknown ticket is ignored."""
        self._completed.put(ticket)

    @property
    def has_completed(self) -> bool:
        """Tickets were completed since the last step."""
        return not self._completed.empty()

    def wake_completed(self) -> None:
        """Move what was completed since the last step into the queue; called by the engine's own thread."""
        while self.has_completed:
            for sequence in self.held.pop(self._completed.get(), {}).values():
                sequence.state = State.WAITING
                self.waiting[sequence.row] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, whatever state it is in."""
        self.by_row.pop(sequence.row, None)
        siblings = self.by_request.get(sequence.request, {})
        siblings.pop(sequence.row, None)
        if not siblings:
            self.by_request.pop(sequence.request, None)
        self.running.pop(sequence.row, None)
        self.waiting.pop(sequence.row, None)
        if sequence.state is State.HELD:
            others = self.held[sequence.ticket]
            del others[sequence.row]
            if not others:
                del self.held[sequence.ticket]
        sequence.state = State.FINISHED

    # -- the view ---------------------------------------------------------------------------------------------------

    def offered(self) -> list[Sequence]:
        """What a policy may choose from: not held, and no step of its own in flight.

        Whoever was overtaken too often is the only one offered for admission, so that nobody waits for ever.
        """
        running = [sequence for sequence in self.running.values() if not sequence.num_in_flight]
        waiting = list(self.waiting.values())
        overtaken = [sequence for sequence in waiting if sequence.num_overtaken >= self.max_overtaken]
        return running + (overtaken or waiting)

    def view(self, offered: list[Sequence], step: int, now: float, seed: int, limits: Limits, kv: KVView) -> StepView:
        """The read-only arrays that a policy sees. offered: those who run first."""
        integers = [
            (
                s.row,
                s.priority,
                s.num_prompt,
                s.tokens.length,
                s.num_computed + s.num_expected,
                s.params.max_tokens,
                s.num_in_flight,
            )
            for s in offered
        ]
        num_running = next((at for at, s in enumerate(offered) if s.state is not State.RUNNING), len(offered))
        # flat, which numpy reads in half the time that it takes for tuples
        flat = np.fromiter(itertools.chain.from_iterable(integers), dtype=np.int64, count=7 * len(offered))
        columns = np.ascontiguousarray(flat.reshape(-1, 7).T)
        arrival = np.array([s.timing.arrival for s in offered], dtype=np.float64)
        columns.setflags(write=False)
        arrival.setflags(write=False)
        rows, priority, num_prompt, num_tokens, num_computed, max_tokens, num_in_flight = columns
        return StepView(
            step=step,
            now=now,
            seed=seed,
            limits=limits,
            kv=kv,
            num_running=num_running,
            rows=rows,
            arrival=arrival,
            priority=priority,
            num_prompt=num_prompt,
            num_tokens=num_tokens,
            num_computed=num_computed,
            max_tokens=max_tokens,
            num_in_flight=num_in_flight,
        )
