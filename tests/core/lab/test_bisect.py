"""Planted faults, each found as the smallest set of switches that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.config import Config, build_config
from switchgear.core.errors import ConfigError, PluginError
from switchgear.core.lab.arms import Common, common_of
from switchgear.core.lab.behaviour import OtherOutputs, PastThreshold, Trial, parse_threshold
from switchgear.core.lab.bisect import Bisected, Bisection
from switchgear.core.lab.measured import ArmFailed
from switchgear.core.lab.workload import Ask, Segment, Workload

from .planted_faults import FAULTY, RunnerHere

OTHERS = {"continuous_batching": {}, "paged_kv": {"block_size": 4}, "chunked_prefill": {"max_num_batched_tokens": 16}}
CACHES = ("cold", "warm")


def common(model: Path, plugins: Mapping[str, Mapping[str, Any]], kept: tuple[str, ...] = (), **engine: Any) -> Common:
    engine = {"kv_bytes": 1 << 24, "max_num_seqs": 4, "max_model_len": 256, **engine}
    sections = {"model": {"name": str(model), "dtype": "float32"}, "engine": engine, "plugins": plugins}
    return common_of(build_config(sections=sections), kept, FAULTY)


def prompts(*lengths: int, num_output: int = 6, same: int = 0) -> Workload:
    """One request for each length, all at once; the first `same` tokens are those of all of them."""
    head = (Segment(7, same),) if same else ()
    return Workload(
        "prompts", tuple(Ask(0.0, num_output, (*head, Segment(key, n))) for key, n in enumerate(lengths, start=100))
    )


def bisect_outputs(given: Common, workload: Workload, caches: tuple[str, ...] = CACHES) -> Bisected:
    return Bisection(given, OtherOutputs(RunnerHere(), workload, given.off(), caches)).run()


# -- the three planted faults ---------------------------------------------------------------------------------------


def test_a_prefix_cache_that_returns_a_wrong_block_is_found_with_what_it_requires(tiny_model: Path) -> None:
    given = common(tiny_model, {**OTHERS, "wrong_block": {}})
    found = bisect_outputs(given, prompts(9, 14, same=16))
    assert found.switches == ("paged_kv", "wrong_block")
    assert "everything-off has" in found.text


def test_an_attention_that_is_off_by_one_in_a_chunk_is_found_with_the_chunks(tiny_model: Path) -> None:
    given = common(tiny_model, {**OTHERS, "off_by_one": {}})
    found = bisect_outputs(given, prompts(40, 23), caches=("cold",))
    assert found.switches == ("chunked_prefill", "off_by_one")


def test_a_scheduler_that_starves_is_found_by_a_threshold(tiny_model: Path) -> None:
    asks = [Ask(0.08 * number, 8, (Segment(number, 48 if number == 3 else 8),)) for number in range(30)]
    workload = Workload("steady", tuple(asks))
    given = common(tiny_model, {"starving": {}, "paged_kv": {}, "prefix_cache": {}})
    threshold = parse_threshold("ttft_p99>2x")
    behaviour = PastThreshold(RunnerHere(), workload, given.off(), "cold", threshold, num_runs=1)
    found = Bisection(given, behaviour).run()
    assert found.switches == ("starving",)
    assert "ttft_p99 is" in found.text


# -- on behaviours that take no time --------------------------------------------------------------------------------


class Planted:
    """Differs for whoever has one of these sets on; refuses whoever has one of the others."""

    def __init__(self, *faults: set[str], refused: tuple[set[str], ...] = ()) -> None:
        self.faults, self.refused = faults, refused
        self.tried: list[frozenset[str]] = []

    def of(self, config: Config) -> Trial:
        on = frozenset(entry.name for entry in config.plugins)
        self.tried.append(on)
        if any(refused <= on for refused in self.refused):
            raise PluginError("they cannot both be on")
        return Trial("differs", "another token") if any(fault <= on for fault in self.faults) else Trial("same")


MANY = ("continuous_batching", "paged_kv", "prefix_cache", "chunked_prefill", "structured_output", "native_cpu")
GIVEN = common_of(build_config(sections={"plugins": {name: {} for name in MANY}}))


@pytest.mark.parametrize("name", [name for name in MANY if name != "prefix_cache"])
def test_a_fault_of_one_plugin_is_found(name: str) -> None:
    assert Bisection(GIVEN, Planted({name})).run().switches == (name,)


@pytest.mark.parametrize(
    "pair", [("continuous_batching", "native_cpu"), ("paged_kv", "chunked_prefill"), ("prefix_cache", "native_cpu")]
)
def test_a_fault_of_two_together_is_found_with_what_they_require(pair: tuple[str, str]) -> None:
    found = Bisection(GIVEN, Planted(set(pair))).run()
    required = {"paged_kv"} if "prefix_cache" in pair else set()
    assert set(found.switches) == {*pair, *required}
    assert found.num_trials < 2 ** len(MANY) / 2


def test_a_requirement_with_the_fault_is_found_without_what_needs_it() -> None:
    assert Bisection(GIVEN, Planted({"paged_kv"})).run().switches == ("paged_kv",)


def test_of_two_faults_one_is_found() -> None:
    found = Bisection(GIVEN, Planted({"paged_kv"}, {"native_cpu"})).run()
    assert found.switches in (("paged_kv",), ("native_cpu",))


def test_sets_that_no_engine_starts_with_show_nothing_and_are_told() -> None:
    given = common_of(build_config(sections={"plugins": {name: {} for name in MANY[:4]}}), kept=["continuous_batching"])

    class NeedsKept(Planted):
        def of(self, config: Config) -> Trial:
            on = {entry.name for entry in config.plugins}
            if on == {"continuous_batching", "paged_kv", "prefix_cache"}:
                raise PluginError("not without chunks")
            return super().of(config)

    found = Bisection(given, NeedsKept({"prefix_cache"})).run()
    assert found.switches == ("paged_kv", "prefix_cache", "chunked_prefill")
    assert found.refused == {("paged_kv", "prefix_cache"): "not without chunks"}


def test_no_set_is_tried_twice() -> None:
    planted = Planted({"prefix_cache", "native_cpu"})
    Bisection(GIVEN, planted).run()
    assert len(planted.tried) == len(set(planted.tried))


def test_where_there_is_nothing_to_find_it_says_so() -> None:
    with pytest.raises(ConfigError, match=r"nothing to find: with continuous_batching, .* it behaves as without"):
        Bisection(GIVEN, Planted()).run()
    with pytest.raises(ConfigError, match="the switches are not it: it is so with everything off"):
        Bisection(GIVEN, Planted(set())).run()
    with pytest.raises(PluginError, match="the whole set does not start: they cannot both be on"):
        Bisection(GIVEN, Planted(refused=({"paged_kv", "native_cpu"},))).run()
    with pytest.raises(ConfigError, match="nothing is switched on"):
        Bisection(common_of(build_config(recipe="all_off")), Planted()).run()


# -- behaviours -----------------------------------------------------------------------------------------------------


def test_sound_plugins_behave_as_without(tiny_model: Path) -> None:
    given = common(tiny_model, {**OTHERS, "prefix_cache": {}})
    with pytest.raises(ConfigError, match="nothing to find"):
        bisect_outputs(given, prompts(9, 30, same=16))


def test_a_set_whose_process_dies_differs(tiny_model: Path) -> None:
    class Dies(RunnerHere):
        def measure(self, config: Config, *args: Any, **options: Any) -> Any:
            if any(entry.name == "paged_kv" for entry in config.plugins):
                raise ArmFailed("its process ended with signal 11: it said nothing")
            return super().measure(config, *args, **options)

    given = common(tiny_model, OTHERS)
    found = Bisection(given, OtherOutputs(Dies(), prompts(5), given.off(), CACHES)).run()
    assert found.switches == ("paged_kv",)
    assert "signal 11" in found.text


@pytest.mark.parametrize(
    ("text", "metric", "is_above", "bound", "is_relative"),
    [
        ("ttft_p99>0.5", "ttft_p99", True, 0.5, False),
        ("output_tokens_per_s < 100", "output_tokens_per_s", False, 100.0, False),
        ("tpot_p50>1.5x", "tpot_p50", True, 1.5, True),
        ("itl_max>1e-3", "itl_max", True, 1e-3, False),
    ],
)
def test_thresholds_are_read(text: str, metric: str, is_above: bool, bound: float, is_relative: bool) -> None:
    threshold = parse_threshold(text)
    assert (threshold.metric, threshold.is_above, threshold.bound, threshold.is_relative) == (
        metric,
        is_above,
        bound,
        is_relative,
    )
    assert parse_threshold(str(threshold)) == threshold


@pytest.mark.parametrize("text", ["", "ttft_p99", "ttft_p99=1", "ttft_p99>", "ttft_p99>fast", "ttft_p99>1e", ">1"])
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read threshold"):
        parse_threshold(text)


def test_a_metric_that_does_not_exist_is_refused_with_the_near_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ttft_p99'"):
        parse_threshold("ttft_p9>1")


def test_a_metric_that_the_run_does_not_have_is_an_error(tiny_model: Path) -> None:
    given = common(tiny_model, OTHERS)
    with pytest.raises(ConfigError, match="a run of this workload has no acceptance_rate"):
        PastThreshold(RunnerHere(), prompts(5), given.off(), "cold", parse_threshold("acceptance_rate<2x"), 1)
