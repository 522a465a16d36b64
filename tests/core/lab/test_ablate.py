"""The loop of an ablation, on runs that take no time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.config import build_config
from switchgear.core.errors import ConfigError, PluginError
from switchgear.core.lab.ablate import ANCHOR_EVERY, MIN_BLOCKS, Ablation
from switchgear.core.lab.analysis import Analysis, Effect, Interaction, analyse
from switchgear.core.lab.arms import Planned, planned
from switchgear.core.lab.measured import ArmFailed
from switchgear.core.lab.results_file import ResultsFile, Row, check_header, read_rows
from switchgear.core.lab.study import Study
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.plugins.cpu_graphs import CPUGraphs

from .simulated_runner import ANSWERS, SimulatedRunner, study_of

FACTORS = {"continuous_batching": 2.0, "paged_kv": 1.1, "prefix_cache": 1.5, "chunked_prefill": 0.8}
SCHEDULERS = build_config(sections={"plugins": {name: {} for name in FACTORS}})


def product(on: frozenset[str]) -> float:
    return math.prod(FACTORS[name] for name in on)


def ablate(path: Path, runner: SimulatedRunner, study: Study, plans: Mapping[str, Planned], **options: Any) -> Analysis:
    """As the command does: a new file, or one that is gone on with."""
    header = study.header({"recipe": "recommended", "machine": {}, "versions": {}, "command": [], "started": ""})
    with ResultsFile(path) as file:
        if file.is_empty:
            rows = [file.append("header", **header)]
        else:
            rows = read_rows(path)
            check_header(path, rows[0], header)
        return Ablation(study, plans, runner, file, rows, clock=runner.clock, **options).run()


def effect(analysis: Analysis, switch: str, metric: str = "output_tokens_per_s", cache: str = "cold") -> Effect:
    [found] = [e for e in analysis.effects if (e.switch, e.metric, e.cache) == (switch, metric, cache)]
    return found


def interaction(analysis: Analysis, *switches: str) -> Interaction:
    [found] = [
        i for i in analysis.interactions if {i.first, i.second} == set(switches) and i.metric == "output_tokens_per_s"
    ]
    return found


# -- what it finds --------------------------------------------------------------------------------------------------


def test_planted_effects_are_found_within_the_precision(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", precision=0.05, budget=1e6)
    analysis = ablate(tmp_path / "out", SimulatedRunner(product), study, plans)
    assert analysis.ended.startswith("precision")
    assert analysis.num_blocks >= MIN_BLOCKS
    for switch, factor in FACTORS.items():
        found = effect(analysis, switch)
        assert found.low < factor < found.high
        assert found.high / found.ratio <= 1.05
        assert found.is_significant


def test_a_switch_that_others_require_has_an_effect_alone_and_with_them(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=1e6)
    analysis = ablate(tmp_path / "out", SimulatedRunner(product, noise=0), study, plans)
    alone, together = effect(analysis, "paged_kv"), effect(analysis, "paged_kv + prefix_cache")
    assert (alone.arm, alone.against) == ("without prefix_cache", "without paged_kv, prefix_cache")
    assert (together.arm, together.against) == ("all on", "without paged_kv, prefix_cache")
    assert alone.ratio == pytest.approx(1.1)
    assert together.ratio == pytest.approx(1.1 * 1.5)
    [arm] = [arm for arm in analysis.arms if arm.name == "without paged_kv, prefix_cache"]
    assert arm.dropped == ("prefix_cache",)


@pytest.mark.parametrize("design", ["pairwise", "full"])
def test_a_planted_interaction_is_recovered(design: str, tmp_path: Path) -> None:
    def factor(on: frozenset[str]) -> float:
        return product(on) * (0.7 if {"prefix_cache", "chunked_prefill"} <= on else 1.0)

    refused = {
        name: "requires paged_kv"
        for name in study_of(SCHEDULERS, design)[1]
        if "prefix_cache" in name and "paged_kv" not in name
    }
    study, plans = study_of(SCHEDULERS, design, refused=refused, budget=1e6, precision=0.02)
    analysis = ablate(tmp_path / "out", SimulatedRunner(factor), study, plans)
    found = interaction(analysis, "prefix_cache", "chunked_prefill")
    assert found.low < 0.7 < found.high
    assert found.is_significant
    other = interaction(analysis, "continuous_batching", "chunked_prefill")
    assert other.low < 1.0 < other.high
    assert any("paged_kv and prefix_cache" in note for note in analysis.notes)
    assert {arm.name: arm.refused for arm in analysis.arms if arm.refused} == refused


def test_a_fraction_finds_main_effects_and_says_what_it_cannot_tell(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "fractional", budget=1e6)
    assert len(study.design.arms) == 8
    analysis = ablate(tmp_path / "out", SimulatedRunner(product, noise=0), study, plans)
    for switch, factor in FACTORS.items():
        assert effect(analysis, switch).ratio == pytest.approx(factor)
    assert not analysis.interactions
    assert len([note for note in analysis.notes if "do not tell one from the other" in note]) == 3


def test_options_are_compared_with_the_value_they_have(tmp_path: Path) -> None:
    key = "plugins.paged_kv.block_size"
    study, plans = study_of(SCHEDULERS, "options", vary={key: [8, 32]}, budget=1e6)
    analysis = ablate(tmp_path / "out", SimulatedRunner(noise=0), study, plans)
    assert {found.switch for found in analysis.effects} == {f"{key}=8", f"{key}=32"}
    assert {found.against for found in analysis.effects} == {"all on"}
    [arm] = [arm for arm in analysis.arms if arm.varied == {key: 8}]
    assert arm.options["paged_kv"] == {"block_size": 8}


def test_cold_and_warm_caches_are_a_factor(tmp_path: Path) -> None:
    class Warms(SimulatedRunner):
        def measure(self, config: Any, workload: Any, *, warm: bool, timeout: float) -> Any:
            is_faster = warm and any(entry.name == "prefix_cache" for entry in config.plugins)
            self.factor = lambda on: 3.0 if is_faster else 1.0
            return super().measure(config, workload, warm=warm, timeout=timeout)

    study, plans = study_of(SCHEDULERS, "leave-one-out", caches=("cold", "warm"), budget=1e6)
    analysis = ablate(tmp_path / "out", Warms(noise=0.01), study, plans)
    assert not effect(analysis, "prefix_cache").is_significant
    assert effect(analysis, "prefix_cache", cache="warm").ratio == pytest.approx(3, rel=0.05)
    assert interaction(analysis, "prefix_cache", "warm cache").ratio == pytest.approx(3, rel=0.05)
    [warmed] = [e for e in analysis.effects if e.arm == "all on, warm" and e.metric == "output_tokens_per_s"]
    assert warmed.ratio == pytest.approx(3, rel=0.05)


# -- blocks ---------------------------------------------------------------------------------------------------------


def runs_of(path: Path) -> list[Row]:
    return [row for row in read_rows(path) if row["kind"] == "run"]


def test_every_block_has_every_arm_in_an_order_of_its_own_between_anchors(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "full", budget=1e6)
    ablate(tmp_path / "out", SimulatedRunner(), study, plans)
    blocks: dict[int, list[str]] = {}
    for row in runs_of(tmp_path / "out"):
        blocks.setdefault(row["block"], []).append(row["arm"])
    for arms in blocks.values():
        assert set(arms) == {arm.name for arm in study.design.arms}
        places = [place for place, arm in enumerate(arms) if arm == "all off"]
        assert places[0] == 0 and places[-1] == len(arms) - 1
        assert max(after - before for before, after in pairwise(places)) <= ANCHOR_EVERY + 1
        assert all(count == 1 for arm, count in Counter(arms).items() if arm != "all off")
    assert len({tuple(arms) for arms in blocks.values()}) == len(blocks)


def test_a_block_in_which_the_machine_moved_is_void_and_does_not_count(tmp_path: Path) -> None:
    def drift(number: int) -> float:
        # within the second block of six runs
        return 1.0 if number < 8 else 0.7

    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=1e6)
    analysis = ablate(tmp_path / "out", SimulatedRunner(product, noise=0.001, drift=drift), study, plans)
    assert list(analysis.voided) == [1]
    assert "moved by 4" in analysis.voided[1]
    assert effect(analysis, "prefix_cache").ratio == pytest.approx(1.5, rel=0.01)


def test_a_machine_that_never_holds_still_is_given_up(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=1e6)
    runner = SimulatedRunner(drift=lambda number: 1.05**number)
    with pytest.raises(ConfigError, match="no block was measured to its end, drift: 4 blocks in a row were void"):
        ablate(tmp_path / "out", runner, study, plans)


# -- the budget -----------------------------------------------------------------------------------------------------


def test_no_run_is_begun_that_the_budget_does_not_see_the_end_of(tmp_path: Path) -> None:
    # a block of six runs takes 60 s, a check 1 s
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=200, precision=0.001)
    runner = SimulatedRunner()
    analysis = ablate(tmp_path / "out", runner, study, plans)
    assert analysis.num_blocks == 3
    assert analysis.ended == "budget: a block takes about 60 s and 19 s are left"
    assert runner.now <= 200


def test_a_budget_of_less_than_a_block_is_an_error_that_keeps_what_there_is(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=35)
    runner = SimulatedRunner()
    with pytest.raises(ConfigError, match="budget: a run takes about 10 s and 5 s are left"):
        ablate(tmp_path / "out", runner, study, plans)
    assert len(runs_of(tmp_path / "out")) == 3


def test_a_line_for_each_run_says_what_is_left(tmp_path: Path) -> None:
    lines: list[str] = []
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=1000)
    ablate(tmp_path / "out", SimulatedRunner(noise=0), study, plans, say=lines.append)
    assert lines[0] == "block 1, run 1 of 6: all on, cold: 1.00 s, 100.0 output tokens/s; about 5 min left"
    assert len([line for line in lines if line.startswith("block")]) == len(runs_of(tmp_path / "out"))


# -- going on -------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a signal would end it."""


class Dies(SimulatedRunner):
    def measure(self, *args: Any, **options: Any) -> Any:
        if len(self.runs) == 9:
            raise Killed
        return super().measure(*args, **options)


def test_a_killed_run_goes_on_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "out"
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=400, precision=0.001)
    with pytest.raises(Killed):
        ablate(path, Dies(product), study, plans)
    with path.open("ab") as file:
        file.write(b'{"kind": "run", "block": 1, "ar')
    before = analyse(path)
    assert (before.num_blocks, before.ended, before.voided) == (1, "", {1: "unfinished"})
    analysis = ablate(path, SimulatedRunner(product), study, plans)
    assert analysis.voided == {1: "interrupted"}
    # nine runs and a check were spent: 309 s are left, which is five blocks
    assert analysis.num_blocks == 1 + 5
    assert sum(row["wall_seconds"] for row in read_rows(path) if "wall_seconds" in row) <= 400
    assert [row["kind"] for row in read_rows(path)].count("header") == 1


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=1e6)
    first = ablate(tmp_path / "out", SimulatedRunner(product), study, plans)
    text = (tmp_path / "out").read_text()
    runner = SimulatedRunner(product)
    assert ablate(tmp_path / "out", runner, study, plans) == first
    assert not runner.runs
    assert (tmp_path / "out").read_text() == text


def test_more_budget_goes_on_with_the_same_file(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=130, precision=0.001)
    ablate(tmp_path / "out", SimulatedRunner(product), study, plans)
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=260, precision=0.001)
    analysis = ablate(tmp_path / "out", SimulatedRunner(product), study, plans)
    assert analysis.num_blocks == 4


def test_a_file_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=130)
    ablate(tmp_path / "out", SimulatedRunner(), study, plans)
    study, plans = study_of(SCHEDULERS, "one-in", budget=130)
    with pytest.raises(ConfigError, match=r'its design is "leave-one-out", this run\'s is "one-in"'):
        ablate(tmp_path / "out", SimulatedRunner(), study, plans)


def test_another_plan_of_an_arm_is_not_gone_on_with(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=130)
    ablate(tmp_path / "out", SimulatedRunner(), study, plans)
    changed = {**plans, "all on": Planned("", "another", "environment", ())}
    with pytest.raises(ConfigError, match=r"arm 'all on' had plan .* and has another now"):
        ablate(tmp_path / "out", SimulatedRunner(), study, changed)


# -- equality -------------------------------------------------------------------------------------------------------


def test_every_arm_is_checked_and_one_that_breaks_its_class_is_named(tmp_path: Path) -> None:
    everything = frozenset(FACTORS)
    runner = SimulatedRunner(broken={everything: "position 3: token 1, everything-off has 2"})
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=400)
    analysis = ablate(tmp_path / "out", runner, study, plans)
    assert all(arm.equality is not None for arm in analysis.arms)
    assert [arm.name for arm in analysis.broken] == ["all on"]
    assert runner.num_checked == 5, "outputs that were read are not read again"


def test_an_answer_that_is_too_short_is_read_at_once(tmp_path: Path) -> None:
    class Cuts(SimulatedRunner):
        def measure(self, *args: Any, **options: Any) -> Any:
            measured = super().measure(*args, **options)
            if len(self.runs) < 10:
                return measured
            return replace(measured, answers=(ANSWERS[0], replace(ANSWERS[1], token_ids=(5,))))

    runner = Cuts()
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=125)
    ablate(tmp_path / "out", runner, study, plans)
    assert runner.num_checked == 5 + 3


def test_an_arm_that_dies_is_broken_and_the_others_go_on(tmp_path: Path) -> None:
    class Fails(SimulatedRunner):
        def measure(self, config: Any, workload: Any, *, warm: bool, timeout: float) -> Any:
            if "chunked_prefill" not in {entry.name for entry in config.plugins}:
                raise ArmFailed("its process ended with signal 11: it said nothing")
            return super().measure(config, workload, warm=warm, timeout=timeout)

    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=400)
    analysis = ablate(tmp_path / "out", Fails(product), study, plans)
    [broken] = analysis.broken
    assert broken.name == "without chunked_prefill"
    assert broken.refused == "failed while it ran: its process ended with signal 11: it said nothing"
    assert {found.switch for found in analysis.effects} >= {"prefix_cache", "paged_kv"}
    assert ablate(tmp_path / "out", Fails(product), study, plans).broken == analysis.broken


def test_without_the_anchor_there_is_no_study(tmp_path: Path) -> None:
    class Fails(SimulatedRunner):
        def measure(self, *args: Any, **options: Any) -> Any:
            raise PluginError("no memory")

    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=400)
    with pytest.raises(PluginError, match="arm 'all on', which the others are measured against, failed: no memory"):
        ablate(tmp_path / "out", Fails(), study, plans)


def test_a_run_of_another_plan_ends_the_study(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "leave-one-out", budget=400)
    wrong = {name: Planned("", f"not {plan.plan_hash}", "environment", ()) for name, plan in plans.items()}
    with pytest.raises(PluginError, match="ran plan"):
        ablate(tmp_path / "out", SimulatedRunner(), study, wrong)


def test_rows_are_whole_json_and_the_header_is_first(tmp_path: Path) -> None:
    study, plans = study_of(SCHEDULERS, "one-in", budget=200)
    ablate(tmp_path / "out", SimulatedRunner(), study, plans)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert rows[0]["kind"] == "header" and rows[-1]["kind"] == "end"
    assert next(iter(rows[1])) == "kind"


def test_an_arm_whose_plugin_has_no_effect_is_refused_whoever_brought_it(tmp_path: Path) -> None:
    """Else a switch that does nothing would be measured, and found to have an effect of 1."""
    if CPUGraphs.unavailable():
        pytest.skip(CPUGraphs.unavailable())
    model = make_tiny_model(tmp_path / "model", family="mixtral")
    sections = {"model": {"name": str(model), "dtype": "float32", "device": "cpu"}}
    refused = planned(build_config(recipe="recommended", sections=sections)).refused
    assert refused.startswith("plugin 'cpu_graphs' has no effect here: the plain experts ask the host")
    assert planned(build_config(recipe="recommended", off=["cpu_graphs"], sections=sections)).refused == ""
