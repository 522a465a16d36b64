"""Requests come and go: none lost, none answered twice, nothing left behind, at whatever moment they are aborted."""

from __future__ import annotations

import gc
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from switchgear import SamplingParams
from switchgear.core.engine.engine import Engine
from switchgear.core.errors import RequestError

from .build import Heard, add, drain, step, tiny_llm, virtual_engine
from .paged import PagedKV
from .prefix import PrefixCache
from .schedulers import Continuous
from .virtual import tokens_alone

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
NUM_REQUESTS = 200


def random_traffic(engine: Engine, heard: Heard, seed: int, num_requests: int) -> dict[str, int]:
    """Requests at random moments, half of them aborted at a random one; the number of outputs by request."""
    chance = random.Random(seed)
    outputs: dict[str, int] = {}
    while len(outputs) < num_requests or engine.has_work:
        for _ in range(chance.choice([0, 1, 1, 5])):
            if len(outputs) == num_requests:
                break
            request, n = f"{seed}-{len(outputs)}", chance.choice([1, 1, 1, 3])
            prompt = [chance.randrange(3, 400) for _ in range(chance.randrange(1, 24))]
            params = SamplingParams(max_tokens=chance.randrange(1, 16), n=n, seed=1)
            add(engine, request, prompt, params, hold=chance.choice([None, None, None, "ticket"]))
            outputs[request] = n
        if chance.random() < 0.5 and outputs:
            engine.abort(chance.choice(list(outputs)), chance.choice([None, 0, 1]))
        engine.complete("ticket")
        step(engine, heard)
    return outputs


@pytest.mark.parametrize("classes", [(), (PagedKV, Continuous), (PagedKV, PrefixCache, Continuous)])
def test_none_of_200_requests_is_lost_or_answered_twice(tiny_model: Path, classes: tuple[type, ...]) -> None:
    with tiny_llm(tiny_model, *classes, kv_bytes=64 * 4 * 512) as llm:
        heard = Heard()
        outputs = random_traffic(llm._engine, heard, seed=0, num_requests=NUM_REQUESTS)
        ends = {key: finals for key, finals in heard.finals.items() if finals}
        assert set(ends) == {(request, child) for request, n in outputs.items() for child in range(n)}
        assert all(len(finals) == 1 for finals in ends.values())
        reasons = [finals[0].finish_reason for finals in ends.values()]
        assert set(reasons) == {"abort", "stop", "length"} or set(reasons) == {"abort", "length"}
        assert reasons.count("abort") > NUM_REQUESTS // 8
        allocator = llm._engine.driver.allocator.value
        assert allocator.audit().held == 0


def test_memory_is_flat(tiny_model: Path) -> None:
    """What Python holds after the second round is what it holds after the fourth; one leaked sequence takes 2 kB."""
    with tiny_llm(tiny_model, PagedKV, Continuous, kv_bytes=64 * 4 * 512) as llm:
        levels = []
        tracemalloc.start()
        try:
            for round_number in range(4):
                random_traffic(llm._engine, Heard(), seed=round_number, num_requests=60)
                gc.collect()
                levels.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert levels[3] - levels[1] < 30_000


# -- an abort at every point of a life ------------------------------------------------------------------------------

PARAMS = SamplingParams(max_tokens=6, seed=3, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9]


def two_requests(**options: Any) -> tuple[Engine, Heard]:
    """A request to abort and a bystander."""
    engine = virtual_engine(PagedKV, Continuous, num_blocks=16, block_size=4)
    add(engine, "victim", PROMPT, options.pop("params", PARAMS), **options)
    add(engine, "bystander", [9, 8, 7], PARAMS)
    return engine, Heard()


def end(engine: Engine, heard: Heard) -> None:
    """The bystander notices nothing, and nothing is left."""
    drain(engine, heard)
    assert heard.output("bystander") == tokens_alone([9, 8, 7], PARAMS)
    assert engine.driver.allocator.value.audit().held == 0
    assert len(engine.requests) == 0


def test_abort_while_queued() -> None:
    engine, heard = two_requests()
    engine.abort("victim")
    assert engine.audit() == []
    end(engine, heard)
    assert heard.reason("victim") == "abort" and heard.output("victim") == ()


def test_abort_while_held() -> None:
    engine, heard = two_requests(hold="ticket")
    step(engine, heard)
    engine.abort("victim")
    engine.complete("ticket")
    end(engine, heard)
    assert heard.reason("victim") == "abort" and heard.output("victim") == ()


def test_abort_between_completion_and_step() -> None:
    engine, heard = two_requests(hold="ticket")
    engine.complete("ticket")
    engine.abort("victim")
    end(engine, heard)
    assert heard.reason("victim") == "abort" and heard.output("victim") == ()


@pytest.mark.parametrize("num_steps", range(1, 6))
def test_abort_in_the_middle(num_steps: int) -> None:
    engine, heard = two_requests()
    for _ in range(num_steps):
        step(engine, heard)
    engine.abort("victim")
    assert engine.audit() == []
    end(engine, heard)
    assert heard.reason("victim") == "abort"
    assert heard.output("victim") == tokens_alone(PROMPT, PARAMS)[:num_steps]


def test_abort_while_preempted() -> None:
    engine, heard = two_requests()
    step(engine, heard)
    engine.preempt_all()
    engine.abort("victim")
    assert engine.audit() == []
    end(engine, heard)
    assert heard.output("victim") == tokens_alone(PROMPT, PARAMS)[:1]


def test_abort_while_in_flight_takes_effect_when_the_step_is_back() -> None:
    engine = virtual_engine(Continuous, max_in_flight=2, max_step_tokens=5)
    heard = Heard()
    add(engine, "first", PROMPT, PARAMS)
    add(engine, "second", PROMPT, PARAMS)
    step(engine, heard)
    assert len(engine.in_flight) == 1
    engine.abort("second")
    engine.abort("second")
    assert engine.audit() == [] and not heard.finals["second", 0]
    drain(engine, heard)
    assert heard.reason("second") == "abort" and heard.output("second") == ()
    assert heard.output("first") == tokens_alone(PROMPT, PARAMS)


@pytest.mark.parametrize("name", ["victim", "unknown", ""])
def test_abort_of_who_is_not_there(name: str) -> None:
    engine, heard = two_requests()
    drain(engine, heard)
    engine.abort(name)
    assert engine.audit() == [] and not engine.has_work
    assert heard.output("victim") == tokens_alone(PROMPT, PARAMS)
    end(engine, heard)


@pytest.mark.parametrize("child", [0, 1, 2])
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_abort_of_one_output_leaves_its_siblings(child: int, num_steps: int) -> None:
    engine, heard = two_requests(params=SamplingParams(max_tokens=6, seed=3, ignore_eos=True, n=3))
    for _ in range(num_steps):
        step(engine, heard)
    engine.abort("victim", child)
    end(engine, heard)
    for index in range(3):
        alone = tokens_alone(PROMPT, PARAMS, index)
        assert heard.reason("victim", index) == ("abort" if index == child else "length")
        assert heard.output("victim", index) == (alone[: len(heard.output("victim", index))])
        assert index == child or heard.output("victim", index) == alone


def test_siblings_of_an_aborted_parent_are_not_waited_for() -> None:
    engine, heard = two_requests(params=SamplingParams(max_tokens=6, seed=3, n=3))
    engine.abort("bystander")
    engine.abort("victim", 0)
    assert not engine.is_waiting_for_tickets
    drain(engine, heard)


# -- tickets --------------------------------------------------------------------------------------------------------


def test_a_held_request_runs_when_its_ticket_completes() -> None:
    engine, heard = two_requests(hold="ticket")
    for _ in range(20):
        engine.complete("another")
        step(engine, heard)
    assert heard.output("victim") == () and engine.is_waiting_for_tickets
    engine.complete("ticket")
    assert engine.wake.is_set() and not engine.is_waiting_for_tickets
    end(engine, heard)
    assert heard.output("victim") == tokens_alone(PROMPT, PARAMS)


def test_an_id_in_use_is_refused_and_a_finished_one_is_free() -> None:
    engine, heard = two_requests()
    with pytest.raises(RequestError, match="request id 'victim' is already in use"):
        add(engine, "victim", PROMPT, PARAMS)
    end(engine, heard)
    add(engine, "victim", PROMPT, PARAMS)
    assert drain(engine, Heard()).output("victim") == tokens_alone(PROMPT, PARAMS)


# -- closing --------------------------------------------------------------------------------------------------------


def test_two_engines_share_nothing(tiny_model: Path) -> None:
    """Their steps interleave, one runs out of memory all the time, and each gives the tokens it gives alone."""
    prompts = [[5 + index, 6, 7, 8] for index in range(4)]
    with tiny_llm(tiny_model) as alone:
        expected = [result.token_ids for result in alone.generate(prompts, GREEDY)]
    with tiny_llm(tiny_model) as left, tiny_llm(tiny_model, PagedKV, Continuous, kv_bytes=8 * 4 * 512) as right:
        heard = [Heard(), Heard()]
        for index, prompt in enumerate(prompts):
            for llm in (left, right):
                add(llm._engine, f"r{index}", prompt, GREEDY)
        while left._engine.has_work or right._engine.has_work:
            for llm, its in zip((left, right), heard, strict=True):
                step(llm._engine, its)
        for its in heard:
            assert [its.output(f"r{index}") for index in range(4)] == expected
        left.close()
        assert right.generate(prompts[0], GREEDY)[0].token_ids == expected[0]


def test_a_stream_that_is_closed_early_leaves_nothing(tiny_model: Path) -> None:
    with tiny_llm(tiny_model) as llm:
        [expected] = llm.generate(PROMPT, GREEDY)
        for num_chunks in range(4):
            stream = llm.stream(PROMPT, GREEDY)
            for _ in range(num_chunks):
                next(stream)
            stream.close()
            drain(llm._engine)
            assert llm.audit() == [] and not llm._live and len(llm._engine.requests) == 0
        assert llm.generate(PROMPT, GREEDY)[0].token_ids == expected.token_ids


def test_streams_move_each_other(tiny_model: Path) -> None:
    with tiny_llm(tiny_model, Continuous) as llm:
        expected = [result.token_ids for result in llm.generate([PROMPT, [9, 8]], GREEDY)]
        first, second = llm.stream(PROMPT, GREEDY), llm.stream([9, 8], GREEDY)
        next(second)
        tokens = [[token for chunk in stream for token in chunk.token_ids] for stream in (first, second)]
        assert tokens == [list(expected[0]), list(expected[1][1:])]


def test_close_ends_all_and_may_be_repeated(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    stream = llm.stream(PROMPT, GREEDY)
    next(stream)
    llm.close()
    llm.close()
    assert len(llm._engine.requests) == 0 and not llm._live
    for use in (
        lambda: next(stream),
        lambda: llm.generate(PROMPT, GREEDY),
        lambda: llm.chat([{"role": "user", "content": "hi"}], GREEDY),
        lambda: llm.stream(PROMPT, GREEDY),
    ):
        with pytest.raises(RequestError, match=r"^this engine is closed: make a new one$"):
            use()
