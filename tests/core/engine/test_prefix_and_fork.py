"""Blocks that are found again or shared: the same tokens, fewer computed, and nobody sees another tenant's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.engine.engine import Engine

from .build import Heard, add, drain, executor_of, step, tiny_llm, virtual_engine
from .paged import PagedBlocks, PagedKV
from .prefix import CachedBlocks, PrefixCache
from .schedulers import Continuous, modifier
from .virtual import prompt_logprobs_alone, tokens_alone

SIZE = 4
PARAMS = SamplingParams(max_tokens=5, seed=1, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


@pytest.fixture(params=[1, 2], ids=["one group", "two groups"])
def num_groups(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def cached(num_groups: int) -> Engine:
    return virtual_engine(PagedKV, PrefixCache, Continuous, num_blocks=16, block_size=SIZE, num_groups=num_groups)


@pytest.fixture
def shared(num_groups: int) -> Engine:
    return virtual_engine(PagedKV, Continuous, num_blocks=24, block_size=SIZE, num_groups=num_groups)


def cache_of(engine: Engine) -> CachedBlocks:
    allocator = engine.driver.allocator.value
    assert isinstance(allocator, CachedBlocks)
    return allocator


def serve(engine: Engine, request: str, prompt: list[int], params: SamplingParams = PARAMS, **options: Any) -> Heard:
    add(engine, request, prompt, params, **options)
    return drain(engine)


def num_cached(heard: Heard, request: str) -> int:
    return heard.finals[request, 0][0].num_cached


# -- prefixes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 10])
def test_cold_and_warm_give_the_same_tokens(cached: Engine, num_groups: int, length: int) -> None:
    """Warm, all full blocks are found but the one of the last token, which is always computed."""
    prompt = PROMPT[:length]
    for request, expected in (("cold", 0), ("warm", (length - 1) // SIZE * SIZE)):
        heard = serve(cached, request, prompt)
        assert heard.output(request) == tokens_alone(prompt, PARAMS, num_groups=num_groups)
        assert num_cached(heard, request) == expected
    warm_prefill = executor_of(cached).num_step_tokens[PARAMS.max_tokens]
    assert warm_prefill == length - expected


def test_a_longer_prompt_finds_its_beginning(cached: Engine, num_groups: int) -> None:
    serve(cached, "first", PROMPT)
    longer = [*PROMPT[:8], 30, 31, 32]
    heard = serve(cached, "second", longer)
    assert num_cached(heard, "second") == 8
    assert heard.output("second") == tokens_alone(longer, PARAMS, num_groups=num_groups)


def test_what_was_generated_is_found_too(cached: Engine, num_groups: int) -> None:
    answer = serve(cached, "first", PROMPT).output("first")
    dialogue = [*PROMPT, *answer, 20, 21]
    heard = serve(cached, "second", dialogue)
    assert num_cached(heard, "second") == 12  # 14 tokens of the first are in the cache, the fifteenth never was
    assert heard.output("second") == tokens_alone(dialogue, PARAMS, num_groups=num_groups)


def test_a_changed_first_token_finds_nothing(cached: Engine) -> None:
    serve(cached, "first", PROMPT)
    assert num_cached(serve(cached, "second", [6, *PROMPT[1:]]), "second") == 0


def test_tenants_do_not_find_each_other(cached: Engine) -> None:
    serve(cached, "first", PROMPT, tenant="red")
    assert num_cached(serve(cached, "second", PROMPT, tenant="blue"), "second") == 0
    assert num_cached(serve(cached, "third", PROMPT, tenant="red"), "third") == 8


def test_a_cache_that_says_so_is_shared_between_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachedBlocks, "key_scope", "shared")
    engine = virtual_engine(PagedKV, PrefixCache, num_blocks=16, block_size=SIZE)
    serve(engine, "first", PROMPT, tenant="red")
    assert num_cached(serve(engine, "second", PROMPT, tenant="blue"), "second") == 8


def test_a_request_for_prompt_logprobs_is_never_a_hit(cached: Engine, num_groups: int) -> None:
    serve(cached, "first", PROMPT)
    num_probes = len(cache_of(cached).probes)
    heard = serve(cached, "second", PROMPT, replace(PARAMS, prompt_logprobs=1))
    assert num_cached(heard, "second") == 0 and len(cache_of(cached).probes) == num_probes
    assert heard.prompt_logprobs["second", 0] == pytest.approx(prompt_logprobs_alone(PROMPT, num_groups))
    assert num_cached(serve(cached, "third", PROMPT), "third") == 8


def test_prompt_logprobs_fill_the_cache(cached: Engine) -> None:
    serve(cached, "first", PROMPT, replace(PARAMS, prompt_logprobs=0))
    assert num_cached(serve(cached, "second", PROMPT), "second") == 8


def test_prompts_of_one_step_do_not_find_each_other_yet_and_agree(cached: Engine, num_groups: int) -> None:
    for request in ("a", "b"):
        add(cached, request, PROMPT, PARAMS)
    heard = drain(cached)
    assert heard.output("a") == heard.output("b") == tokens_alone(PROMPT, PARAMS, num_groups=num_groups)


def test_a_preempted_row_finds_itself(cached: Engine, num_groups: int) -> None:
    add(cached, "r", PROMPT, PARAMS)
    heard = Heard()
    for _ in range(3):
        step(cached, heard)
    cached.preempt_all()
    drain(cached, heard)
    assert heard.output("r") == tokens_alone(PROMPT, PARAMS, num_groups=num_groups)
    assert cache_of(cached).hits[-1] == 12


def test_the_cache_gives_way_to_rows(num_groups: int) -> None:
    """Sixteen prompts through a pool that holds two: what is cached is evicted, never what is held."""
    engine = virtual_engine(PagedKV, PrefixCache, Continuous, num_blocks=8, block_size=SIZE, num_groups=num_groups)
    for index in range(16):
        prompt = [(index + place) % 37 + 3 for place in range(12)]
        heard = serve(engine, f"r{index}", prompt)
        assert heard.output(f"r{index}") == tokens_alone(prompt, PARAMS, num_groups=num_groups)
    assert cache_of(engine).audit().evictable > 0


def test_an_adopted_prefix_without_room_for_the_rest_is_given_back(num_groups: int) -> None:
    engine = virtual_engine(PagedKV, PrefixCache, Continuous, num_blocks=6, block_size=SIZE, num_groups=num_groups)
    heard = serve(engine, "warm", PROMPT[:8])
    add(engine, "hog", [30] * 8, replace(PARAMS, max_tokens=8))
    step(engine, heard)
    add(engine, "late", [*PROMPT[:8], *range(20, 28)], PARAMS)
    step(engine, heard)
    assert engine.requests.waiting and not next(iter(engine.requests.waiting.values())).num_computed
    drain(engine, heard)
    assert heard.output("late") == tokens_alone([*PROMPT[:8], *range(20, 28)], PARAMS, num_groups=num_groups)


# -- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 10])
def test_forks_give_the_tokens_of_requests_alone(shared: Engine, num_groups: int, length: int) -> None:
    heard = serve(shared, "r", PROMPT[:length], replace(PARAMS, n=3))
    for child in range(3):
        assert heard.output("r", child) == tokens_alone(PROMPT[:length], PARAMS, child, num_groups)
    # the prompt once, and its last token once more for each child that shares the rest
    assert sum(executor_of(shared).num_step_tokens) == length + 2 + 3 * (PARAMS.max_tokens - 1)


@pytest.mark.parametrize("copies_at_fork", [False, True])
def test_forks_share_the_prompt_and_copy_what_they_write(num_groups: int, copies_at_fork: bool) -> None:
    options = {"paged": {"copies_at_fork": copies_at_fork}}
    engine = virtual_engine(PagedKV, Continuous, plugins=options, num_blocks=24, block_size=SIZE, num_groups=num_groups)
    heard = Heard()
    add(engine, "r", PROMPT, replace(PARAMS, n=3))
    step(engine, heard)
    step(engine, heard)
    allocator = engine.driver.allocator.value
    assert isinstance(allocator, PagedBlocks)
    tables = [allocator.tables[row] for row in range(3)]
    for group in range(num_groups):
        assert len({tuple(table[group][:2]) for table in tables}) == 1, "the full blocks of the prompt are shared"
        assert len({table[group][2] for table in tables}) == 3, "the half-filled one is not, once they write"
    assert len(executor_of(engine).last.copies) == 2 * num_groups
    drain(engine, heard)
    for child in range(3):
        assert heard.output("r", child) == tokens_alone(PROMPT, PARAMS, child, num_groups)


def test_copies_of_a_fork_are_made_even_if_its_parent_is_gone_first() -> None:
    """The child does not run in the next step, and by then its parent's block is somebody else's."""

    def later(plan: Any, view: Any) -> Any:
        waits = (plan.order == 1) & (view.step < 3)
        return replace(plan, num_tokens=plan.num_tokens * ~waits)

    options = {"paged": {"copies_at_fork": True}}
    engine = virtual_engine(PagedKV, Continuous, modifier(later), plugins=options, num_blocks=8, block_size=SIZE)
    heard = Heard()
    add(engine, "r", PROMPT, replace(PARAMS, n=2))
    step(engine, heard)
    engine.abort("r", 0)
    add(engine, "other", [30] * 11, PARAMS)
    drain(engine, heard)
    assert heard.output("r", 1) == tokens_alone(PROMPT, PARAMS, 1)
    assert heard.output("other") == tokens_alone([30] * 11, PARAMS)


def test_siblings_without_a_slot_compute_the_prompt_themselves(num_groups: int) -> None:
    engine = virtual_engine(PagedKV, Continuous, num_blocks=24, block_size=SIZE, num_groups=num_groups, max_num_seqs=2)
    heard = serve(engine, "r", PROMPT, replace(PARAMS, n=4))
    for child in range(4):
        assert heard.output("r", child) == tokens_alone(PROMPT, PARAMS, child, num_groups)


def test_without_shared_blocks_every_child_computes_the_prompt() -> None:
    engine = virtual_engine()
    heard = serve(engine, "r", PROMPT, replace(PARAMS, n=3))
    for child in range(3):
        assert heard.output("r", child) == tokens_alone(PROMPT, PARAMS, child)
    assert sum(executor_of(engine).num_step_tokens) == 3 * (len(PROMPT) + PARAMS.max_tokens - 1)


def test_only_the_first_child_reports_the_prompt(shared: Engine, num_groups: int) -> None:
    heard = serve(shared, "r", PROMPT, replace(PARAMS, n=3, prompt_logprobs=0))
    assert heard.prompt_logprobs["r", 0] == pytest.approx(prompt_logprobs_alone(PROMPT, num_groups))
    assert not heard.prompt_logprobs["r", 1] and not heard.prompt_logprobs["r", 2]


def test_siblings_wait_for_the_whole_prompt_of_the_first(num_groups: int) -> None:
    def in_threes(plan: Any, view: Any) -> Any:
        return replace(plan, num_tokens=plan.num_tokens.clip(max=3))

    engine = virtual_engine(
        PagedKV, Continuous, modifier(in_threes), num_blocks=24, block_size=SIZE, num_groups=num_groups
    )
    heard = serve(engine, "r", PROMPT, replace(PARAMS, n=3))
    for child in range(3):
        assert heard.output("r", child) == tokens_alone(PROMPT, PARAMS, child, num_groups)
    assert executor_of(engine).num_rows[:4] == [1, 1, 1, 1]


# -- on the real model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tiny_model: Path) -> Iterator[list[LLM]]:
    """Everything off, shared blocks, and a prefix cache, in float64."""
    made = [tiny_llm(tiny_model, dtype="float64")]
    for classes in ((PagedKV, Continuous), (PagedKV, PrefixCache, Continuous)):
        made.append(tiny_llm(tiny_model, *classes, dtype="float64", kv_bytes=64 * 4 * 1024))
    yield made
    for llm in made:
        llm.close()


@pytest.mark.parametrize("round_number", [0, 1])
def test_a_real_model_agrees_cold_and_warm(models: list[LLM], round_number: int) -> None:
    prompts = ["The machine is the sum of its switches.", "The machine is the sum of its parts."]
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=5, n=3, ignore_eos=True)
    everything_off, *others = (llm.generate(prompts, params) for llm in models)
    for results in others:
        for result, expected in zip(results, everything_off, strict=True):
            assert [choice.token_ids for choice in result.choices] == [choice.token_ids for choice in expected.choices]
    found = [result.num_cached_tokens for result in others[1]]
    assert min(found) > 0 if round_number else min(found) == 0
