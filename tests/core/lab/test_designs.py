"""The arms of each design, and the fractions of the factorial one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.designs import DESIGNS, Arm, Design, closure, dependents, make_design, read_vary
from switchgear.core.lab.fractions import FULL, fraction

REQUIRES = {"batching": (), "paged": (), "prefix": ("paged",), "offload": ("prefix",), "chunked": ()}
SWITCHES = tuple(REQUIRES)


def design(name: str, switches: tuple[str, ...] = SWITCHES, **options: object) -> Design:
    return make_design(name, switches, REQUIRES, **options)  # type: ignore[arg-type]  # options of make_design


def by_set(made: Design) -> dict[frozenset[str], Arm]:
    return {frozenset(arm.on): arm for arm in made.arms if not arm.varied}


def test_requirements_and_dependents_go_all_the_way() -> None:
    assert closure(["offload"], REQUIRES) == ("paged", "prefix", "offload")
    assert dependents("paged", SWITCHES, REQUIRES) == ("prefix", "offload")
    assert dependents("chunked", SWITCHES, REQUIRES) == ()


def test_one_in_compares_each_with_its_requirements_alone() -> None:
    arms = by_set(design("one-in"))
    assert arms[frozenset({"batching"})].baseline == "all off"
    assert arms[frozenset({"paged", "prefix", "offload"})].baseline == "paged + prefix"
    assert arms[frozenset({"paged", "prefix"})].baseline == "paged"
    assert set(map(len, arms)) == {0, 1, 2, 3}


def test_a_requirement_that_is_no_switch_is_on_in_the_baseline_too() -> None:
    arms = by_set(design("one-in", ("prefix",)))
    assert arms[frozenset({"paged", "prefix"})].baseline == "paged"


def test_leave_one_out_drops_dependents_and_compares_with_only_those_off() -> None:
    made = design("leave-one-out")
    arms = by_set(made)
    everything = frozenset(SWITCHES)
    assert made.anchor == "all on"
    assert arms[everything - {"chunked"}].baseline == "all on"
    without = arms[everything - {"paged", "prefix", "offload"}]
    assert without.dropped == ("prefix", "offload")
    assert without.baseline == arms[everything - {"prefix", "offload"}].name == "without prefix, offload"
    assert arms[everything - {"prefix", "offload"}].dropped == ("offload",)
    assert all(set(closure(arm.on, REQUIRES)) == set(arm.on) for arm in made.arms)


def test_pairwise_has_the_four_corners_of_every_pair() -> None:
    arms = by_set(design("pairwise"))
    for pair in combinations(SWITCHES, 2):
        rest = frozenset(closure(pair, REQUIRES)) - set(pair)
        assert {rest, rest | {pair[0]}, rest | {pair[1]}, rest | set(pair)} <= set(arms)


def test_full_has_every_combination() -> None:
    assert len(by_set(design("full"))) == 2 ** len(SWITCHES)
    with pytest.raises(ConfigError, match="all combinations of 7 switches are 128 arms"):
        make_design("full", tuple("abcdefg"), dict.fromkeys("abcdefg", ()))


@pytest.mark.parametrize("name", DESIGNS)
def test_every_baseline_is_an_arm_and_every_name_is_one(name: str) -> None:
    made = design(name, vary={"plugins.paged.size": [8, 16]}, levels={"plugins.paged.size": 16})
    names = [arm.name for arm in made.arms]
    assert len(set(names)) == len(names) and len({(arm.on, *arm.varied.items()) for arm in made.arms}) == len(names)
    assert made.anchor in names
    for place, arm in enumerate(made.arms):
        assert arm.baseline is None or arm.baseline in names[:place]


def test_a_varied_option_has_an_arm_for_each_value_but_its_own() -> None:
    made = design("options", vary={"plugins.paged.size": [8, 16, 32]}, levels={"plugins.paged.size": 16})
    assert [arm.name for arm in made.arms] == ["all on", "all on [paged.size=8]", "all on [paged.size=32]"]
    assert [arm.baseline for arm in made.arms] == [None, "all on", "all on"]


def test_what_is_no_design_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown design 'one-out'"):
        design("one-out")
    with pytest.raises(ConfigError, match="nothing is switched"):
        design("full", ())
    with pytest.raises(ConfigError, match="give some with --vary"):
        design("options")


@pytest.mark.parametrize(
    ("text", "values"),
    [("plugins.a.b=8,16", [8, 16]), ("plugins.a.b=fcfs,priority", ["fcfs", "priority"]), ("plugins.a.b=0.5", [0.5])],
)
def test_values_to_vary_are_read(text: str, values: list[object]) -> None:
    assert read_vary([text]) == {"plugins.a.b": values}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("engine.kv_bytes=1,2", "the model and the engine's limits are the same in every arm"),
        ("plugins.a=1,2", "write plugins.NAME.OPTION=VALUE,VALUE"),
        ("plugins.a.b", "write plugins.NAME.OPTION=VALUE,VALUE"),
        ("plugins.a.b=", "give different values"),
        ("plugins.a.b=8,8", "give different values"),
    ],
)
def test_what_cannot_be_varied_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_vary([text])


# -- fractions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_factors", "least", "num_runs", "resolution"),
    # Box, Hunter and Hunter, table 6.22 of minimum aberration designs
    [
        (3, 3, 4, 3),
        (4, 4, 8, 4),
        (5, 5, 16, 5),
        (5, 3, 8, 3),
        (6, 4, 16, 4),
        (7, 4, 16, 4),
        (7, 3, 8, 3),
        (8, 4, 16, 4),
    ],
)
def test_fractions_are_those_of_the_books(num_factors: int, least: int, num_runs: int, resolution: int) -> None:
    made = fraction(num_factors, least)
    assert (len(made.runs()), made.resolution) == (num_runs, resolution)


@pytest.mark.parametrize("num_factors", range(1, 10))
def test_a_fraction_is_balanced_and_orthogonal_to_its_resolution(num_factors: int) -> None:
    made = fraction(num_factors)
    signs = np.where(np.array(made.runs()), 1, -1)
    assert len({tuple(run) for run in made.runs()}) == len(signs) == 1 << made.num_base
    longest = num_factors if made.resolution == FULL else made.resolution - 1
    for size in range(1, min(longest, 4) + 1):
        for chosen in combinations(range(num_factors), size):
            assert signs[:, chosen].prod(axis=1).sum() == 0
    assert signs.all(axis=1).any() and (signs == 1).all(axis=1).any(), "all on is among the runs"


def test_no_fraction_of_too_many_or_of_no_resolution() -> None:
    for arguments in ((0, 4), (12, 4), (5, 2), (5, 6)):
        with pytest.raises(ConfigError):
            fraction(*arguments)
