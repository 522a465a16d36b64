"""Paged KV: blocks by need, shared until written, taken back when they run out. PagedAttention's invariants (a) to (g).

Any history of calls is in test_paged_kv_stateful.py; this file has the cases by name, and the engine around them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.errors import ConfigError, PluginError, RequestError
from switchgear.core.records import BlockCopy, Limits, Slots
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import BlockPool, PagedKV

from ..core.engine import paged
from ..core.engine.build import Heard, add, executor_of, virtual_engine
from ..core.engine.virtual import tokens_alone
from .steps import engine_of, greedy, pool_of, step, steps

# -- blocks ---------------------------------------------------------------------------------------------------------


def test_a_row_takes_blocks_as_it_grows() -> None:
    pool = BlockPool(16, [8])
    assert pool.grow(0, 55) == Slots(((0, 1, 2, 3),))
    assert pool.grow(0, 64) == Slots(((),))
    assert pool.grow(0, 65) == Slots(((4,),))
    assert (pool.num_free(), pool.audit().held) == (3, 5)


def test_at_most_one_block_less_a_token_is_wasted_and_half_a_block_on_average() -> None:
    pool = BlockPool(16, [4096])
    wasted = []
    for row, length in enumerate(range(1, 129)):
        slots = pool.grow(row, length)
        assert slots is not None
        wasted.append(len(slots.blocks[0]) * 16 - length)
    assert max(wasted) == 15 and np.mean(wasted) == 7.5


def test_room_is_given_whole_or_not_at_all() -> None:
    pool = BlockPool(4, [5])
    pool.grow(0, 12)
    assert pool.grow(1, 12) is None and pool.grow(0, 24) is None
    assert (pool.num_free(), pool.tables[0].blocks[0], 1 in pool.tables) == (2, [0, 1, 2], False)
    assert pool.grow(1, 8) is not None and pool.num_free() == 0


def test_blocks_need_not_lie_together() -> None:
    pool = BlockPool(4, [6])
    for row in range(6):
        pool.grow(row, 4)
    for row in (1, 3, 5):
        pool.release(row)
    assert pool.grow(9, 12) == Slots(((5, 3, 1),)), "what was given up last comes first"
    pool.release(9)
    assert pool.grow(10, 12) == Slots(((5, 3, 1),)), "in the order that it had"


def test_every_group_has_the_same_blocks() -> None:
    pool = BlockPool(4, [6] * 3)
    assert pool.grow(0, 6) == Slots(((0, 1),) * 3)
    pool.fork(0, 1, 6)
    assert pool.grow(1, 7) == Slots(((),) * 3, tuple(BlockCopy(group, 1, 2) for group in range(3)))


def test_a_fork_copies_the_half_filled_block_when_it_writes_and_the_last_one_keeps_it() -> None:
    pool = BlockPool(4, [8])
    pool.grow(0, 10)
    pool.commit(0, 10, ())
    for child in (1, 2):
        assert pool.fork(0, child, 10) == Slots(((0, 1, 2),))
    assert pool.groups[0].num_references[:4] == [3, 3, 3, 0]
    assert pool.grow(1, 11) == Slots(((),), (BlockCopy(0, 2, 3),))
    assert pool.grow(0, 11) == Slots(((),), (BlockCopy(0, 2, 4),))
    assert pool.grow(2, 11) == Slots(((),)), "nobody else holds it any more"
    assert [pool.tables[row].blocks[0] for row in (0, 1, 2)] == [[0, 1, 4], [0, 1, 3], [0, 1, 2]]


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    pool = BlockPool(4, [8])
    pool.grow(0, 8)
    pool.commit(0, 8, ())
    pool.fork(0, 1, 8)
    assert pool.grow(1, 9) == Slots(((2,),))
    assert pool.grow(0, 9) == Slots(((3,),))


def test_a_copy_needs_a_block_of_its_own() -> None:
    pool = BlockPool(4, [2])
    pool.grow(0, 6)
    pool.commit(0, 6, ())
    pool.fork(0, 1, 6)
    assert pool.grow(1, 7) is None and pool.groups[0].num_references == [2, 2]
    pool.release(0)
    assert pool.grow(1, 7) == Slots(((),))


def test_a_shared_block_is_free_when_the_last_one_lets_go() -> None:
    pool = BlockPool(4, [3])
    pool.grow(0, 8)
    pool.pin(((0,),))
    pool.adopt(1, ((0, 1),))
    pool.release(0)
    assert pool.num_free() == 1
    pool.release(1)
    assert pool.num_free() == 2
    pool.unpin(((0,),))
    assert pool.num_free() == 3 and pool.audit().is_clean


def test_what_was_rejected_is_written_again_in_the_same_room() -> None:
    pool = BlockPool(4, [4])
    pool.grow(0, 5 + 6)  # six drafts
    pool.commit(0, 6, ())
    assert pool.grow(0, 7) == Slots(((),))
    assert len(pool.tables[0].blocks[0]) == 3


def test_releasing_an_unknown_row_does_nothing() -> None:
    pool = BlockPool(4, [4])
    pool.grow(0, 4)
    pool.release(7)
    assert pool.num_free() == 3


def test_an_audit_finds_what_is_wrong() -> None:
    pool = BlockPool(4, [4])
    pool.grow(0, 8)
    pool.groups[0].free.popleft()
    assert pool.audit().problems == ("a block is lost, or both free and held",)
    pool = BlockPool(4, [4])
    pool.grow(0, 8)
    pool.groups[0].free.append(0)
    assert pool.audit().problems == ("a block is lost, or both free and held",)
    pool = BlockPool(4, [4])
    pool.grow(0, 8)
    pool.tables[1] = pool.tables[0]
    assert pool.audit().problems == ("a block stands in more tables than it has references",)


# -- the engine -----------------------------------------------------------------------------------------------------


def test_admission_asks_for_tokens_and_not_for_the_longest_there_could_be() -> None:
    # one contiguous slot of 64 tokens, or 16 blocks of 4
    contiguous, blocks = Heard(), Heard()
    slots = engine_of(ContinuousBatching, max_num_seqs=8, kv_bytes=64 * 16)
    pages = engine_of(ContinuousBatching, PagedKV, max_num_seqs=8, num_blocks=16)
    for engine in (slots, pages):
        for index in range(8):
            add(engine, f"r{index}", [5] * 7, greedy(2))
    assert len(step(slots, contiguous)) == 1
    assert len(step(pages, blocks)) == 8


def test_the_later_request_is_preempted_and_neither_loses_a_token() -> None:
    engine, heard = engine_of(ContinuousBatching, PagedKV, num_blocks=6), Heard()
    add(engine, "early", [5] * 8, greedy(12))
    add(engine, "late", [6] * 8, greedy(12))
    ran = steps(engine, heard)
    assert all("early" in one for one in ran[:12]), "the earlier one never waits"
    early, late = heard.finals["early", 0][0], heard.finals["late", 0][0]
    assert (early.num_preemptions, late.num_preemptions) == (0, 1)
    assert heard.output("early") == tokens_alone([5] * 8, greedy(12))
    assert heard.output("late") == tokens_alone([6] * 8, greedy(12))
    # five tokens were generated before the blocks ran out: they are prompt now, and computed once more
    assert max(one.get("late", 0) for one in ran) == 8 + 5


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_many_preemptions_change_no_text(max_in_flight: int) -> None:
    limits = {"num_blocks": 9, "max_in_flight": max_in_flight, "max_num_seqs": 4}
    engine, heard = engine_of(ContinuousBatching, PagedKV, **limits), Heard()
    sampled = {f"r{seed}": SamplingParams(max_tokens=16, seed=seed, ignore_eos=True) for seed in range(6)}
    for index, (request, params) in enumerate(sampled.items()):
        add(engine, request, [5 + index] * (3 + 2 * index), params)
    steps(engine, heard)
    for index, (request, params) in enumerate(sampled.items()):
        assert heard.output(request) == tokens_alone([5 + index] * (3 + 2 * index), params)
    assert engine.driver.num_preempted > 0


def test_siblings_share_the_prompt_until_they_write() -> None:
    engine, heard = engine_of(ContinuousBatching, PagedKV), Heard()
    params = SamplingParams(max_tokens=6, n=3, seed=4, ignore_eos=True)
    prompt = [5] * 10
    add(engine, "a", prompt, params)
    step(engine, heard)
    tables = [table.blocks[0] for table in pool_of(engine).tables.values()]
    assert tables == [[0, 1, 2]] * 3, "three rows, one prompt"
    step(engine, heard)
    batch = executor_of(engine).last
    # a child computes the prompt's last token itself; of three that write into one block, two copy it first
    assert batch.query_lens.tolist() == [1, 1, 1] and batch.positions.tolist() == [10, 9, 9]
    assert [copy.source for copy in batch.copies] == [2, 2]
    steps(engine, heard)
    for child in range(3):
        assert heard.output("a", child) == tokens_alone(prompt, params, child)
    assert pool_of(engine).num_free() == 64


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = engine_of(ContinuousBatching, PagedKV, num_blocks=6)
    text = "the request needs 7 KV blocks of 4 tokens and the pool has 6: lower max_tokens, shorten the prompt or raise"
    with pytest.raises(RequestError, match=re.escape(text)):
        add(engine, "a", [5] * 20, greedy(6))
    # one token less fits to the last slot, since the KV of the last token is never needed
    add(engine, "a", [5] * 20, greedy(5))
    heard = Heard()
    steps(engine, heard)
    assert heard.output("a") == tokens_alone([5] * 20, greedy(5))


# -- a real model ---------------------------------------------------------------------------------------------------

PROMPTS: list[str | list[int]] = [
    [5 + index % 400 for index in range(50)],
    "The switch is a small part of the machine",
    "a",
    [9, 8, 7],
]
PARAMS = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, logprobs=0)


def outputs(llm: LLM) -> list[Any]:
    """Tokens and, to the last bit, their log probabilities."""
    results = llm.generate(PROMPTS, PARAMS)
    assert llm.audit() == []
    return [(one.token_ids, [at.chosen.logprob for at in one.logprobs or ()]) for one in results]


@pytest.fixture(scope="module")
def contiguous(tiny_model: Path) -> list[Any]:
    with LLM(str(tiny_model), dtype="float32", plugins={}) as llm:
        return outputs(llm)


@pytest.mark.parametrize("block_size", [1, 3, 16, 512])
def test_pages_give_what_slots_give_to_the_last_bit(tiny_model: Path, contiguous: list[Any], block_size: int) -> None:
    plugins = {"paged_kv": {"block_size": block_size}}
    with LLM(str(tiny_model), dtype="float32", plugins=plugins, kv_bytes=4 << 20) as llm:
        assert outputs(llm) == contiguous
        if block_size < 512:
            # blocks in any order hold the same KV
            np.random.default_rng(block_size).shuffle(pool_of(llm._engine).groups[0].free)
            assert outputs(llm) == contiguous


def test_recomputing_after_preemption_goes_on_where_it_stopped(tiny_model: Path, contiguous: list[Any]) -> None:
    # 512 bytes a token: room for 96 tokens, where the four requests come to 150
    plugins: dict[str, Any] = {"continuous_batching": {}, "paged_kv": {"block_size": 4}}
    with LLM(str(tiny_model), dtype="float32", plugins=plugins, kv_bytes=96 * 512) as llm:
        assert pool_of(llm._engine).num_free() == 24
        got = outputs(llm)
        assert llm._engine.driver.num_preempted > 0
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in contiguous]


# -- config ---------------------------------------------------------------------------------------------------------


def test_a_block_of_no_tokens_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^\[plugins.paged_kv\]: .*>= 1.*block_size"):
        virtual_engine(PagedKV, plugins={"paged_kv": {"block_size": 0}})


def test_a_block_is_never_longer_than_a_sequence() -> None:
    plugin = PagedKV(PagedKV.Config(block_size=4096))
    assert plugin.kv_block_size(Limits(8, 64, 512)) == 512
    assert PagedKV(PagedKV.Config()).kv_block_size(Limits(8, 64, 512)) == 16


def test_two_base_allocators_are_an_error_that_names_both() -> None:
    with pytest.raises(PluginError, match="plugins 'paged_kv' and 'paged' both provide 'allocate_kv'"):
        engine_of(PagedKV, paged.PagedKV)
