"""The plugin in a whole engine, switched on by name: the same tokens, in another order."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.gateway.results import Result
from switchgear.core.testing.tiny import make_tiny_model

LENGTHS = (60, 10, 40, 5)
PROMPTS = [[3 + (7 * length + i) % 250 for i in range(length)] for length in LENGTHS]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def generate(model: Path, plugins: Mapping[str, Mapping[str, float]]) -> list[Result]:
    """One sequence at a time, so that the others wait; the clock counts how often it is read."""
    readings = count()
    clock = lambda: float(next(readings))  # noqa: E731
    with LLM(str(model), dtype="float32", plugins=plugins, max_num_seqs=1, clock=clock) as llm:
        return llm.generate(PROMPTS, GREEDY)


def served(results: list[Result]) -> list[int]:
    """Prompt lengths in the order of their first tokens."""
    first_token = sorted(results, key=lambda result: result.timing.ttft)
    return [len(result.prompt_token_ids) for result in first_token]


def test_short_prompts_are_answered_first_with_the_same_tokens(model: Path) -> None:
    off = generate(model, {})
    on = generate(model, {"shortest_first": {"max_wait": 1e9}})
    assert served(off) == list(LENGTHS)
    assert served(on) == sorted(LENGTHS)
    assert [result.token_ids for result in on] == [result.token_ids for result in off]


def test_overdue_prompts_are_answered_in_order_of_arrival(model: Path) -> None:
    assert served(generate(model, {"shortest_first": {"max_wait": 0.0}})) == list(LENGTHS)


def test_the_plan_names_the_plugin_and_its_distribution(model: Path) -> None:
    with LLM(str(model), dtype="float32", plugins={"shortest_first": {}}) as llm:
        assert "shortest_first" in str(llm.plan)
