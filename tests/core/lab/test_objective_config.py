"""Recommended configs: the arithmetic behind them, and that the engine takes what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from switchgear.core.config import Config, build_config
from switchgear.core.errors import ConfigError
from switchgear.core.gateway.llm import LLM
from switchgear.core.lab.cost_model import CostModel, Curve, StepCounts
from switchgear.core.lab.episodes import Point
from switchgear.core.lab.fit import Residuals
from switchgear.core.lab.machine import this_machine
from switchgear.core.lab.objective_config import Wish, prospect_of, recommend, to_toml, toml_value
from switchgear.core.lab.profile import Profile
from switchgear.core.lab.roofline import Measured
from switchgear.core.lab.thresholds import Crossover, FreeChunk
from switchgear.core.testing.tiny import make_tiny_model

MODEL = CostModel("m", "by hand", "none", fixed=0.008, tokens=Curve((1, 9, 109), (0.0, 0.0, 0.1)))
"""8 ms however little is in a step, up to 9 tokens; then 1 ms for each."""


def config_of(model: Path, *overrides: str, recipe: str = "recommended") -> Config:
    given = [f"model.name={model}", "model.dtype=float32", "engine.kv_bytes=50000000", *overrides]
    return build_config(recipe=recipe, overrides=given)


def profile_of(config: Config, model: CostModel = MODEL, max_rows: int = 64) -> Profile:
    llm = LLM.from_config(config, load=False)
    plan = llm.plan
    llm.close()
    point = Point("decode", 0, 32, StepCounts.decode(max_rows, 33), (1.0,), (1.0,), is_held_out=False)
    return Profile(
        plan=plan,
        machine=this_machine(),
        versions={},
        ceilings=Measured(1.0, 1.0, {}),
        points=(point,),
        model=model,
        fitted=Residuals(1, 0.0, 0.0),
        held_out=Residuals(0, 0.0, 0.0),
        crossover=Crossover(10.0, 18.0, ()),
        chunk=FreeChunk(16, 8, ()),
        costs=None,
        costs_problem="not measured",
        num_rounds=3,
        startup_seconds=1.0,
        seconds=1.0,
    )


def test_a_prospect_is_the_models_arithmetic() -> None:
    wish = Wish(input_len=100, output_len=50)
    prospect = prospect_of(MODEL, wish, num_rows=4, num_chunk=20)
    # four decodes, and the eight prompt tokens that let as many requests in as leave
    assert prospect.step == pytest.approx(MODEL.seconds(StepCounts(0, 12, 0, 0, 0)))
    assert prospect.worst_step == pytest.approx(MODEL.seconds(StepCounts(0, 24, 0, 0, 0)))
    assert prospect.ttft == pytest.approx(5 * prospect.worst_step)
    assert prospect.output_tokens_per_s == pytest.approx(4 / prospect.step)


def test_a_chunk_that_starves_decode_is_worth_less() -> None:
    wish = Wish(input_len=100, output_len=10)
    starved, fed = (prospect_of(MODEL, wish, 8, chunk) for chunk in (10, 80))
    # ten prompt tokens a step feed one row of the eight
    assert starved.output_tokens_per_s == pytest.approx(1 / starved.step)
    assert fed.output_tokens_per_s == pytest.approx(8 / fed.step)


def test_the_objective_bounds_the_worst_step(tiny_model: Path) -> None:
    config = config_of(tiny_model)
    wish = Wish(tpot=0.05, input_len=100, output_len=50)
    better = recommend(profile_of(config), config, wish)
    assert better.is_met
    assert better.prospect.worst_step <= 0.05
    budget = better.config.plugins[3].options["max_num_batched_tokens"]
    assert budget == better.prospect.num_rows + better.prospect.num_chunk <= 51
    assert better.config.engine.max_num_seqs == better.prospect.num_rows
    stricter = recommend(profile_of(config), config, replace(wish, tpot=0.03))
    assert stricter.prospect.worst_step <= 0.03
    assert stricter.prospect.output_tokens_per_s <= better.prospect.output_tokens_per_s


def test_latency_keeps_the_batch_where_rows_are_free(tiny_model: Path) -> None:
    config = config_of(tiny_model)
    profile = profile_of(config, replace(MODEL, tokens=Curve((1, 9, 109), (0.0, 0.0, 0.05))))
    wish = Wish("latency", input_len=10, output_len=200)
    latency = recommend(profile, config, wish)
    throughput = recommend(profile, config, replace(wish, goal="throughput"))
    assert latency.prospect.num_rows <= 12 < throughput.prospect.num_rows
    assert latency.prospect.step <= 1.25 * 0.008
    assert "the most rows whose step is within 25%" in latency.reasons[0].why
    assert "the fewest rows that give 97%" in throughput.reasons[0].why


def test_what_cannot_be_met_is_said_and_comes_near(tiny_model: Path) -> None:
    config = config_of(tiny_model)
    better = recommend(profile_of(config), config, Wish(tpot=0.001, input_len=100, output_len=50))
    assert not better.is_met
    assert better.prospect.num_rows == 1


def test_no_more_rows_than_were_measured_or_have_kv(tiny_model: Path) -> None:
    config = config_of(tiny_model)
    # every row is free here, so that the most is best
    free = CostModel("m", "by hand", "none", fixed=0.008)
    wish = Wish(input_len=100, output_len=100)
    assert recommend(profile_of(config, free, 20), config, wish).prospect.num_rows == 20
    profile = profile_of(config, free, 20)
    narrow = replace(profile, plan=replace(profile.plan, kv_num_blocks=40, kv_block_size=16))
    # 200 tokens are 13 blocks
    assert recommend(narrow, config, wish).prospect.num_rows == 3


def test_the_config_starts_an_engine_with_what_was_chosen(tiny_model: Path, tmp_path: Path) -> None:
    config = config_of(tiny_model, "plugins.paged_kv.block_size=8", "engine.seed=3")
    better = recommend(profile_of(config), config, Wish(tpot=0.05, input_len=100, output_len=50))
    file = tmp_path / "better.toml"
    file.write_text(to_toml(better), encoding="utf-8")
    assert build_config(file) == better.config
    with LLM.from_config(build_config(file)) as llm:
        assert llm.plan.max_num_seqs == better.prospect.num_rows
        assert llm.plan.kv_block_size == 8
        assert llm.generate([[20, 21, 22]])[0].error == ""


def test_with_everything_off_a_scheduler_is_switched_on_and_it_says_so(tiny_model: Path, tmp_path: Path) -> None:
    config = config_of(tiny_model, recipe="all_off")
    better = recommend(profile_of(config), config, Wish(input_len=100, output_len=50))
    assert [plugin.name for plugin in better.config.plugins] == ["continuous_batching", "chunked_prefill"]
    assert [reason.setting for reason in better.reasons[2:]] == ["--on continuous_batching", "--on chunked_prefill"]
    file = tmp_path / "better.toml"
    file.write_text(to_toml(better), encoding="utf-8")
    LLM.from_config(build_config(file), load=False).close()


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (Wish(tpot=0.0), "--tpot is 0"),
        (Wish(ttft=-1.0), "--ttft is -1"),
        (Wish(input_len=0), "--input-len 0"),
        (Wish(input_len=500, output_len=100), "at most .* 512"),
    ],
)
def test_a_wish_that_is_none_is_refused(wish: Wish, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wish.check(512)


@pytest.mark.parametrize(
    "value", ['a "b" \\ \n\x7f \u00fc', 3, 0.5, 1e-7, True, [1, 2], ["a"], {"a b": [1, {"c": False}]}]
)
def test_values_are_read_back_as_they_were(value: object) -> None:
    import tomllib

    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


def test_a_file_names_no_plugin_that_the_recipe_brought_in_vain(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", family="mixtral")
    config = config_of(model)
    profile = profile_of(config)
    better = recommend(profile, config, Wish(tpot=0.05, input_len=100, output_len=50)).config
    names = {entry.name for entry in better.plugins}
    assert names == {entry.name for entry in config.plugins} - set(profile.plan.degraded)
    LLM.from_config(better, load=False).close()
