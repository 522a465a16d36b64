"""Metrics against figures worked out by hand, and against numpy where there are many."""

import math
from typing import Any

import numpy as np
import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.metrics import EXTRAS, METRICS, summarise
from switchgear.core.lab.objective import Objective
from switchgear.core.lab.served import Served


def served(index: int = 0, due: float = 0.0, times: tuple[float, ...] = (1.0, 2.0), **given: Any) -> Served:
    fields = {"sent": due, "finished": times[-1] if times else due, "num_prompt": 10, "num_output": len(times)}
    return Served(index=index, due=due, token_times=times, **{**fields, **given})


def test_the_figures_of_three_requests_worked_out_by_hand() -> None:
    answers = [
        # times from when it was due: first token 1, end 3, a second for each token after the first
        served(0, 0.0, (1.0, 2.0, 3.0), queue_wait=0.5, num_cached=4),
        # two tokens that came together are one moment: gaps 1 and 2, (5 - 2) / 3 a token
        served(1, 1.0, (3.0, 4.0, 4.0, 6.0), queue_wait=1.5, num_cached=0, num_prompt=30),
        # sent late: its wait is counted from when it was due
        served(2, 2.0, (4.0,), sent=3.5, queue_wait=0.5, num_cached=8),
        served(3, 3.0, (), error="no room"),
    ]
    found = summarise(answers, 8.0, {"batch_size": 2.5, "unheard_of": 1.0}, Objective(2.0, 1.0), price_per_hour=3.6)
    expected = {
        "output_tokens_per_s": 1.0,
        "total_tokens_per_s": 58 / 8,
        "requests_per_s": 3 / 8,
        "goodput": 3 / 8,
        "attainment": 3 / 4,
        "ttft_mean": 5 / 3,
        "ttft_p50": 2.0,
        "ttft_p90": 2.0,
        "ttft_p99": 2.0,
        "tpot_mean": 1.0,
        "tpot_p50": 1.0,
        "tpot_p90": 1.0,
        "tpot_p99": 1.0,
        "itl_p50": 1.0,
        "itl_p90": 1.7,
        "itl_p99": 1.97,
        "itl_max": 2.0,
        "e2e_mean": 10 / 3,
        "e2e_p50": 3.0,
        "e2e_p90": 4.6,
        "e2e_p99": 4.96,
        "queue_wait_p50": 0.5,
        "queue_wait_p99": 1.48,
        "batch_size": 2.5,
        "prefix_hit_rate": 12 / 50,
        "errors": 1.0,
        "seconds": 8.0,
        # 3.6 an hour is a thousandth a second
        "cost_per_million_tokens": 1e6 * 0.001 * 8 / 8,
    }
    assert found == pytest.approx(expected)
    assert list(found) == [name for name in METRICS if name in expected]


def test_total_time_is_first_token_and_the_others() -> None:
    one = served(0, 0.5, (2.0, 2.5, 4.0, 7.0))
    assert one.end_to_end == pytest.approx(one.ttft + (one.num_output - 1) * one.tpot)


def test_percentiles_are_those_of_numpy() -> None:
    draw = np.random.default_rng(3)
    answers = []
    for index in range(200):
        due = float(draw.uniform(0, 50))
        times = tuple((due + np.cumsum(draw.exponential(0.3, int(draw.integers(1, 40))))).tolist())
        answers.append(served(index, due, times))
    found = summarise(answers, 100.0)
    firsts = [one.token_times[0] - one.due for one in answers]
    gaps = np.concatenate([np.diff(one.token_times) for one in answers])
    steady = [
        (one.token_times[-1] - one.token_times[0]) / (one.num_output - 1) for one in answers if one.num_output > 1
    ]
    for share in (50, 90, 99):
        assert found[f"ttft_p{share}"] == pytest.approx(np.percentile(firsts, share))
        assert found[f"itl_p{share}"] == pytest.approx(np.percentile(gaps, share))
        assert found[f"tpot_p{share}"] == pytest.approx(np.percentile(steady, share))
    assert found["itl_max"] == gaps.max()


def test_what_cannot_be_known_is_left_out() -> None:
    found = summarise([served(times=(1.0,))], 1.0)
    assert not {"tpot_p50", "itl_p50", "queue_wait_p50", "prefix_hit_rate", "goodput", "batch_size"} & found.keys()
    assert summarise([], 0.0) == {"errors": 0.0, "seconds": 0.0}
    only_errors = summarise([served(times=(), error="x")], 2.0, {}, Objective(1, 1), 5.0)
    assert (only_errors["requests_per_s"], only_errors["attainment"], only_errors["errors"]) == (0.0, 0.0, 1.0)
    assert "cost_per_million_tokens" not in only_errors and "ttft_p50" not in only_errors
    assert not any(math.isnan(value) for value in only_errors.values())


def test_the_hit_rate_is_of_those_whose_target_tells() -> None:
    answers = [served(0, num_cached=5), served(1)]
    assert summarise(answers, 1.0)["prefix_hit_rate"] == 0.5


def test_every_metric_has_words_and_a_better_side() -> None:
    assert all(metric.name == name and metric.label for name, metric in METRICS.items())
    assert set(EXTRAS) <= set(METRICS)
    assert METRICS["goodput"].better == "higher" and METRICS["ttft_p99"].better == "lower"


@pytest.mark.parametrize(
    ("times", "error", "is_met"),
    [
        ((1.0, 1.5), "", True),
        ((1.0, 1.51), "", False),
        ((1.01, 1.2), "", False),
        ((1.0,), "", True),
        ((), "", False),
        ((0.5, 0.6), "failed", False),
    ],
)
def test_an_objective_is_met_up_to_its_bounds(times: tuple[float, ...], error: str, is_met: bool) -> None:
    assert Objective(1.0, 0.5).is_met(served(times=times, error=error)) is is_met


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_an_objective_that_nothing_meets_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="must be more than 0"):
        Objective(*bounds)
