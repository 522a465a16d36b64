import math
from dataclasses import replace

import pytest
from switchgear.core.lab.contrasts import CACHE
from switchgear.core.lab.metrics import METRICS
from switchgear.core.lab.report.wording import (
    counted,
    in_order,
    interval_text,
    label_of,
    listed,
    names_of,
    seconds_text,
    short_of,
    value_text,
    verdict_of,
)

from .made_effects import EFFECT, effect

TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.21, 0.19, 0.24), "0.21 (0.19 to 0.24)"),
        ((1.004, 1.0021, 1.0059), "1.004 (1.002 to 1.006)"),
        ((0.91, 0.82, 0.9981), "0.910 (0.820 to 0.998)"),
        ((1.5, 0.02, 4728.1), "1.50 (0.02 to 4,728)"),
        ((0.004, 0.003, 0.005), "0.004 (0.003 to 0.005)"),
        ((1.0, 1.0, 1.0), "1.000 (1.000 to 1.000)"),
        ((12.34, 11.8, 12.9), "12.34 (11.80 to 12.90)"),
    ],
)
def test_a_factor_has_as_many_decimals_as_its_interval_allows(numbers: tuple[float, float, float], text: str) -> None:
    assert interval_text(effect(*numbers)) == TIMES + text


def test_a_significant_interval_never_reads_as_if_it_held_one() -> None:
    assert "1.00)" not in interval_text(effect(0.9, 0.8, 0.9996))
    assert "1.00)" in interval_text(effect(0.9, 0.8, 1.0004))


def test_one_block_has_no_interval() -> None:
    assert interval_text(effect(0.5, 0.0, math.inf, num_blocks=1)) == f"{TIMES}0.50 (one block: no interval)"


def test_better_is_what_the_metric_says() -> None:
    assert [verdict_of("ttft_p50", 0.5), verdict_of("ttft_p50", 2.0)] == ["better", "worse"]
    assert [verdict_of("output_tokens_per_s", 0.5), verdict_of("output_tokens_per_s", 2.0)] == ["worse", "better"]
    assert [verdict_of("ttft_p50", 1.0), verdict_of("of_another_version", 2.0)] == ["", ""]


def test_metrics_have_names_for_headings_and_for_sentences() -> None:
    assert (label_of("ttft_p50"), short_of("ttft_p50")) == ("time to first token, p50", "TTFT p50")
    assert short_of("queue_wait_p99") == "wait in the queue p99"
    assert short_of("output_tokens_per_s") == label_of("output_tokens_per_s") == "output tokens a second"
    assert short_of("of_another_version") == "of_another_version"
    assert all(short_of(metric) for metric in METRICS)


def test_the_headline_comes_first_and_the_unknown_last() -> None:
    given = ["of_another_version", "seconds", "tpot_p50", "ttft_p90", "output_tokens_per_s", "tpot_p50"]
    assert in_order(given) == ["output_tokens_per_s", "tpot_p50", "ttft_p90", "seconds", "of_another_version"]


def test_two_comparisons_of_one_switch_are_told_apart() -> None:
    other = replace(EFFECT, arm="without b", against="without prefix_cache, b")
    assert names_of([EFFECT, other]) == [
        "prefix_cache (all on over without prefix_cache)",
        "prefix_cache (without b over without prefix_cache, b)",
    ]
    assert names_of([EFFECT, replace(other, cache="warm")]) == ["prefix_cache", "prefix_cache"]


def test_a_warm_cache_and_an_option_are_named_for_people() -> None:
    warm = replace(EFFECT, switch=CACHE, arm="all on, warm", against="all on, cold", cache="warm/cold")
    option = replace(EFFECT, switch="plugins.paged_kv.block_size=32")
    assert names_of([warm, option]) == ["warm cache, all on", "paged_kv.block_size=32"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3e-7, "0.3 us"), (3.5e-5, "35 us"), (0.1084, "108 ms"), (1.2, "1.2 s"), (1234.5, "1,234 s")],
)
def test_seconds_have_three_digits_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text.replace("us", "\N{MICRO SIGN}s")


def test_values_have_their_unit() -> None:
    assert value_text("ttft_p50", 0.25) == "250 ms"
    assert value_text("prefix_hit_rate", 0.7) == "70.0 %"
    assert value_text("output_tokens_per_s", 201.53) == "202"
    assert value_text("of_another_version", 3.0) == "3"


def test_lists_and_counts_read_well() -> None:
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert [counted(1, "arm"), counted(2, "arm"), counted(2, "switch", "switches")] == ["1 arm", "2 arms", "2 switches"]
