"""When a block is void because the machine moved."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from switchgear.core.lab.drift import NUM_USUAL, moved, spans


def anchors(*rates: float) -> list[dict[str, float]]:
    return [{"output_tokens_per_s": rate, "e2e_p50": 100 / rate, "tpot_p50": 2 / rate} for rate in rates]


def judge(rates: Sequence[float], before: Sequence[Sequence[float]] = ()) -> str:
    return moved(spans(anchors(*rates)), [spans(anchors(*each)) for each in before])


def test_up_to_the_limit_a_block_counts() -> None:
    assert judge((100, 109.9)) == ""
    assert judge((110.1, 100)) == "the anchor's output_tokens_per_s moved by 10% during the block, the limit is 10%"


def test_any_two_of_the_anchors_runs_count_and_any_of_the_metrics() -> None:
    assert judge((100, 120, 100))
    slow = [{"output_tokens_per_s": 1.0, "e2e_p50": 1.0}, {"output_tokens_per_s": 1.0, "e2e_p50": 1.2}]
    assert "e2e_p50 moved by 20%" in moved(spans(slow), [])


def test_a_metric_that_is_nought_or_unknown_says_nothing() -> None:
    assert spans([{"output_tokens_per_s": 0.0}, {"output_tokens_per_s": 5.0}]) == {}


def test_what_is_usual_here_is_no_reason() -> None:
    noisy = [(100, 115)] * NUM_USUAL
    assert judge((100, 120), noisy) == ""
    assert judge((100, 120), noisy[:-1])
    assert judge((100, 400), noisy)


def test_one_wild_block_does_not_make_the_others_usual() -> None:
    assert judge((100, 120), [(100, 101)] * 5 + [(100, 900)])


@pytest.mark.parametrize("deviation", [0.01, 0.2])
def test_of_a_machine_that_is_as_noisy_as_ever_few_blocks_are_void(deviation: float) -> None:
    generator = np.random.default_rng(0)
    before = [np.exp(generator.normal(0, deviation, 2)).tolist() for _ in range(40)]
    void = sum(bool(judge(before[n], before[:n])) for n in range(NUM_USUAL, len(before)))
    # three robust deviations of a difference: one in hundreds of each of three metrics that say the same
    assert void <= 2
    assert judge([1.0, math.exp(8 * deviation + 0.1)], before)
