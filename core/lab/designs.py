"""Which sets of switches an ablation measures: the arms of a design, by `requires` alone, before any engine is built.

A set that cannot run because a requirement is off or because of a conflict is an arm all the same: whoever plans it
notes the reason of the refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ..config import read_value, unknown
from ..errors import ConfigError
from .fractions import fraction

MAX_FULL = 6
"""Switches of which all combinations are run; 64 arms in a block are the most that a machine holds still for."""
NOTHING = "all off"
EVERYTHING = "all on"

Requires = Mapping[str, tuple[str, ...]]
"""Of each plugin, in the order in which they apply, those that it needs."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One set of plugins to measure."""

    name: str
    on: tuple[str, ...]
    """Switches, in the order in which they apply. What is on in every arm is not among them."""
    dropped: tuple[str, ...] = ()
    """Switches that are off because they require one that is."""
    varied: Mapping[str, Any] = field(default_factory=dict)
    """Options set for this arm, as `plugins.NAME.OPTION`."""
    baseline: str | None = None
    """The arm that it is compared with."""


@dataclass(frozen=True, slots=True)
class Design:
    """The arms, in an order that has every baseline before what is compared with it."""

    name: str
    switches: tuple[str, ...]
    arms: tuple[Arm, ...]
    anchor: str
    """The arm that is measured before and after each block, to see whether the machine stayed the same."""
    about: str


def make_design(
    name: str,
    switches: Sequence[str],
    requires: Requires,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    levels: Mapping[str, Any] | None = None,
    resolution: int = 4,
) -> Design:
    """The arms of a design.

    switches: what to switch. requires: of every plugin that may be on, its requirements, themselves among the keys.
    vary: options and the values to try; levels: the value that each of them has otherwise. Raises ConfigError.
    """
    if not switches:
        raise ConfigError("nothing is switched: name a recipe with plugins, or switch some on")
    if name not in MAKERS:
        raise ConfigError(unknown("design", name, MAKERS))
    if name == "options" and not vary:
        raise ConfigError("the design 'options' compares values of options: give some with --vary")
    arms = Arms(switches, requires)
    about = MAKERS[name](arms, resolution)
    # of a fraction, all on is the one combination that is always among its runs
    anchor = EVERYTHING if name in ("leave-one-out", "fractional", "options") else NOTHING
    arms.vary(vary or {}, levels or {})
    return Design(name, tuple(switches), tuple(arms.in_order()), anchor, about)


def dependents(name: str, among: Iterable[str], requires: Requires) -> tuple[str, ...]:
    """Those that cannot be on without it, directly or through others."""
    return tuple(other for other in among if other != name and name in closure([other], requires))


def closure(names: Iterable[str], requires: Requires) -> tuple[str, ...]:
    """They and all that they require, in the order in which plugins apply."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += requires.get(name, ())
    return tuple(name for name in requires if name in found)


class Arms:
    """Arms as they are collected: each set once, however many comparisons need it."""

    def __init__(self, switches: Sequence[str], requires: Requires) -> None:
        self.switches = tuple(switches)
        self.requires = requires
        self.by_name: dict[str, Arm] = {}

    def add(self, on: Iterable[str], baseline: str | None = None, dropped: tuple[str, ...] = ()) -> str:
        """Returns the name of the arm, which is that of its set."""
        chosen = set(on)
        ordered = tuple(name for name in self.requires if name in chosen)
        name = self.name_of(ordered)
        known = self.by_name.get(name)
        self.by_name[name] = Arm(
            name,
            ordered,
            dropped or (known.dropped if known else ()),
            baseline=(known.baseline if known else None) or baseline,
        )
        return name

    def name_of(self, on: tuple[str, ...]) -> str:
        missing = [name for name in self.switches if name not in on]
        if not on:
            return NOTHING
        if not missing and len(on) == len(self.switches):
            return EVERYTHING
        if self.are_named_by_absence and set(on) <= set(self.switches):
            return f"without {', '.join(missing)}"
        return " + ".join(on)

    are_named_by_absence = False

    def in_order(self) -> Iterator[Arm]:
        """Baselines first."""
        given: set[str] = set()

        def give(arm: Arm) -> Iterator[Arm]:
            if arm.name not in given:
                if arm.baseline:
                    yield from give(self.by_name[arm.baseline])
                given.add(arm.name)
                yield arm

        for arm in list(self.by_name.values()):
            yield from give(arm)

    # -- the designs ------------------------------------------------------------------------------------------------

    def one_in(self, resolution: int) -> str:
        self.add(())
        for name in self.switches:
            together = closure([name], self.requires)
            before = [other for other in together if other != name]
            self.add(together, baseline=self.add(before))
        return "each switch with what it requires, against what it requires alone"

    def leave_one_out(self, resolution: int) -> str:
        self.are_named_by_absence = True
        everything = self.add(self.switches)
        for name in self.switches:
            dropped = dependents(name, self.switches, self.requires)
            rest = [other for other in self.switches if other not in dropped]
            base = everything
            if dropped:
                base = self.add(rest, baseline=everything)
            self.add([other for other in rest if other != name], baseline=base, dropped=dropped)
        return "everything but one switch, and without those that require it"

    def pairwise(self, resolution: int) -> str:
        self.one_in(resolution)
        for first, second in combinations(self.switches, 2):
            together = closure((first, second), self.requires)
            rest = [name for name in together if name not in (first, second)]
            for corner in ((), (first,), (second,), (first, second)):
                self.add([*rest, *corner])
        return "each two switches in their four combinations, with what they require"

    def full(self, resolution: int) -> str:
        if len(self.switches) > MAX_FULL:
            raise ConfigError(
                f"all combinations of {len(self.switches)} switches are {1 << len(self.switches)} arms: take the "
                f"fractional design, or at most {MAX_FULL} switches"
            )
        count = len(self.switches)
        for size in range(count + 1):
            for chosen in combinations(self.switches, size):
                self.add(chosen)
        return f"all {1 << count} combinations"

    def fractional(self, resolution: int) -> str:
        chosen = fraction(len(self.switches), resolution)
        for run in chosen.runs():
            self.add(name for name, is_on in zip(self.switches, run, strict=True) if is_on)
        return str(chosen)

    def options(self, resolution: int) -> str:
        self.add(self.switches)
        return "everything, with each value of an option"

    def vary(self, vary: Mapping[str, Sequence[Any]], levels: Mapping[str, Any]) -> None:
        """One option at a time, with all switches on; the value that it has anyway is that arm itself."""
        if not vary:
            return
        base = self.by_name[self.add(self.switches)]
        for key, values in vary.items():
            for value in values:
                if value != levels.get(key):
                    name = f"{base.name} [{key.removeprefix('plugins.')}={value}]"
                    self.by_name[name] = Arm(name, base.on, varied={key: value}, baseline=base.name)


MAKERS = {
    "one-in": Arms.one_in,
    "leave-one-out": Arms.leave_one_out,
    "pairwise": Arms.pairwise,
    "full": Arms.full,
    "fractional": Arms.fractional,
    "options": Arms.options,
}
DESIGNS = tuple(MAKERS)


def read_vary(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Options to vary, as written: `plugins.NAME.OPTION=VALUE,VALUE`. Raises ConfigError."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, separator, values = text.partition("=")
        parts = key.strip().split(".")
        if parts[0] in ("engine", "model", "server"):
            raise ConfigError(
                f"cannot vary {key!r}: the model and the engine's limits are the same in every arm, only options of "
                "plugins vary"
            )
        if not separator or len(parts) != 3 or parts[0] != "plugins" or not all(parts):
            raise ConfigError(f"cannot read --vary {text!r}: write plugins.NAME.OPTION=VALUE,VALUE")
        if key in found:
            raise ConfigError(f"--vary names {key} twice: give all its values at once")
        found[key.strip()] = read_values(values, text)
    return found


def read_values(text: str, whole: str) -> list[Any]:
    given = read_value(f"[{text}]")
    values = given if isinstance(given, list) else [read_value(part.strip()) for part in text.split(",")]
    if not values or any(value == "" for value in values) or len(set(map(repr, values))) < len(values):
        raise ConfigError(f"cannot read --vary {whole!r}: give different values with commas between")
    return values
