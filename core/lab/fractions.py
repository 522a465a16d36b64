"""Which combinations of two-level switches to run when all of them are too many: regular fractions of known resolution.

Box, Hunter and Hunter, Statistics for Experimenters, chapter 6. Of resolution III effects of switches are told from one
another, of IV also from interactions of two, and of V those interactions from one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from operator import xor

from ..errors import ConfigError

ROMAN = ("0", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")
MAX_FACTORS = 11
FULL = 0
"""Stands for the resolution of a design that leaves nothing out."""


@dataclass(frozen=True, slots=True)
class Fraction:
    """2^num_base runs of `num_base + len(generators)` factors."""

    num_base: int
    generators: tuple[int, ...]
    """For each further factor, the base factors whose product it is, as the bits of a number."""
    resolution: int
    """The shortest word of the defining relation; 0 of a full design."""

    @property
    def num_factors(self) -> int:
        return self.num_base + len(self.generators)

    def runs(self) -> list[tuple[bool, ...]]:
        """Per run, which factors are on; the last one has all of them on, the first as few as there can be."""
        found = []
        for base in product((False, True), repeat=self.num_base):
            # a factor that is the product of others is on where an even number of them is off
            offs = sum(1 << place for place, is_on in enumerate(base) if not is_on)
            found.append((*base, *((offs & word).bit_count() % 2 == 0 for word in self.generators)))
        return found

    def __str__(self) -> str:
        count = 1 << self.num_base
        if not self.generators:
            return f"all {count} combinations"
        roman = ROMAN[self.resolution] if self.resolution < len(ROMAN) else str(self.resolution)
        return f"{count} of {1 << self.num_factors} combinations, resolution {roman}"


def fraction(num_factors: int, resolution: int = 4) -> Fraction:
    """The smallest regular fraction of at least this resolution. Raises ConfigError for what there is none of."""
    if not 1 <= num_factors <= MAX_FACTORS:
        raise ConfigError(f"a factorial design of {num_factors} switches: give from 1 to {MAX_FACTORS}")
    if not 3 <= resolution <= 5:
        raise ConfigError(f"resolution {resolution}: give 3, 4 or 5")
    for num_base in range(1, num_factors):
        # the word of a generator is one longer than the generator
        words = [word for word in range(1, 1 << num_base) if word.bit_count() >= resolution - 1]
        words.sort(key=lambda word: (-word.bit_count(), word))
        generators = search(words, num_factors - num_base, resolution, num_base)
        if generators is not None:
            return Fraction(num_base, generators, resolution_of(generators, num_base))
    return Fraction(num_factors, (), FULL)


def search(words: list[int], count: int, resolution: int, num_base: int) -> tuple[int, ...] | None:
    """The first `count` generators that reach the resolution, by trying them one after another."""

    def extend(chosen: tuple[int, ...], start: int) -> tuple[int, ...] | None:
        if len(chosen) == count:
            return chosen
        for place in range(start, len(words)):
            candidate = (*chosen, words[place])
            if resolution_of(candidate, num_base) >= resolution:
                found = extend(candidate, place + 1)
                if found is not None:
                    return found
        return None

    return extend((), 0)


def resolution_of(generators: tuple[int, ...], num_base: int) -> int:
    """The length of the shortest word: every product of generators, each with its own factor."""
    words = [word | 1 << (num_base + place) for place, word in enumerate(generators)]
    return min(
        reduce(xor, chosen).bit_count() for size in range(1, len(words) + 1) for chosen in combinations(words, size)
    )
