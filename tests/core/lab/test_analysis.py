"""What is read out of a result file, against what was planted in it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from switchgear.core.errors import ConfigError
from switchgear.core.lab.analysis import Analysis, analyse, analyse_rows
from switchgear.core.lab.contrasts import ArmSets, contrasts
from switchgear.core.lab.results_file import read_rows

from .made_results import BROKEN, EFFECTS, INTERACTION, INTERACTION_FACTOR, SWITCHES, VOIDED, sets, write_results


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("made") / "results.jsonl", num_blocks=12)


@pytest.fixture(scope="module")
def analysis(path: Path) -> Analysis:
    return analyse(path)


def test_planted_effects_and_the_interaction_are_in_their_intervals(analysis: Analysis) -> None:
    kinds = {"output_tokens_per_s": "output_tokens_per_s", "ttft_p50": "ttft", "tpot_p99": "tpot"}
    found = {(effect.switch, effect.metric): effect for effect in analysis.effects}
    for metric, kind in kinds.items():
        for switch in SWITCHES:
            factor = EFFECTS[kind][switch]
            if kind == "output_tokens_per_s" and switch == "prefix_cache":
                # of its two pairs of arms, one has the other switch of the interaction on
                factor *= INTERACTION_FACTOR ** (1 / 2)
            if kind == "output_tokens_per_s" and switch == "chunked_prefill":
                factor *= INTERACTION_FACTOR ** (1 / 3)
            assert found[switch, metric].low < factor < found[switch, metric].high
    [interaction] = [
        each
        for each in analysis.interactions
        if {each.first, each.second} == set(INTERACTION) and each.metric == "output_tokens_per_s"
    ]
    assert interaction.low < INTERACTION_FACTOR < interaction.high
    assert interaction.is_significant


def test_the_interval_is_the_t_interval_of_paired_logarithms(path: Path, analysis: Analysis) -> None:
    """By hand, of the option: one arm against one other."""
    values: dict[int, dict[str, float]] = {}
    for row in read_rows(path):
        if row["kind"] == "run" and row["block"] != VOIDED:
            values.setdefault(row["block"], {})[row["arm"]] = math.log(row["metrics"]["ttft_p50"])
    differences = np.array(
        [block["paged_kv [paged_kv.block_size=32]"] - block["paged_kv"] for block in values.values()]
    )
    low, high = stats.t.interval(0.95, len(differences) - 1, differences.mean(), stats.sem(differences))
    [effect] = [e for e in analysis.effects if e.switch.startswith("plugins.") and e.metric == "ttft_p50"]
    expected = np.exp([differences.mean(), low, high]).tolist()
    assert [effect.ratio, effect.low, effect.high] == pytest.approx(expected)
    assert (effect.num_blocks, effect.method) == (11, "t")


def test_what_a_block_does_to_all_its_arms_cancels(tmp_path: Path) -> None:
    """The made blocks differ by 10 %, the runs in them by nothing: the intervals have no width."""
    analysis = analyse(write_results(tmp_path / "results.jsonl", noise=0.0))
    for effect in analysis.effects:
        if effect.metric == "tpot_p50" and effect.switch in SWITCHES:
            assert effect.ratio == pytest.approx(EFFECTS["tpot"][effect.switch])
            assert effect.high / effect.low == pytest.approx(1)
            assert effect.is_significant == (effect.switch != "paged_kv")


def test_void_blocks_do_not_count_and_are_named(analysis: Analysis) -> None:
    assert analysis.num_blocks == 11
    assert list(analysis.voided) == [VOIDED]
    assert analysis.ended.startswith("budget")


def test_nothing_is_dropped_and_the_broken_arm_is_named(analysis: Analysis) -> None:
    assert {arm.name for arm in analysis.arms} == {" + ".join(on) or "all off" for on in sets()} | {
        "paged_kv [paged_kv.block_size=32]"
    }
    refused = [arm for arm in analysis.arms if arm.refused]
    assert {arm.on for arm in refused} == {("prefix_cache",), ("prefix_cache", "chunked_prefill")}
    assert all(not arm.metrics and arm.equality is None for arm in refused)
    [broken] = analysis.broken
    assert broken.name == BROKEN
    assert broken.equality is not None and "everything-off has 29" in broken.equality.problem


def test_a_metric_that_is_nought_has_no_ratio_but_a_level(analysis: Analysis) -> None:
    assert not [effect for effect in analysis.effects if effect.metric in ("prefix_hit_rate", "errors")]
    levels = {arm.name: arm.metrics["prefix_hit_rate"] for arm in analysis.arms if arm.metrics}
    assert levels["all off"] == (0.0, 0.0, 0.0) and levels[BROKEN] == (0.7, 0.7, 0.7)


def test_levels_are_the_median_and_the_range_of_the_blocks_that_count(path: Path, analysis: Analysis) -> None:
    values = [
        row["metrics"]["ttft_p99"]
        for row in read_rows(path)
        if row["kind"] == "run" and row["arm"] == BROKEN and row["block"] != VOIDED
    ]
    [arm] = analysis.broken
    assert arm.metrics["ttft_p99"] == (float(np.median(values)), min(values), max(values))
    assert len(arm.ttft) == 11 * 20


def test_one_block_has_a_ratio_and_no_interval(tmp_path: Path) -> None:
    analysis = analyse(write_results(tmp_path / "results.jsonl", num_blocks=1))
    assert analysis.effects
    assert all((effect.low, effect.high) == (0.0, math.inf) for effect in analysis.effects)
    assert not any(effect.is_significant for effect in analysis.effects)


def test_the_method_is_chosen_and_needs_its_blocks(path: Path) -> None:
    by_t, by_bca = analyse(path), analyse(path, "bca")
    assert [effect.ratio for effect in by_t.effects] == pytest.approx([effect.ratio for effect in by_bca.effects])
    assert by_bca.effects[0].method == "bca" and by_bca.effects[0].high < by_t.effects[0].high
    with pytest.raises(ConfigError, match="percentile bootstrap of 11 blocks"):
        analyse(path, "percentile")


def test_a_block_without_all_its_runs_does_not_count(path: Path) -> None:
    rows = read_rows(path)
    runs = [row for row in rows if row["kind"] == "run"]
    last = max(row["block"] for row in runs)
    one, *_, anchor = [row for row in runs if row["block"] == last and row["arm"] in (BROKEN, "all off")]
    for missing in (one, anchor):
        cut = analyse_rows([row for row in rows if row is not missing])
        assert cut.voided[last] == "unfinished"
        assert cut.num_blocks == 10


def test_one_broken_check_of_an_arm_is_enough(path: Path) -> None:
    rows = read_rows(path)
    first = next(row for row in rows if row["kind"] == "equality")
    more: dict[str, Any] = {**first, "holds": False, "problem": "a later one"}
    [arm] = [arm for arm in analyse_rows([*rows, more]).arms if arm.name == first["arm"]]
    assert arm.equality is not None
    assert (arm.equality.holds, arm.equality.problem, arm.equality.num_tokens) == (False, "a later one", 1280)


def test_the_file_is_deterministic(tmp_path: Path) -> None:
    one, two = (write_results(tmp_path / name).read_text() for name in ("one", "two"))
    assert one == two
    assert all(json.loads(line)["kind"] for line in one.splitlines())


# -- contrasts ------------------------------------------------------------------------------------------------------


def all_sets(names: str) -> list[frozenset[str]]:
    return [frozenset(n for place, n in enumerate(names) if bits >> place & 1) for bits in range(1 << len(names))]


def test_in_a_full_design_least_squares_says_what_the_pairs_say() -> None:
    arms = [ArmSets("".join(sorted(on)) or "-", on, {}, None) for on in all_sets("abc")]
    pairs, _ = contrasts("full", arms, "abc", ["cold"])
    squares, notes = contrasts("fractional", arms, "abc", ["cold"])
    assert not notes
    by_pairs = {contrast.switches: contrast.weights for contrast in pairs}
    for contrast in squares:
        assert dict(contrast.weights) == pytest.approx(dict(by_pairs[contrast.switches]))


@pytest.mark.parametrize("design", ["full", "fractional"])
def test_planted_terms_come_back_also_where_arms_are_missing(design: str) -> None:
    generator = np.random.default_rng(0)
    arms = [ArmSets("".join(sorted(on)) or "-", on, {}, None) for on in all_sets("abcd")]
    arms = [arm for arm in arms if not ("c" in arm.on and "b" not in arm.on)]
    effect: dict[str, float] = dict(zip("abcd", generator.normal(size=4).tolist(), strict=True))
    together = {pair: float(generator.normal()) for pair in (("a", "d"), ("a", "b"))} if design == "fractional" else {}

    def value(on: frozenset[str]) -> float:
        # an interaction counts around the middle of its switches, so that it is in neither of the effects
        signs = {name: 0.5 if name in on else -0.5 for name in "abcd"}
        return sum(effect[name] * signs[name] for name in "abcd") + sum(
            size * signs[a] * signs[b] for (a, b), size in together.items()
        )

    found, notes = contrasts(design, arms, "abcd", ["cold"])
    by_term = {
        contrast.switches: sum(
            weight * value(frozenset(arm.strip("-"))) for (arm, _), weight in contrast.weights.items()
        )
        for contrast in found
    }
    for name in "abcd":
        assert by_term[name,] == pytest.approx(effect[name])
    for pair, size in together.items():
        assert by_term[pair] == pytest.approx(size)
    assert ("b", "c") not in by_term
    assert any("b and c" in note for note in notes)
