"""A short history for the virtual engine in which each hot method has something to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..sampling_params import SamplingParams
from .virtual_run import VirtualRun

TICKET = "kit"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the history."""

    step: int
    prompt: Sequence[int]
    params: SamplingParams
    priority: int = 0
    is_held: bool = False
    """Until the history lets it go."""
    abort_at: int | None = None
    """The step before which its caller goes away."""


def prompt(length: int, start: int = 0) -> list[int]:
    """Tokens that two prompts of equal `start` have in common."""
    return [3 + (start * 11 + index) % 37 for index in range(length)]


def params(max_tokens: int, seed: int, n: int = 1, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, n=n, temperature=temperature)


HISTORY = (
    Arrival(0, prompt(9), params(12, seed=1)),
    Arrival(0, prompt(22), params(10, seed=2, temperature=0.0)),
    Arrival(0, prompt(13, start=1), params(11, seed=3, n=3)),
    Arrival(0, prompt(5, start=2), params(6, seed=4), is_held=True),
    Arrival(2, prompt(22), params(9, seed=5), priority=-1),
    Arrival(3, prompt(1), params(12, seed=6)),
    Arrival(4, prompt(30, start=1), params(20, seed=7), abort_at=30),
    Arrival(5, prompt(17, start=3), params(8, seed=8), priority=2),
    Arrival(20, prompt(16), params(7, seed=9)),
)
RELEASE = 8
"""The step before which held requests are let go."""


def play(run: VirtualRun) -> None:
    """The whole history, to its end."""
    names: list[tuple[Arrival, str]] = []
    for step in range(max(RELEASE, *(arrival.step for arrival in HISTORY), 30) + 1):
        for arrival in HISTORY:
            if arrival.step == step:
                hold = TICKET if arrival.is_held else None
                name = run.add(arrival.prompt, arrival.params, priority=arrival.priority, hold=hold)
                names.append((arrival, name))
        for arrival, name in names:
            if arrival.abort_at == step:
                run.abort(name)
        if step == RELEASE:
            run.engine.complete(TICKET)
        run.step()
    run.drain()
