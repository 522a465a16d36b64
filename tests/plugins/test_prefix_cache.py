"""Prefix caching: what is found, what is given up first, what is counted, and that no token changes.

Any history of calls against a simple model is in test_prefix_cache_stateful.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.engine.block_keys import extend_keys, root_key
from switchgear.core.errors import ConfigError, PluginError, RequestError
from switchgear.core.records import Hit
from switchgear.plugins.chunked_prefill import ChunkedPrefill
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import BlockPool, PagedKV
from switchgear.plugins.prefix_cache import CachedPool, PrefixCache

from ..core.engine.build import Heard, add
from ..core.engine.virtual import tokens_alone
from .steps import cache_of, cache_plugin_of, engine_of, greedy, pool_of, step, steps

# -- blocks ---------------------------------------------------------------------------------------------------------


def cached_pool(num_blocks: int, block_size: int = 16, num_groups: int = 1) -> CachedPool:
    return CachedPool(BlockPool(num_groups, block_size, num_blocks), num_groups, block_size, "tenant")


def keys_of(text: str) -> tuple[bytes, ...]:
    """A key for each letter, which stands for a full block and for all before it."""
    return tuple(text[:end].encode() for end in range(1, len(text) + 1))


def admit(cache: CachedPool, row: int, text: str, num_tokens: int | None = None) -> tuple[int, ...] | None:
    """What the core does for a new row, up to the commit of its prompt; the blocks that it was given on top of hits.

    text: one letter for each full block; num_tokens: with the part of a block that follows, here one token.
    """
    num_tokens = num_tokens or len(text) * cache.block_size + 1
    hit = cache.match(keys_of(text)[: (num_tokens - 1) // cache.block_size])
    if hit.num_tokens:
        cache.adopt(row, hit.blocks)
    slots = cache.grow(row, num_tokens)
    if slots is None:
        cache.release(row)
        return None
    cache.commit(row, num_tokens, keys_of(text))
    assert_clean(cache)
    return slots.blocks[0]


def assert_clean(cache: CachedPool) -> None:
    audit = cache.audit()
    assert audit.is_clean and audit.problems == ()
    assert isinstance(cache.inner, BlockPool)
    assert all(cache.inner.num_references[block] == 1 for block in cache.evictable)
    assert audit.evictable == len(cache.evictable) and audit.free == cache.inner.num_free()


def found(cache: CachedPool, text: str) -> tuple[int, ...]:
    return cache.match(keys_of(text)).blocks[0]


def evicted_order(cache: CachedPool) -> list[str]:
    """The last letters of the cached blocks' keys, the next to go first."""
    return [cache.key_of[block].decode()[-1] for block in cache.evictable]


def test_a_prompt_of_55_tokens_has_four_blocks_and_publishes_three() -> None:
    cache = cached_pool(10)
    assert admit(cache, 0, "abc", 55) == (0, 1, 2, 3)
    assert set(cache.key_of) == {0, 1, 2}
    assert [cache.num_holders[block] for block in range(4)] == [1, 1, 1, 1]
    # the second shares 48 tokens: it holds the three as well, and takes one block
    assert admit(cache, 1, "abc", 55) == (4,)
    assert cache.tables[1] == [0, 1, 2, 4]
    assert [cache.num_holders[block] for block in range(5)] == [2, 2, 2, 1, 1]


def test_a_hit_is_the_longest_run_from_the_front() -> None:
    cache = cached_pool(10)
    admit(cache, 0, "abc")
    assert found(cache, "abc") == (0, 1, 2)
    assert found(cache, "abx") == (0, 1)
    assert found(cache, "xbc") == ()
    assert cache.match(keys_of("abx")) == Hit(((0, 1),), 32)
    assert cache.match(()) == Hit(((),), 0)


def test_a_hit_is_in_every_group() -> None:
    cache = cached_pool(10, num_groups=2)
    admit(cache, 0, "ab")
    assert cache.match(keys_of("ab")) == Hit(((0, 1), (0, 1)), 32)
    admit(cache, 1, "ab")
    cache.release(0)
    cache.release(1)
    assert_clean(cache)


def test_the_cached_are_given_up_last_first_and_the_oldest_sequence_before_others() -> None:
    cache = cached_pool(10)
    admit(cache, 0, "abc", 55)  # blocks 0 1 2, and 3 for the rest
    admit(cache, 1, "xyz", 50)  # blocks 4 5 6, and 7
    cache.release(1)
    cache.release(0)
    # vLLM orders the free too; ours come first in any order, since nothing can be found in them
    assert cache.num_free() == 10 and evicted_order(cache) == ["z", "y", "x", "c", "b", "a"]
    assert admit(cache, 2, "n", 4 * 16) is not None and evicted_order(cache) == ["z", "y", "x", "c", "b", "a"]
    cache.grow(2, 6 * 16)
    assert evicted_order(cache) == ["x", "c", "b", "a"]
    assert found(cache, "xyz") == (4,) and found(cache, "abc") == (0, 1, 2)


def test_using_a_prefix_again_makes_it_the_last_to_go() -> None:
    cache = cached_pool(12)
    admit(cache, 0, "abc")
    admit(cache, 1, "xyz")
    cache.release(0)
    cache.release(1)
    admit(cache, 2, "ab")
    cache.release(2)
    assert evicted_order(cache) == ["c", "z", "y", "x", "b", "a"]


def test_what_was_released_is_found_until_it_is_overwritten() -> None:
    cache = cached_pool(4)
    admit(cache, 0, "ab")
    cache.release(0)
    assert admit(cache, 1, "ab") is not None and cache.tables[1][:2] == [0, 1]
    cache.release(1)
    assert admit(cache, 2, "vwx") is not None  # takes all four
    assert found(cache, "ab") == () and found(cache, "vwx") != ()
    assert cache.num_evicted == 2


def test_what_a_row_found_is_not_evicted_for_it() -> None:
    cache = cached_pool(5)
    admit(cache, 0, "ab")  # the oldest
    cache.release(0)
    admit(cache, 1, "xy")
    cache.release(1)
    assert evicted_order(cache) == ["b", "a", "y", "x"]
    assert cache.inner.num_free() == 1
    assert admit(cache, 2, "abcd") == (2, 4, 3)
    assert cache.tables[2] == [0, 1, 2, 4, 3] and found(cache, "xy") == ()


def test_too_few_free_blocks_change_nothing() -> None:
    cache = cached_pool(6)
    admit(cache, 0, "ab")
    cache.release(0)
    admit(cache, 1, "xyz")
    before = cache.num_holders.copy(), list(cache.evictable), dict(cache.key_of)
    assert cache.num_free() == 2
    assert admit(cache, 2, "abcd") is None, "two found, three more needed, none left"
    assert cache.grow(1, 7 * 16) is None
    assert (cache.num_holders, list(cache.evictable), cache.key_of) == before and cache.num_evicted == 0
    assert_clean(cache)


def test_nothing_is_evicted_for_a_copy_that_would_still_lack_a_block() -> None:
    cache = cached_pool(3, block_size=4)
    admit(cache, 0, "a", 6)
    admit(cache, 1, "x", 4)
    cache.fork(0, 2, 6)
    cache.release(1)
    assert cache.num_free() == 1
    assert cache.grow(2, 9) is None, "a copy of the half-filled block, and a new one"
    assert found(cache, "x") == (2,)
    assert cache.grow(2, 7) is not None and found(cache, "x") == ()


def test_a_block_that_is_taken_again_forgets_its_key() -> None:
    cache = cached_pool(2)
    admit(cache, 0, "a")
    cache.release(0)
    admit(cache, 1, "x")
    assert set(cache.key_of.values()) == {b"x"} and set(cache.blocks_of) == {b"x"}


def test_twins_coexist_while_they_are_used_and_one_of_them_stays() -> None:
    cache = cached_pool(9)
    for row in (0, 1):  # side by side: neither was published when the other began
        cache.match(keys_of("abc"))
        cache.grow(row, 49)
    for row in (0, 1):
        cache.commit(row, 49, keys_of("abc"))
    assert cache.blocks_of[b"a"] == [0, 4]
    cache.release(0)
    assert_clean(cache)
    # vLLM keeps both until it needs the room; we keep the one in use, and have the room
    assert cache.blocks_of[b"a"] == [4] and found(cache, "abc") == (4, 5, 6)
    assert (cache.inner.num_free(), len(cache.evictable)) == (5, 0)
    cache.release(1)
    assert found(cache, "abc") == (4, 5, 6) and evicted_order(cache) == ["c", "b", "a"]


def test_whoever_leaves_first_the_rest_of_a_prefix_is_not_cut_from_its_front() -> None:
    cache = cached_pool(9)
    for row in (0, 1):
        cache.grow(row, 49)
    cache.commit(0, 49, keys_of("abc"))
    cache.commit(1, 49, keys_of("abd"))
    cache.release(0)
    cache.release(1)
    assert evicted_order(cache) == ["c", "d", "b", "a"]


def test_a_recomputed_block_takes_the_place_of_the_one_nobody_uses() -> None:
    cache = cached_pool(8)
    admit(cache, 0, "ab")
    cache.release(0)
    assert cache.grow(1, 33) is not None  # without looking, as a request that wants prompt_logprobs
    cache.commit(1, 33, keys_of("ab"))
    assert_clean(cache)
    assert found(cache, "ab") == tuple(cache.tables[1][:2]) and not cache.evictable
    assert cache.num_evicted == 0


def test_generated_tokens_fill_a_block_and_publish_it() -> None:
    cache = cached_pool(6, block_size=4)
    admit(cache, 0, "a", 6)
    assert found(cache, "ab") == (0,)
    for num_tokens in (7, 8):
        cache.grow(0, num_tokens)
        cache.commit(0, num_tokens, keys_of("ab"[: num_tokens // 4]))
    assert found(cache, "ab") == (0, 1)


def test_siblings_hold_what_the_parent_published_also_when_it_leaves_first() -> None:
    cache = cached_pool(8, block_size=4)
    admit(cache, 0, "ab", 9)
    cache.fork(0, 1, 8)
    cache.release(0)
    assert_clean(cache)
    assert not cache.evictable and cache.num_free() == 6
    assert cache.grow(2, 6 * 4) is not None
    assert cache.grow(3, 1) is None, "nothing that the child holds is promised to others"
    assert cache.tables[1] == [0, 1]


def test_a_sibling_that_writes_into_a_published_block_copies_it() -> None:
    cache = cached_pool(8, block_size=4)
    admit(cache, 0, "ab", 8)
    cache.fork(0, 1, 7)
    slots = cache.grow(1, 8)
    assert slots is not None and [(copy.source, copy.target) for copy in slots.copies] == [(1, 2)]
    cache.commit(1, 8, keys_of("ab"))
    assert cache.blocks_of[b"ab"] == [1, 2]
    cache.release(0)
    cache.release(1)
    assert_clean(cache)
    assert len(cache.evictable) == 2


def test_a_pinned_block_is_not_evicted() -> None:
    cache = cached_pool(3)
    admit(cache, 0, "ab")
    blocks = (tuple(cache.tables[0][:1]),)
    cache.pin(blocks)
    cache.release(0)
    assert cache.num_free() == 2 and evicted_order(cache) == ["b"]
    assert cache.grow(1, 3 * 16) is None
    cache.unpin(blocks)
    assert cache.grow(1, 3 * 16) is not None
    assert_clean(cache)


def test_an_audit_finds_what_is_wrong() -> None:
    cache = cached_pool(8)
    admit(cache, 0, "ab")
    cache.num_holders[0] -= 1
    assert cache.audit().problems == ("a cached block counts fewer holders than it has",)
    cache = cached_pool(8)
    admit(cache, 0, "ab")
    cache.evictable[0] = None
    assert cache.audit().problems == ("a cached block that nobody holds is not evictable, or one that is held is",)


# -- what is counted ------------------------------------------------------------------------------------------------


def asked(cache: CachedPool) -> tuple[int, int]:
    return cache.num_queried, cache.num_hit


def test_an_admission_is_counted_once_however_often_it_was_tried() -> None:
    cache = cached_pool(6)
    admit(cache, 0, "abc")
    for _ in range(3):
        assert admit(cache, 1, "axyz") is None
    assert asked(cache) == (3, 0)
    cache.release(0)
    assert admit(cache, 1, "axyz") is not None
    assert asked(cache) == (3 + 4, 1)


def test_nothing_is_counted_where_nothing_was_asked() -> None:
    cache = cached_pool(6)
    cache.grow(0, 33)
    cache.commit(0, 33, keys_of("ab"))
    assert asked(cache) == (0, 0)


# -- keys -----------------------------------------------------------------------------------------------------------


def made_keys(tokens: Sequence[int], **root: str) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(root_key(**{"tenant": "", "model": "m", **root}), keys, np.array(tokens, dtype=np.int64), 4)
    return keys


def test_only_full_blocks_have_keys() -> None:
    assert [len(made_keys(range(length))) for length in (3, 4, 7, 8)] == [0, 1, 1, 2]


def test_another_first_block_changes_every_key_after_it() -> None:
    one, other = made_keys([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]), made_keys([0, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9])
    assert not set(one) & set(other) and len(set(one)) == 3
    assert made_keys([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0])[:2] == one[:2]


def test_tenants_models_adapters_and_salts_share_no_key() -> None:
    parts = [{}, {"tenant": "x"}, {"model": "x"}, {"adapter": "x"}, {"salt": "x"}, {"tenant": "xx"}]
    parts += [{"tenant": "x", "adapter": "x"}, {"tenant": "x", "salt": "x"}, {"adapter": "xx"}]
    assert len({made_keys(range(4), **part)[0] for part in parts}) == len(parts)


def test_a_key_depends_on_how_the_tokens_came_together_not_on_when() -> None:
    keys: list[bytes] = []
    tokens = np.arange(13)
    for end in (3, 6, 11, 13):
        extend_keys(root_key(tenant="", model="m"), keys, tokens[:end], 4)
    assert keys == made_keys(range(13))


# -- the engine -----------------------------------------------------------------------------------------------------


def engine_with_cache(*others: type, scope: str = "tenant", **options: Any) -> Any:
    options["plugins"] = {"prefix_cache": {"scope": scope}, **options.get("plugins", {})}
    return engine_of(ContinuousBatching, PagedKV, PrefixCache, *others, **options)


def serve(engine: Any, request: str, prompt: list[int], params: SamplingParams, **options: Any) -> tuple[int, int]:
    """(tokens computed in the first step, tokens reported as cached) of a request that runs alone."""
    heard = Heard()
    add(engine, request, prompt, params, **options)
    (first, *_) = steps(engine, heard)
    for child in range(params.n):
        assert heard.output(request, child) == tokens_alone(prompt, params, child)
    return first[request], heard.finals[request, 0][0].num_cached


PROMPT = [3 + index % 36 for index in range(55)]


def test_a_warm_prompt_computes_what_is_left_and_says_so() -> None:
    engine = engine_with_cache(block_size=16, num_blocks=16)
    assert serve(engine, "cold", PROMPT, greedy(2)) == (55, 0)
    assert serve(engine, "warm", PROMPT, greedy(2)) == (7, 48)
    assert serve(engine, "shorter", PROMPT[:40], greedy(2)) == (8, 32)
    assert serve(engine, "other", PROMPT[:16] + PROMPT[:16], greedy(2)) == (16, 16)


@pytest.mark.parametrize(("length", "computed"), [(48, 16), (49, 1), (47, 15), (16, 16), (15, 15), (1, 1)])
def test_the_last_token_is_always_computed(length: int, computed: int) -> None:
    # a prompt that is cached whole ends in a block of its own: blocks are read whole, so all of that is computed again
    engine = engine_with_cache(block_size=16, num_blocks=16)
    serve(engine, "cold", PROMPT, greedy(2))
    assert serve(engine, "warm", PROMPT[:length], greedy(2)) == (computed, length - computed)


def test_a_second_turn_finds_the_first_answer_too() -> None:
    engine, heard = engine_with_cache(block_size=4), Heard()
    prompt = PROMPT[:10]
    add(engine, "first", prompt, greedy(15))
    steps(engine, heard)
    turn = [*prompt, *heard.output("first"), 5, 6, 7]
    # 24 of the 25 known tokens are computed and lie in full blocks
    assert serve(engine, "second", turn, greedy(3)) == (28 - 24, 24)


def test_prompt_logprobs_skip_the_cache_and_fill_it() -> None:
    engine = engine_with_cache(block_size=4)
    assert serve(engine, "scored", PROMPT[:21], greedy(2, prompt_logprobs=0)) == (21, 0)
    assert serve(engine, "scored again", PROMPT[:21], greedy(2, prompt_logprobs=0)) == (21, 0)
    assert asked(cache_of(engine)) == (0, 0)
    assert serve(engine, "plain", PROMPT[:21], greedy(2)) == (1, 20)


def test_siblings_of_a_warm_prompt_share_its_blocks() -> None:
    engine = engine_with_cache(block_size=4)
    params = SamplingParams(max_tokens=5, n=3, seed=1, ignore_eos=True)
    for length in (20, 21, 22):
        assert serve(engine, f"cold {length}", PROMPT[:length], params)[1] <= 20
        assert serve(engine, f"warm {length}", PROMPT[:length], params)[1] == (length - 1) // 4 * 4
    assert engine.driver.allocator.value.audit().held == 0


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_a_parent_that_ends_at_once_leaves_its_siblings_their_prompt(max_tokens: int) -> None:
    engine = engine_with_cache(block_size=4, num_blocks=8)
    params = SamplingParams(max_tokens=max_tokens, n=4, seed=1, ignore_eos=True)
    for length in (8, 9, 11):
        serve(engine, f"r{length}", PROMPT[:length], params)


def test_two_tenants_with_one_prompt_compute_it_twice() -> None:
    engine = engine_with_cache(block_size=4)
    first = serve(engine, "a", PROMPT, greedy(2), tenant="a")
    assert serve(engine, "b", PROMPT, greedy(2), tenant="b") == first == (55, 0)
    assert cache_plugin_of(engine).stats()["hits"] == 0
    assert serve(engine, "a again", PROMPT, greedy(2), tenant="a") == (3, 52)


def test_tenants_that_share_compute_it_once() -> None:
    engine = engine_with_cache(block_size=4, scope="shared")
    assert serve(engine, "a", PROMPT, greedy(2), tenant="a") == (55, 0)
    assert serve(engine, "b", PROMPT, greedy(2), tenant="b") == (3, 52)
    assert cache_plugin_of(engine).stats() == {"queries": 26, "hits": 13, "cached_blocks": 14, "evictions": 0}


def test_a_request_that_waited_for_room_is_counted_once() -> None:
    engine, heard = engine_with_cache(num_blocks=8), Heard()
    add(engine, "first", PROMPT[:20], greedy(8))
    add(engine, "second", PROMPT[:4] + PROMPT[:16], greedy(8))
    ran = steps(engine, heard)
    assert [list(one) for one in ran] == [["first"]] * 8 + [["second"]] * 8
    assert heard.finals["second", 0][0].num_cached == 4
    assert asked(cache_of(engine)) == (4 + 4, 1)


def test_what_a_preempted_request_finds_of_its_own_is_not_reported_as_cached() -> None:
    engine, heard = engine_with_cache(num_blocks=10), Heard()
    add(engine, "early", PROMPT[:9], greedy(24))
    add(engine, "late", PROMPT[20:29], greedy(24))
    ran = steps(engine, heard)
    late = heard.finals["late", 0][0]
    assert late.num_preemptions > 0 and late.num_cached == 0
    # vLLM keeps the second look-up apart; we count every admission, since it saves work like any other
    assert asked(cache_of(engine))[0] > 4 and asked(cache_of(engine))[1] > 0
    assert sum(one.get("late", 0) for one in ran) < 9 + 23 + late.num_preemptions * 32
    assert heard.output("late") == tokens_alone(PROMPT[20:29], greedy(24))


def test_a_prompt_in_pieces_publishes_each_piece() -> None:
    plugins = {"chunked_prefill": {"max_num_batched_tokens": 8}}
    engine, heard = engine_with_cache(ChunkedPrefill, block_size=4, plugins=plugins), Heard()
    add(engine, "first", PROMPT, greedy(2))
    for _ in range(3):
        step(engine, heard)
    add(engine, "second", PROMPT, greedy(2))
    steps(engine, heard)
    # it began beside the last piece of the first, and found all before that
    assert heard.finals["second", 0][0].num_cached == 48


# -- reset ----------------------------------------------------------------------------------------------------------


def resettable(**options: Any) -> tuple[Any, PrefixCache]:
    engine = engine_with_cache(block_size=4, **options)
    plugin = cache_plugin_of(engine)
    plugin.control(engine)
    return engine, plugin


def test_reset_refuses_while_rows_hold_blocks() -> None:
    engine, plugin = resettable()
    heard = Heard()
    add(engine, "a", PROMPT[:10], greedy(4))
    step(engine, heard)
    with pytest.raises(RequestError, match=r"^running requests hold 3 KV blocks: wait for them, or pass preempt"):
        plugin.reset()
    assert cache_of(engine).key_of
    steps(engine, heard)
    assert plugin.reset() == "forgot 3 blocks, preempted 0 sequences"
    assert not cache_of(engine).key_of and pool_of(engine).num_free() == 64
    assert serve(engine, "b", PROMPT[:10], greedy(4)) == (10, 0)


def test_reset_that_may_preempt_moves_all_who_run_back_in_order() -> None:
    engine, plugin = resettable(max_num_seqs=3)
    heard = Heard()
    prompts = {f"r{index}": PROMPT[index : index + 9] for index in range(4)}
    for request, prompt in prompts.items():
        add(engine, request, prompt, greedy(6))
    step(engine, heard)
    step(engine, heard)
    assert plugin.reset(preempt=True).endswith("preempted 3 sequences")
    assert engine.audit() == [] and not cache_of(engine).key_of
    assert [sequence.request for sequence in engine.requests.waiting.values()] == ["r0", "r1", "r2", "r3"]
    assert step(engine, heard) == {"r0": 11, "r1": 11, "r2": 11}
    steps(engine, heard)
    for request, prompt in prompts.items():
        assert heard.output(request) == tokens_alone(prompt, greedy(6))


def test_reset_from_the_python_api(tiny_model: Path) -> None:
    plugins: dict[str, Any] = {"paged_kv": {}, "prefix_cache": {}}
    with LLM(str(tiny_model), dtype="float64", plugins=plugins) as llm:
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        [expected] = llm.generate([PROMPT], params)
        stream = llm.stream(PROMPT, params)
        chunks = [next(stream)]
        with pytest.raises(RequestError, match="pass preempt = true"):
            llm.control("prefix_cache", "reset")
        assert llm.control("prefix_cache", "reset", preempt=True).endswith("preempted 1 sequences")
        assert llm.stats()["prefix_cache"]["cached_blocks"] == 0
        chunks += stream
        assert tuple(itertools.chain(*(chunk.token_ids for chunk in chunks))) == expected.token_ids
        assert llm.audit() == []


# -- a real model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_cold_and_warm_give_what_off_gives(tiny_model: Path, block_size: int) -> None:
    system = "The switch is a small part of the machine, and the machine is the sum of its switches. "
    prompts = [system, system + "When?", system + "Who reads its parts?", "a", system + "When?"]
    params = [
        SamplingParams(max_tokens=12, temperature=0.8 * (index % 2), seed=index, n=1 + index % 2, ignore_eos=True)
        for index in range(len(prompts))
    ]
    with LLM(str(tiny_model), dtype="float64", plugins={}) as llm:
        expected = [[choice.token_ids for choice in result.choices] for result in llm.generate(prompts, params)]
    plugins: dict[str, Any] = {"paged_kv": {"block_size": block_size}, "prefix_cache": {}}
    with LLM(str(tiny_model), dtype="float64", plugins=plugins, kv_bytes=1 << 20) as llm:
        for is_warm in (False, True):
            results = llm.generate(prompts, params)
            assert [[choice.token_ids for choice in result.choices] for result in results] == expected
            for result in results:
                length = len(result.prompt_token_ids)
                assert result.num_cached_tokens == (length - 1) // block_size * block_size * is_warm
            assert llm.audit() == []


# -- config ---------------------------------------------------------------------------------------------------------


def test_it_needs_paged_kv() -> None:
    with pytest.raises(PluginError, match="plugin 'prefix_cache' requires 'paged_kv': switch it on"):
        engine_of(PrefixCache)


def test_it_wraps_whatever_the_order_in_the_config() -> None:
    engine = engine_of(PrefixCache, PagedKV, block_size=4)
    assert isinstance(cache_of(engine).inner, BlockPool)


def test_an_unknown_scope_is_an_error() -> None:
    with pytest.raises(ConfigError, match=re.escape("[plugins.prefix_cache]: ")):
        engine_with_cache(scope="everybody")
