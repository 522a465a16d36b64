"""A seed gives the same tokens alone, in any batch, after a preemption, and as any child of any request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM, SamplingParams

from .build import Heard, add, drain, tiny_llm
from .paged import PagedKV
from .prefix import PrefixCache
from .schedulers import Continuous

PROMPT = [5, 60, 70, 8, 90, 10, 11]
OTHERS = [[20 + index] * (2 + 3 * index) for index in range(7)]
SEEDED = SamplingParams(max_tokens=24, temperature=1.0, top_p=0.95, seed=1234, ignore_eos=True)
BYTES_PER_TOKEN = 1024
"""Of the tiny model in float64."""


def make(tiny_model: Path, *classes: type, num_blocks: int = 128, **engine: Any) -> LLM:
    """float64, so that no logit depends on the batch by more than a rounding that no draw can see."""
    kv_bytes = num_blocks * 4 * BYTES_PER_TOKEN if classes else None
    return tiny_llm(tiny_model, *classes, dtype="float64", kv_bytes=kv_bytes, **engine)


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Iterator[LLM]:
    with make(tiny_model) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(plain: LLM) -> tuple[int, ...]:
    return outputs(plain, PROMPT, SEEDED)[0]


def outputs(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> list[tuple[int, ...]]:
    [result] = llm.generate(prompt, params)
    return [choice.token_ids for choice in result.choices]


def test_the_noise_matters(plain: LLM, alone: tuple[int, ...]) -> None:
    """Otherwise the tests below would show nothing."""
    assert outputs(plain, PROMPT, replace(SEEDED, seed=1235)) != [alone]
    assert outputs(plain, PROMPT, replace(SEEDED, temperature=0.0)) != [alone]
    assert len(set(alone)) > 12


def test_the_same_again(plain: LLM, alone: tuple[int, ...]) -> None:
    assert outputs(plain, PROMPT, SEEDED) == [alone]


@pytest.mark.parametrize("place", [0, 3, 7])
def test_in_a_batch_of_eight(plain: LLM, alone: tuple[int, ...], place: int) -> None:
    prompts = [*OTHERS[:place], PROMPT, *OTHERS[place:]]
    params = [replace(SEEDED, seed=index, temperature=0.5 + index / 8) for index in range(8)]
    params[place] = SEEDED
    assert plain.generate(prompts, params)[place].token_ids == alone


def test_after_forced_preemptions(tiny_model: Path, alone: tuple[int, ...]) -> None:
    """A pool of ten blocks for two rows of eight: whoever was admitted last gives way, more than once."""
    with make(tiny_model, PagedKV, Continuous, num_blocks=10) as llm:
        heard = Heard()
        add(llm._engine, "first", [9] * 7, replace(SEEDED, max_tokens=20))
        add(llm._engine, "second", PROMPT, SEEDED)
        drain(llm._engine, heard)
        assert heard.finals["second", 0][0].num_preemptions > 0
        assert heard.output("second") == alone


def test_whenever_it_is_preempted(tiny_model: Path, alone: tuple[int, ...]) -> None:
    with make(tiny_model, PagedKV, PrefixCache, Continuous) as llm:
        heard = Heard()
        add(llm._engine, "r", PROMPT, SEEDED)
        while llm._engine.has_work:
            heard.listen(llm._engine.step())
            llm._engine.preempt_all()
            assert llm.audit() == []
        assert heard.output("r") == alone


@pytest.mark.parametrize("classes", [(), (PagedKV, Continuous), (PagedKV, PrefixCache, Continuous)])
def test_children_are_the_same_children_everywhere(
    tiny_model: Path, alone: tuple[int, ...], classes: tuple[type, ...]
) -> None:
    with make(tiny_model, *classes) as llm:
        three = outputs(llm, PROMPT, replace(SEEDED, n=3))
        assert three[0] == alone
        assert len(set(three)) == 3
        assert outputs(llm, PROMPT, replace(SEEDED, n=2)) == three[:2]
        params = [replace(SEEDED, n=2), replace(SEEDED, n=3), replace(SEEDED, seed=7)]
        _, result, _ = llm.generate([OTHERS[3], PROMPT, OTHERS[5]], params)
        assert [choice.token_ids for choice in result.choices] == three


def test_without_a_seed_requests_differ_and_runs_repeat(tiny_model: Path) -> None:
    unseeded = replace(SEEDED, seed=None)
    runs = []
    for _ in range(2):
        with make(tiny_model) as llm:
            runs.append([result.token_ids for result in llm.generate([PROMPT] * 3, unseeded)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


def test_the_engine_seed_moves_requests_without_one(tiny_model: Path, alone: tuple[int, ...]) -> None:
    tokens = []
    for seed in (0, 1):
        with make(tiny_model, seed=seed) as llm:
            assert outputs(llm, PROMPT, SEEDED) == [alone]
            tokens.append(outputs(llm, PROMPT, replace(SEEDED, seed=None)))
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_every_seed_in_range_is_one(plain: LLM, alone: tuple[int, ...], seed: int) -> None:
    first, again = (outputs(plain, PROMPT, replace(SEEDED, seed=seed)) for _ in range(2))
    assert first == again != [alone]


@pytest.mark.parametrize("seed", [2**63 - 1, 2**62])
def test_any_engine_seed_serves(tiny_model: Path, seed: int) -> None:
    with make(tiny_model, seed=seed) as llm:
        assert len(outputs(llm, PROMPT, replace(SEEDED, seed=None))[0]) == 24
