import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.arrivals import AT_ONCE, Arrivals, at_rate, mean_rate
from switchgear.core.lab.workload import Ask, Workload
from switchgear.core.lab.workloads import conversations, fixed

COUNT = 20_000


@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_variation_that_were_asked_for(variation: float) -> None:
    gaps = Arrivals(4.0, variation).gaps(COUNT, seed=1)
    # of a mean of n gamma gaps; six of its standard deviations
    assert gaps.mean() == pytest.approx(0.25, abs=6 * 0.25 * variation / math.sqrt(COUNT))
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.1)
    assert gaps.min() >= 0


def test_a_variation_of_one_is_a_poisson_process() -> None:
    gaps = np.sort(Arrivals(2.0).gaps(COUNT, seed=5))
    # Kolmogorov-Smirnov against the exponential law, at a level of about 1e-6
    law = 1 - np.exp(-2.0 * gaps)
    distance = np.abs(law - (np.arange(COUNT) + 0.5) / COUNT).max()
    assert distance < 2.7 / math.sqrt(COUNT)


def test_times_are_of_their_seed_and_in_proportion_to_the_rate() -> None:
    slow, fast = Arrivals(1.0, 2.0).times(50, seed=3), Arrivals(4.0, 2.0).times(50, seed=3)
    np.testing.assert_allclose(slow, 4 * fast)
    assert slow[0] == 0.0 and (np.diff(slow) >= 0).all()
    assert not np.array_equal(slow, Arrivals(1.0, 2.0).times(50, seed=4))


def test_without_a_rate_all_come_at_once() -> None:
    assert not AT_ONCE.times(5, seed=0).any()
    assert mean_rate(fixed(5, 1, 1)) == math.inf


def test_a_conversation_arrives_as_a_whole() -> None:
    workload = conversations(6, 3, 4, 4, arrivals=Arrivals(2.0))
    by_conversation: dict[int, set[float]] = {}
    for ask in workload.asks:
        by_conversation.setdefault(ask.conversation, set()).add(ask.arrival)
    starts = [starts.pop() for starts in by_conversation.values() if len(starts) == 1]
    assert len(starts) == len(set(starts)) == 6
    assert mean_rate(workload) == pytest.approx(5 / max(starts))


def test_clients_instead_of_times() -> None:
    workload = fixed(5, 2, 2, arrivals=Arrivals(num_clients=3))
    assert workload.num_clients == 3 and workload.about["num_clients"] == 3
    assert {ask.arrival for ask in workload.asks} == {0.0}


def test_another_rate_stretches_times_and_draws_them_where_there_are_none() -> None:
    asks = tuple(Ask(time, 1, text="x") for time in (0.0, 1.0, 5.0))
    trace = Workload("trace", asks)
    faster = at_rate(trace, 4.0)
    assert [ask.arrival for ask in faster.asks] == pytest.approx([0.0, 0.1, 0.5])
    assert mean_rate(faster) == pytest.approx(4.0)
    drawn = at_rate(replace(trace, asks=tuple(replace(ask, arrival=0.0) for ask in asks)), 4.0, variation=0.0)
    assert [ask.arrival for ask in drawn.asks] == pytest.approx([0.0, 0.25, 0.5])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rate": 0.0}, "an arrival rate of 0 requests a second brings none"),
        ({"rate": math.nan}, "an arrival rate of nan"),
        ({"rate": 1.0, "variation": -1.0}, "variation of the gaps is -1"),
        ({"num_clients": 0}, "0 clients ask nothing"),
        ({"num_clients": 2, "rate": 1.0}, "a closed loop has no rate"),
    ],
)
def test_what_cannot_come_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Arrivals(**options)
