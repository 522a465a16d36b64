"""Prefix caching: what a request finds and says so, whom it may not find, and that no token changes.

The pool of cached blocks by itself is in test_prefix_cache_pool.py, and against a simple model, under any history of
calls, in test_prefix_cache_stateful.py.
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
from switchgear.plugins.chunked_prefill import ChunkedPrefill
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import BlockPool, PagedKV
from switchgear.plugins.prefix_cache import PrefixCache

from ..core.engine.build import Heard, add
from ..core.engine.virtual import tokens_alone
from .steps import cache_of, cache_plugin_of, engine_of, greedy, pool_of, step, steps

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


def asked(engine: Any) -> tuple[int, int]:
    """Blocks that requests looked for, and that they found."""
    stats = cache_plugin_of(engine).stats()
    return int(stats["queries"]), int(stats["hits"])


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
    assert asked(engine) == (0, 0)
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
    assert asked(engine) == (4 + 4, 1)


def test_what_a_preempted_request_finds_of_its_own_is_not_reported_as_cached() -> None:
    engine, heard = engine_with_cache(num_blocks=10), Heard()
    add(engine, "early", PROMPT[:9], greedy(24))
    add(engine, "late", PROMPT[20:29], greedy(24))
    ran = steps(engine, heard)
    late = heard.finals["late", 0][0]
    assert late.num_preemptions > 0 and late.num_cached == 0
    # vLLM keeps the second look-up apart; we count every admission, since it saves work like any other
    assert asked(engine)[0] > 4 and asked(engine)[1] > 0
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


def test_what_is_cached_takes_no_room_in_the_step() -> None:
    """Cold, one prompt of 15 tokens fits into 16; warm, each counts the three that it computes."""
    engine, heard = engine_with_cache(block_size=4, max_step_tokens=16), Heard()
    serve(engine, "cold", PROMPT[:15], greedy(2))
    for index in range(4):
        add(engine, f"warm {index}", PROMPT[:15], greedy(2))
    assert step(engine, heard) == {f"warm {index}": 3 for index in range(4)}
    steps(engine, heard)
    for index in range(4):
        assert heard.output(f"warm {index}") == tokens_alone(PROMPT[:15], greedy(2))


def test_pieces_are_cut_from_what_is_left_to_compute() -> None:
    plugins = {"chunked_prefill": {"max_num_batched_tokens": 8}}
    engine, heard = engine_with_cache(ChunkedPrefill, block_size=4, plugins=plugins), Heard()
    serve(engine, "cold", PROMPT[:12], greedy(1))
    add(engine, "warm", PROMPT[:12] + [9] * 4, greedy(2))
    add(engine, "other", [8] * 10, greedy(2))
    assert step(engine, heard) == {"warm": 4, "other": 4}
    steps(engine, heard)
    assert heard.output("warm") == tokens_alone(PROMPT[:12] + [9] * 4, greedy(2))


def test_who_counted_on_what_was_evicted_in_the_same_step_waits_for_the_next() -> None:
    """Else it would run with a part of its prompt, which nobody but a modifier may split."""
    engine, heard = engine_with_cache(num_blocks=8), Heard()
    serve(engine, "cold", PROMPT[:9], greedy(1))
    serve(engine, "other", PROMPT[20:29], greedy(1))
    add(engine, "hog", [30] * 16, greedy(3))
    step(engine, heard)
    add(engine, "warm", PROMPT[:9], greedy(2))
    assert step(engine, heard) == {"hog": 1}, "it evicted the second of the two blocks that the prompt would find"
    assert step(engine, heard) == {"hog": 1, "warm": 5}
    steps(engine, heard)
    assert heard.output("warm") == tokens_alone(PROMPT[:9], greedy(2))


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
    assert cache_of(engine).groups[0].key_of
    steps(engine, heard)
    assert plugin.reset() == "forgot 3 blocks, preempted 0 sequences"
    assert not cache_of(engine).groups[0].key_of and pool_of(engine).num_free() == 64
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
    assert engine.audit() == [] and not cache_of(engine).groups[0].key_of
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
