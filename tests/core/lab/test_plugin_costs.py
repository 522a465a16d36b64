"""What plugins cost: every method that a step calls is there, with the plugin whose it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from switchgear.core.config import Config, build_config
from switchgear.core.lab.plugin_costs import Costs, import_seconds, measure_costs
from switchgear.core.recipes import SCHEDULING

from .short_profiles import shorten


def config_of(model: Path, *overrides: str, plugins: Iterable[str] = SCHEDULING) -> Config:
    given = [f"model.name={model}", "model.dtype=float32", "engine.kv_bytes=50000000", *overrides]
    return build_config(sections={"plugins": {name: {} for name in plugins}}, overrides=given)


@pytest.fixture
def costs(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Costs:
    shorten(monkeypatch)
    config = config_of(tiny_model)
    return measure_costs(config, import_seconds(config))


def calls(costs: Costs) -> dict[tuple[str, str, str], tuple[float, float]]:
    return {(cost.plugin, cost.hook, cost.method): (cost.decode_calls, cost.prefill_calls) for cost in costs.methods}


def test_each_plugin_is_there_and_the_core_is_last(costs: Costs) -> None:
    names = ["continuous_batching", "paged_kv", "prefix_cache", "chunked_prefill", "core"]
    assert [cost.plugin for cost in costs.plugins] == names
    assert all(cost.decode_seconds > 0 for cost in costs.plugins)
    assert (costs.num_rows, costs.num_prompt) == (8, 256)


def test_methods_are_counted_by_the_step(costs: Costs) -> None:
    found = calls(costs)
    assert found["continuous_batching", "schedule_step", "plan"] == (1, 1)
    assert found["chunked_prefill", "schedule_step", "revise"] == (1, 1)
    # one for each of eight rows, of which the wrapper's go on to the base
    assert found["prefix_cache", "allocate_kv", "grow"] == (8, 1)
    assert found["paged_kv", "allocate_kv", "grow"] == (8, 1)
    # two layers
    assert found["core", "attention_impl", "forward"] == (2, 2)
    assert found["core", "execute", "submit"] == (1, 1)
    assert not any(method in ("start", "load", "needs", "(build)") for _, _, method in found)


def test_the_parts_and_the_clocks_are_stated(costs: Costs) -> None:
    assert costs.decode_seconds > 0 and costs.prefill_seconds > 0
    by_plugin = {cost.plugin: cost.decode_seconds for cost in costs.plugins}
    for plugin, seconds in by_plugin.items():
        its = [method.decode_seconds for method in costs.methods if method.plugin == plugin]
        assert sum(its) == pytest.approx(seconds)
    assert 0 <= costs.decode_overhead <= 9 and 0 <= costs.prefill_overhead <= 9
    assert costs.seconds_per_call >= 0


def test_bytes_and_seconds_until_it_is_ready_are_its_owners(costs: Costs) -> None:
    core = costs.plugins[-1]
    # weights in float32, read by the core's own recipe
    assert core.num_bytes > 100_000
    assert core.start_seconds > 0
    assert all(cost.num_bytes == 0 for cost in costs.plugins[:-1])


def test_with_everything_off_only_the_core_is_there(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    config = config_of(tiny_model, "engine.max_num_seqs=3", plugins=())
    costs = measure_costs(config, import_seconds(config))
    assert [cost.plugin for cost in costs.plugins] == ["core"]
    assert costs.num_rows == 3
    assert calls(costs)["core", "schedule_step", "plan"] == (1, 1)
