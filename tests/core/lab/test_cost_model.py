"""The cost model: what it counts, what it prices, and that it comes back from a file as it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.errors import ConfigError
from switchgear.core.lab.cost_model import CostModel, Curve, StepCounts

rows = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), min_size=1, max_size=8)


@given(rows)
def test_pairs_are_counted_as_if_one_by_one(lens: list[tuple[int, int]]) -> None:
    queries = [num_new for num_new, _ in lens]
    contexts = [num_new + num_before for num_new, num_before in lens]
    counts = StepCounts.of_rows(queries, contexts, 3)
    seen = sum(num_before + index + 1 for num_new, num_before in lens for index in range(num_new))
    assert counts == StepCounts(len(lens), sum(queries), sum(contexts), seen, 3)


def test_decode_and_prefill_are_counted_alike() -> None:
    assert StepCounts.decode(5, 100) == StepCounts.of_rows([1] * 5, [100] * 5, 5)
    assert StepCounts.prefill(30, 4) == StepCounts.of_rows([30] * 4, [30] * 4, 4)
    assert StepCounts.decode(5, 100) + StepCounts.prefill(30) == StepCounts.of_rows([1] * 5 + [30], [100] * 5 + [30], 6)


@given(st.integers(0, 2000))
def test_a_curve_is_linear_between_its_knots(count: int) -> None:
    counts, seconds = (2, 3, 16, 1000), (0.5, 0.5, 2.0, 10.0)
    expected = np.interp(count, counts, seconds) if count <= 1000 else 10.0 + (count - 1000) * 8.0 / 984
    assert Curve(counts, seconds).at(count) == pytest.approx(0.0 if count == 0 else expected)


def test_a_curve_of_one_knot_is_a_step() -> None:
    assert [Curve((4,), (2.0,)).at(count) for count in (0, 1, 4, 9)] == [0.0, 2.0, 2.0, 2.0]
    assert Curve().at(7) == 0.0


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [((1, 2), (1.0,)), ((0, 2), (1.0, 2.0)), ((2, 2), (1.0, 2.0)), ((1, 2), (2.0, 1.0)), ((1,), (float("nan"),))],
)
def test_a_curve_that_says_nonsense_is_refused(counts: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="curve"):
        Curve(counts, seconds)


MODEL = CostModel(
    "tiny",
    "by hand",
    "no machine",
    fixed=1.0,
    per_row=0.1,
    per_context=0.01,
    per_pair=0.001,
    tokens=Curve((1, 10), (0.0, 9.0)),
    outputs=Curve((1,), (0.5,)),
)


def test_every_term_is_in_the_price() -> None:
    assert MODEL.seconds(StepCounts(2, 4, 50, 70, 2)) == pytest.approx(1.0 + 0.2 + 0.5 + 0.07 + 3.0 + 0.5)
    assert MODEL.seconds(StepCounts(2, 4, 50, 70, 0)) == pytest.approx(1.0 + 0.2 + 0.5 + 0.07 + 3.0)


def test_a_file_gives_it_back(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text(json.dumps({**MODEL.to_json(), "profile": {"anything": "else"}}), encoding="utf-8")
    assert CostModel.load(file) == MODEL


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "no cost model"),
        ('{"format": 99}', "no cost model"),
        ('{"format": 1, "name": "x"}', "cannot be read"),
        (json.dumps({**MODEL.to_json(), "per_row": -1.0}), "per_row"),
    ],
)
def test_what_is_no_cost_model_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "cost.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        CostModel.load(file)
    with pytest.raises(ConfigError, match="cannot read"):
        CostModel.load(tmp_path / "none.json")


def test_published_tables_are_given_back() -> None:
    """Splitwise's performance model of Llama2-70B on A100s: one prompt, and decode by batch size."""
    prompts = [(512, 0.094), (1024, 0.155), (2048, 0.274), (4096, 0.661)]
    decodes = [(1, 0, 0.0449), (16, 0, 0.0504), (64, 0, 0.0716)]
    model = CostModel.from_tables("llama2-70b", "splitwise-sim", "8 x A100", prefill=prompts, decode=decodes)
    for num_tokens, seconds in prompts:
        assert model.seconds(StepCounts.prefill(num_tokens)) == pytest.approx(seconds, rel=1e-6)
    for num_rows, length, seconds in decodes:
        assert model.seconds(StepCounts.decode(num_rows, length)) == pytest.approx(seconds, rel=1e-6)
    assert 0.0504 < model.seconds(StepCounts.decode(30, 0)) < 0.0716


def test_published_coefficients_are_found() -> None:
    """a + b * context + c * rows for decode, as SimDistServe has it."""
    shapes = [(rows, length) for rows in (1, 8, 64) for length in (64, 1024)]
    decodes = [(rows, length, 0.01 + 2e-7 * rows * length + 1e-4 * rows) for rows, length in shapes]
    model = CostModel.from_tables("opt-13b", "SimDistServe", "A100", decode=decodes)
    assert model.seconds(StepCounts.decode(32, 512)) == pytest.approx(0.01 + 2e-7 * 32 * 512 + 1e-4 * 32, rel=1e-6)


def test_tables_without_a_point_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        CostModel.from_tables("none", "nowhere", "none")
