"""Layers that see a window, in the engine: what rows have passed is given back, found again, and never read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.engine.engine import Engine
from switchgear.core.records import NOT_HELD, IntArray
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.plugins.chunked_prefill import ChunkedPrefill
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import PagedKV
from switchgear.plugins.prefix_cache import PrefixCache

from ..core.engine.build import Heard, add, executor_of
from ..core.engine.drafting import drafting
from ..core.engine.virtual import tokens_alone
from .steps import cache_of, engine_of, greedy, pool_of, step, steps

PROMPT = [3 + index % 36 for index in range(30)]
IN_PIECES: Any = {"chunked_prefill": {"max_num_batched_tokens": 6}}


def two_groups(*others: type, num_blocks: int = 24, **options: Any) -> Engine:
    """One group that sees everything and one that sees a window of six tokens, in blocks of four."""
    return engine_of(ContinuousBatching, PagedKV, *others, num_blocks=num_blocks, num_groups=2, **options)


def num_held(engine: Engine, row: int = 0) -> tuple[int, ...]:
    """Blocks that a row holds in each group."""
    return tuple(sum(block != NOT_HELD for block in table) for table in pool_of(engine).tables[row].blocks)


# -- giving back ----------------------------------------------------------------------------------------------------


def test_a_row_holds_its_window_and_no_more() -> None:
    engine, heard = two_groups(), Heard()
    add(engine, "a", PROMPT[:20], greedy(20))
    held = []
    while engine.has_work:
        step(engine, heard)
        held += [num_held(engine)] if pool_of(engine).tables else []
    assert heard.output("a") == tokens_alone(PROMPT[:20], greedy(20), num_groups=2)
    assert [whole for whole, _ in held] == [-(-tokens // 4) for tokens in range(20, 39)]
    # the six tokens of a window lie in two or three blocks
    assert {windowed for _, windowed in held} == {2, 3}


def test_a_prompt_in_pieces_gives_back_as_it_goes() -> None:
    engine, heard = two_groups(ChunkedPrefill, plugins=IN_PIECES), Heard()
    add(engine, "a", PROMPT, greedy(3))
    held = []
    for _ in range(5):
        step(engine, heard)
        held.append(num_held(engine))
    assert held == [(2, 2), (3, 2), (5, 2), (6, 2), (8, 2)]
    steps(engine, heard)
    assert heard.output("a") == tokens_alone(PROMPT, greedy(3), num_groups=2)


@pytest.mark.parametrize("length", range(1, 16))
def test_siblings_find_all_that_the_last_token_of_the_prompt_saw(length: int) -> None:
    engine, heard = two_groups(), Heard()
    params = SamplingParams(max_tokens=12, n=3, seed=4, ignore_eos=True)
    add(engine, "a", PROMPT[:length], params)
    steps(engine, heard)
    for child in range(3):
        assert heard.output("a", child) == tokens_alone(PROMPT[:length], params, child, num_groups=2)
    # the prompt once, and its last token once more for each of two that share the rest
    assert sum(executor_of(engine).num_step_tokens) == length + 2 + 3 * 11
    assert pool_of(engine).audit().held == 0


def test_a_rejected_draft_has_not_moved_the_window() -> None:
    """Twelve drafts, twice the window, none of which is ever right."""

    def wrong(tokens: IntArray, count: int) -> list[int]:
        right = tokens_alone(PROMPT[:9], greedy(30), num_groups=2)
        done = len(tokens) - 9
        return [(token + 1) % 40 for token in (right[done:] + (7,) * 12)[:count]]

    engine, heard = two_groups(drafting(wrong, num_drafts=12)), Heard()
    add(engine, "a", PROMPT[:9], greedy(30))
    steps(engine, heard)
    assert heard.output("a") == tokens_alone(PROMPT[:9], greedy(30), num_groups=2)


def test_a_row_that_starts_again_gives_back_again() -> None:
    engine, heard = two_groups(), Heard()
    add(engine, "a", PROMPT[:20], greedy(8))
    for _ in range(3):
        step(engine, heard)
    engine.preempt_all()
    step(engine, heard)
    assert num_held(engine) == (6, 2)
    steps(engine, heard)
    assert heard.output("a") == tokens_alone(PROMPT[:20], greedy(8), num_groups=2)


def test_preempted_rows_lose_no_token() -> None:
    engine, heard = two_groups(num_blocks=10), Heard()
    requests = {f"r{index}": PROMPT[index : index + 9] for index in range(3)}
    for request, prompt in requests.items():
        add(engine, request, prompt, greedy(20))
    steps(engine, heard)
    assert engine.driver.num_preempted > 0
    for request, prompt in requests.items():
        assert heard.output(request) == tokens_alone(prompt, greedy(20), num_groups=2)


def test_what_windows_leave_holds_more_sequences() -> None:
    num_bytes = 64 * 4 * 2 * 16  # 64 blocks in each group, if they were equal
    engine = engine_of(ContinuousBatching, PagedKV, num_blocks=None, num_groups=2, kv_bytes=num_bytes, max_num_seqs=4)
    whole, windowed = (group.num_blocks for group in engine.parts.kv_spec)
    # four rows with three blocks and one to spare, and the longest prompt there may be
    assert windowed == 4 * (2 + 2) + 64 // 4 and whole == 128 - windowed
    assert engine.parts.kv.num_blocks == engine.driver.allocator.value.num_free() == whole


# -- hits -----------------------------------------------------------------------------------------------------------


def serve(engine: Engine, request: str, prompt: list[int], max_tokens: int = 6) -> int:
    """The cached tokens of a request that runs alone."""
    heard = Heard()
    add(engine, request, prompt, greedy(max_tokens))
    steps(engine, heard)
    assert heard.output(request) == tokens_alone(prompt, greedy(max_tokens), num_groups=2)
    return heard.finals[request, 0][0].num_cached


def lose(engine: Engine, *places: int) -> None:
    """Evict the blocks at these places of the first prompt, where layers see a window."""
    whole, windowed = cache_of(engine).groups
    keys = list(whole.blocks_of)
    for place in places:
        (block,) = windowed.blocks_of[keys[place]]
        windowed.evictable.move_to_end(block, last=False)
        windowed.evict(1)


@pytest.mark.parametrize("classes", [(), (ChunkedPrefill,)])
def test_what_was_given_back_is_found(classes: tuple[type, ...]) -> None:
    engine = two_groups(PrefixCache, *classes, plugins=IN_PIECES if classes else {})
    assert serve(engine, "cold", PROMPT) == 0
    assert serve(engine, "warm", PROMPT) == 28
    assert serve(engine, "shorter", PROMPT[:18]) == 16
    assert serve(engine, "other", PROMPT[:12] + PROMPT[:9]) == 12


def test_a_hit_needs_only_the_last_window() -> None:
    engine = two_groups(PrefixCache)
    serve(engine, "cold", PROMPT)
    # who goes on at 28 sees from 23 on, which is the sixth block
    lose(engine, 0, 1, 2, 3, 4)
    assert serve(engine, "warm", PROMPT) == 28
    assert serve(engine, "shorter", PROMPT[:18]) == 0


def test_a_gap_in_the_window_ends_the_hit_before_it() -> None:
    engine = two_groups(PrefixCache)
    serve(engine, "cold", PROMPT)
    lose(engine, 2, 5)
    assert serve(engine, "warm", PROMPT) == 20
    # the warm one computed the sixth block again, the third nobody needed
    assert serve(engine, "warm again", PROMPT) == 28
    assert serve(engine, "shorter", PROMPT[:18]) == 8


# -- the model ------------------------------------------------------------------------------------------------------

PROMPTS = [[5 + index % 400 for index in range(50)], [9, 8, 7], [30 + index % 90 for index in range(23)]]
PARAMS = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module", params=["gemma3", "mistral"])
def local_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with local layers, beside global ones or alone."""
    return make_tiny_model(tmp_path_factory.mktemp(request.param), family=request.param, sliding_window=7)


def poison(llm: LLM) -> None:
    """No number in any block that nobody holds."""
    worker, pool = llm._engine.executor.worker, pool_of(llm._engine)  # type: ignore[attr-defined]
    for group, blocks in zip(llm._engine.parts.kv_spec, pool.groups, strict=True):
        for layer in group.layers:
            for cache in (worker.caches[layer].k, worker.caches[layer].v):
                cache[list(blocks.free)] = torch.nan


def test_what_was_given_back_is_never_read(local_model: Path) -> None:
    """Not even times 0: whoever has the block now may write anything there."""
    with LLM(str(local_model), dtype="float64", plugins={}) as llm:
        expected = [result.token_ids for result in llm.generate(PROMPTS, PARAMS)]
    plugins: dict[str, Any] = {"paged_kv": {"block_size": 4}, "chunked_prefill": {"max_num_batched_tokens": 16}}
    with LLM(str(local_model), dtype="float64", plugins=plugins, kv_bytes=1 << 20, max_num_seqs=8) as llm:
        heard = Heard()
        poison(llm)
        for index, prompt in enumerate(PROMPTS):
            llm._engine.add(f"r{index}", np.array(prompt), PARAMS)
        while llm._engine.has_work:
            heard.listen(llm._engine.step())
            poison(llm)
        assert [heard.output(f"r{index}") for index in range(len(PROMPTS))] == expected
