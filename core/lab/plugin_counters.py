"""What plugins count, before and after a run."""

from __future__ import annotations

from collections.abc import Mapping

Counters = Mapping[str, Mapping[str, float]]
"""By plugin, its counters by name: `LLM.stats()`."""

DRAFTED, ACCEPTED = "drafted", "accepted"
"""The names by which a proposer counts the tokens that it drafted, and those of them that stood."""


def acceptance_rate(before: Counters, after: Counters) -> float | None:
    """Accepted over drafted tokens between the two; None where nobody drafted or nobody counts."""
    drafted, accepted = (gained(before, after, name) for name in (DRAFTED, ACCEPTED))
    return accepted / drafted if drafted else None


def gained(before: Counters, after: Counters, name: str) -> float:
    """By how much the counters of this name grew, summed over the plugins that count both."""
    return sum(
        counters[name] - before.get(plugin, {}).get(name, 0.0)
        for plugin, counters in after.items()
        if DRAFTED in counters and ACCEPTED in counters
    )
