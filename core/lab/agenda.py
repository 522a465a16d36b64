"""When each request of a workload is due, given when those before it were answered. Knows no clock and no target."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass

from .workload import ALONE, Workload


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """A request that is to be sent."""

    time: float
    """Seconds after the start at which it should be."""
    index: int
    """Of its `Ask` in the workload."""


class Agenda:
    """Hands out requests as they become due.

    The requests of one conversation are a chain: each is due at its arrival, but not before the one ahead of it was
    answered. In a closed loop a client takes a chain, and the next one as soon as that has ended.
    """

    def __init__(self, workload: Workload) -> None:
        self.asks = workload.asks
        self._chains = chains_of(workload)
        self._chain_of = {index: chain for chain in self._chains for index in chain}
        self._due: list[Due] = []
        self._idle_chains: deque[deque[int]] = deque()
        """In a closed loop, those that no client has taken."""
        self._num_out = 0
        num_clients = workload.num_clients
        for number, chain in enumerate(self._chains):
            if num_clients is None:
                self._push(chain[0], self.asks[chain[0]].arrival)
            elif number < num_clients:
                self._push(chain[0], 0.0)
            else:
                self._idle_chains.append(chain)

    @property
    def next_due(self) -> float | None:
        """When the next request is due; None while that depends on an answer, and when all have been sent."""
        return self._due[0].time if self._due else None

    @property
    def is_over(self) -> bool:
        """Everything was sent and answered."""
        return not self._due and not self._num_out

    def take(self, now: float) -> list[Due]:
        """Those that are due by `now`, the longest due first. Each must be given back to `answer` or `fail`."""
        taken = []
        while self._due and self._due[0].time <= now:
            taken.append(heapq.heappop(self._due))
        self._num_out += len(taken)
        return taken

    def answer(self, index: int, now: float) -> None:
        """A request was answered: what waited for that becomes due."""
        self._num_out -= 1
        chain = self._chain_of[index]
        chain.popleft()
        if chain:
            self._push(chain[0], max(now, self.asks[chain[0]].arrival))
        else:
            self._next_chain(now)

    def fail(self, index: int, now: float) -> list[int]:
        """A request failed. Returns the rest of its conversation, which has nothing to go on from and is not sent."""
        self._num_out -= 1
        chain = self._chain_of[index]
        _, *rest = chain
        chain.clear()
        self._next_chain(now)
        return rest

    def has_next(self, index: int) -> bool:
        """Whether the conversation of a request that is out has another turn."""
        return len(self._chain_of[index]) > 1

    def _next_chain(self, now: float) -> None:
        if self._idle_chains:
            self._push(self._idle_chains.popleft()[0], now)

    def _push(self, index: int, time: float) -> None:
        heapq.heappush(self._due, Due(time, index))


def chains_of(workload: Workload) -> list[deque[int]]:
    """Indices of requests that follow one another, in the order in which the chains begin."""
    by_conversation: dict[int, deque[int]] = {}
    chains = []
    for index, ask in enumerate(workload.asks):
        if ask.conversation in by_conversation:
            by_conversation[ask.conversation].append(index)
            continue
        chains.append(chain := deque([index]))
        if ask.conversation != ALONE:
            by_conversation[ask.conversation] = chain
    return chains


def whole_lengths(workload: Workload) -> list[int]:
    """Prompt and output tokens of each request of token ids, with all that is said before it in its conversation."""
    lengths: list[int] = []
    for chain in chains_of(workload):
        asks = (workload.asks[index] for index in chain)
        lengths += itertools.accumulate(ask.num_prompt + ask.num_output for ask in asks)
    return lengths
