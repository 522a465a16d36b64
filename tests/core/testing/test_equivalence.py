"""The workload goes every way that it is meant to go, and a verdict says what it found."""

from __future__ import annotations

from typing import Any

import pytest
from switchgear.core.testing.equivalence import Oracle, verify_equivalence
from switchgear.core.testing.subject import SMALL, Plugins, with_requirements
from switchgear.core.testing.workload import CASES, Answer, run_workload

from .planted import policy

ROOMY, TIGHT, WINDOWED = CASES
ALL: Plugins = with_requirements(
    {name: SMALL.get(name, {}) for name in ("continuous_batching", "chunked_prefill", "prefix_cache")}
)


def by_name(answers: list[Answer]) -> dict[str, Answer]:
    return {answer.ask.name: answer for answer in answers}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_outputs_stop_in_the_middle_and_callers_leave(case: Any, oracle: Oracle) -> None:
    for answers in map(by_name, oracle.expected(case)):
        for name in ("stop strings", "stop token ids"):
            result = answers[name].result
            assert result is not None and result.finish_reason == "stop"
        stopped = answers["stop strings"].result
        assert stopped is not None and 4 < len(stopped.token_ids) < 24
        for name in ("caller leaves", "caller of two leaves"):
            assert answers[name].result is None and len(answers[name].token_ids) == answers[name].ask.abort_after


def test_outputs_of_one_request_differ(oracle: Oracle) -> None:
    result = by_name(oracle.expected(ROOMY)[0])["three outputs"].result
    assert result is not None and len({choice.token_ids for choice in result.choices}) == 3


def test_little_kv_makes_rows_give_way_and_caches_hit(oracle: Oracle) -> None:
    with oracle.engine(TIGHT, ALL) as llm:
        for _ in range(2):
            run_workload(llm, TIGHT.asks)
        assert llm._engine.driver.num_preempted > 0
        stats = llm.stats()["prefix_cache"]
        assert stats["hits"] > 0 and stats["evictions"] > 0


def test_layers_with_a_window_hold_fewer_blocks_hit_and_give_way(oracle: Oracle) -> None:
    plugins = {name: options for name, options in ALL.items() if name != "chunked_prefill"}
    with oracle.engine(WINDOWED, plugins) as llm:
        whole, windowed = sorted(group.num_blocks for group in llm._engine.parts.kv_spec)[::-1]
        assert windowed < whole
        for _ in range(2):
            run_workload(llm, WINDOWED.asks)
        assert llm._engine.driver.num_preempted > 0
        stats = llm.stats()["prefix_cache"]
        assert stats["hits"] > 0 and stats["evictions"] > 0


def test_with_room_for_all_the_second_pass_hits_whole_prompts(oracle: Oracle) -> None:
    with oracle.engine(ROOMY, ALL) as llm:
        run_workload(llm, ROOMY.asks)
        result = by_name(run_workload(llm, ROOMY.asks))["nothing but the shared prefix"].result
    assert result is not None and result.num_cached_tokens == 16  # of 20: the last token is always computed


def test_a_set_that_does_not_start_refuses_with_its_reason(oracle: Oracle) -> None:
    verdict = verify_equivalence({"prefix_cache": {}}, oracle)
    assert verdict.kind == "refuses"
    assert str(verdict) == "refuses: plugin 'prefix_cache' requires 'paged_kv': switch it on, or 'prefix_cache' off"


def test_a_fault_in_a_plan_is_a_difference(oracle: Oracle) -> None:
    def plan(view: Any) -> Any:
        raise RuntimeError("out of order")

    verdict = verify_equivalence({"planted": {}}, oracle, classes=[policy(plan)])
    assert verdict.kind == "differs"
    assert "request 'greedy' failed: plugin 'planted' failed in plan: raised RuntimeError" in verdict.text
