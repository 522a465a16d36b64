import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.lab.report.distributions import edges_of
from switchgear.core.lab.report.distributions import ticks as time_ticks
from switchgear.core.lab.report.ratio_axis import limits, ticks

from .made_effects import effect


@given(st.floats(1e-4, 0.79), st.floats(1.26, 1e4), st.sampled_from([3, 7]))
def test_there_are_round_factors_with_1_among_them(low: float, high: float, limit: int) -> None:
    places = ticks(low, high, limit)
    assert 1.0 in places and len(places) <= limit
    assert places == sorted(set(places)) and low < places[0] and places[-1] < high


def test_common_ranges_have_the_ticks_that_a_person_would_choose() -> None:
    assert ticks(0.75, 1.35) == [0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
    assert ticks(0.2, 5.0) == [0.25, 0.5, 1.0, 2.0, 4.0]


def test_the_axis_never_blows_up_a_small_effect() -> None:
    low, high = limits([effect(1.01, 1.005, 1.015)])
    assert low < 0.8 and high > 1.25


def test_the_axis_holds_every_estimate_and_cuts_what_is_endless() -> None:
    low, high = limits([effect(0.2, 0.19, 0.21), effect(3.0, 1e-9, 1e9), effect(1.0, 0.0, math.inf, num_blocks=1)])
    assert 1e-3 < low < 0.19 and 3.0 < high < 20


@given(st.floats(1e-5, 1e2), st.floats(1.0, 1e4))
def test_times_of_any_spread_have_ticks_inside(least: float, factor: float) -> None:
    edges = edges_of(np.array([least, least * factor]))
    assert edges[0] < least and least * factor < edges[-1] and np.all(np.diff(edges) > 0)
    places = time_ticks(edges[0], edges[-1])
    assert places and edges[0] < places[0] and places[-1] < edges[-1]
