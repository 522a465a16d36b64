"""Which measurements are compared with which: a contrast is a weighted sum of their logarithms.

An effect is the mean logarithm of a metric with a switch on, less the mean with it off; an interaction is the effect of
one switch with another on, less its effect with the other off. Both become factors when they are raised from the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..records import FloatArray

CACHE = "warm cache"
"""What stands for a switch where a cold and a warm cache are compared."""

Cell = tuple[str, str]
"""An arm, and the state of its caches: what one run measures."""
Term = tuple[str, ...]
"""A switch, or two of them."""
Sum = tuple[Term, dict[str, float], str, str]
"""A term, the weight of each arm in it, and in words what is compared with what."""


@dataclass(frozen=True, slots=True)
class ArmSets:
    """What a design sees of an arm that ran."""

    name: str
    on: frozenset[str]
    varied: Mapping[str, object]
    """Options that differ from those of the other arms; empty of an arm that differs in its plugins alone."""
    baseline: str | None


@dataclass(frozen=True, slots=True)
class Contrast:
    """One comparison."""

    switches: tuple[str, ...]
    """One for an effect, two for an interaction."""
    weights: Mapping[Cell, float]
    arm: str
    against: str
    cache: str


def contrasts(
    design: str, arms: Sequence[ArmSets], switches: Sequence[str], caches: Sequence[str]
) -> tuple[list[Contrast], list[str]]:
    """Every comparison that the arms which ran allow, and a sentence for each that they do not.

    switches: those that the design is about. caches: of each arm, "cold" or "warm" or both.
    """
    in_sets = [arm for arm in arms if not arm.varied]
    notes: list[str] = []
    sums: list[Sum] = []
    if design == "full":
        sums += main_effects(in_sets, switches, notes)
    elif design == "fractional":
        sums += least_squares(in_sets, switches, notes)
    else:
        sums += against_baselines(in_sets)
    sums += against_baselines([arm for arm in arms if arm.varied], arms)
    if design in ("full", "pairwise"):
        sums += interactions(in_sets, switches, notes)
    found = []
    for names, weights, arm, against in sums:
        for cache in caches:
            found.append(Contrast(names, {(name, cache): w for name, w in weights.items()}, arm, against, cache))
        if len(caches) == 2 and len(names) == 1:
            both = {(name, cache): sign * w for name, w in weights.items() for cache, sign in SIGNS}
            found.append(Contrast((*names, CACHE), both, arm, against, "warm/cold"))
    if len(caches) == 2:
        for arm_sets in arms:
            name = arm_sets.name
            cells = {(name, cache): float(sign) for cache, sign in SIGNS}
            found.append(Contrast((CACHE,), cells, f"{name}, warm", f"{name}, cold", "warm/cold"))
    return found, notes


SIGNS = (("warm", 1), ("cold", -1))


def against_baselines(arms: Sequence[ArmSets], among: Sequence[ArmSets] | None = None) -> Iterable[Sum]:
    """Each arm and the one that it is compared with, and the one that this in turn is compared with.

    So a switch that drags others along has an effect of its own and one together with them. What is on in one of two
    arms stands above the line.
    """
    by_name = {arm.name: arm for arm in among or arms}
    for arm in arms:
        base = by_name.get(arm.baseline or "")
        while base is not None:
            if arm.varied:
                yield (varied_name(arm.varied),), {arm.name: 1.0, base.name: -1.0}, arm.name, base.name
                break
            with_it, without = (arm, base) if arm.on > base.on else (base, arm)
            switch = " + ".join(sorted(with_it.on - without.on))
            yield (switch,), {with_it.name: 1.0, without.name: -1.0}, with_it.name, without.name
            base = by_name.get(base.baseline or "")


def varied_name(varied: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in varied.items())


def main_effects(arms: Sequence[ArmSets], switches: Sequence[str], notes: list[str]) -> Iterable[Sum]:
    """Of each switch, the mean over all pairs of arms that differ in it alone."""
    by_set = {arm.on: arm.name for arm in arms}
    for switch in switches:
        pairs = [(by_set[on], by_set[on - {switch}]) for on in by_set if switch in on and on - {switch} in by_set]
        if not pairs:
            notes.append(f"no effect of {switch}: no two arms that ran differ in it alone")
            continue
        weights = {name: sign / len(pairs) for pair in pairs for name, sign in zip(pair, (1.0, -1.0), strict=True)}
        where = f"{len(pairs)} pairs of arms" if len(pairs) > 1 else pairs[0][0]
        yield (switch,), weights, where, "the same without it" if len(pairs) > 1 else pairs[0][1]


def interactions(arms: Sequence[ArmSets], switches: Sequence[str], notes: list[str]) -> Iterable[Sum]:
    """Of each two switches, the mean over all quadruples of arms that differ in them alone."""
    by_set = {arm.on: arm.name for arm in arms}
    for first, second in combinations(switches, 2):
        both = frozenset((first, second))
        corners = [
            (on, on - {first}, on - {second}, on - both)
            for on in by_set
            if both <= on and {on - {first}, on - {second}, on - both} <= set(by_set)
        ]
        if not corners:
            notes.append(
                f"no interaction of {first} and {second}: there are no four arms that ran and differ in these two alone"
            )
            continue
        weights: dict[str, float] = defaultdict(float)
        for corner in corners:
            for on, sign in zip(corner, (1.0, -1.0, -1.0, 1.0), strict=True):
                weights[by_set[on]] += sign / len(corners)
        where = f"{len(corners)} times four arms" if len(corners) > 1 else by_set[corners[0][0]]
        yield (first, second), dict(weights), where, "the product of each alone"


def least_squares(arms: Sequence[ArmSets], switches: Sequence[str], notes: list[str]) -> Iterable[Sum]:
    """Of a fraction of all combinations, what a model on the log says that has no interactions of three.

    Montgomery, Design and Analysis of Experiments, chapter 8. Interactions that the arms which ran cannot tell from one
    another, or from the effect of a switch, are left out with a note: in a whole fraction those are its aliases.
    """
    columns: dict[Term, FloatArray] = {(): np.ones(len(arms))}
    for name in switches:
        columns[name,] = np.array([1.0 if name in arm.on else -1.0 for arm in arms])
    pairs: dict[Term, FloatArray] = {(a, b): columns[a,] * columns[b,] for a, b in combinations(switches, 2)}
    model: dict[Term, FloatArray] = {}
    for term, column in columns.items():
        if raises_rank(model, column):
            model[term] = column
        else:
            notes.append(f"no effect of {term[0]}: the arms that ran do not tell it from the other switches")
    for names in grouped(pairs):
        if any(is_same(pairs[names[0]], column) for column in model.values()) or not raises_rank(
            model, pairs[names[0]]
        ):
            notes += [
                f"no interaction of {' and '.join(each)}: these arms do not tell it from an effect" for each in names
            ]
        elif len(names) > 1:
            together = ", ".join(" x ".join(each) for each in names)
            notes.append(f"no interaction of any of {together}: these arms do not tell one from the other")
        else:
            model[names[0]] = pairs[names[0]]
    inverse = np.linalg.pinv(np.stack(list(model.values()), axis=1))
    for place, term in enumerate(model):
        if term:
            # a switch goes from -1 to 1, and two of them make four cells
            scale = 2.0 if len(term) == 1 else 4.0
            weights = {arm.name: scale * float(value) for arm, value in zip(arms, inverse[place], strict=True)}
            yield term, weights, f"{len(arms)} arms", "least squares"


def grouped(columns: Mapping[Term, FloatArray]) -> list[list[Term]]:
    """Terms whose columns are the same or opposite."""
    groups: list[list[Term]] = []
    for term, column in columns.items():
        group = next((group for group in groups if is_same(columns[group[0]], column)), None)
        if group is None:
            groups.append([term])
        else:
            group.append(term)
    return groups


def is_same(one: FloatArray, other: FloatArray) -> bool:
    return abs(float(one @ other)) == len(one)


def raises_rank(model: Mapping[Term, FloatArray], column: FloatArray) -> bool:
    """Whether a column is no combination of those of the model."""
    if not model:
        return True
    before = np.stack(list(model.values()), axis=1)
    return bool(np.linalg.matrix_rank(np.column_stack([before, column])) > np.linalg.matrix_rank(before))
