"""Runs in a time that only steps take: a step lasts one second, and waiting lasts as long as it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from switchgear.core.config import PluginConfig, build_config
from switchgear.core.errors import ConfigError
from switchgear.core.gateway.llm import LLM
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import EngineHandle
from switchgear.core.lab.arrivals import Arrivals
from switchgear.core.lab.bench_run import Run, measure_arm
from switchgear.core.lab.in_process import run_in_process, warm_up
from switchgear.core.lab.ledger import FOLLOWS_A_FAILURE
from switchgear.core.lab.served import Served
from switchgear.core.lab.workload import Ask, Segment, Workload
from switchgear.core.lab.workloads import conversations, fixed, from_prompts, shared_prefix
from switchgear.core.records import TOKEN_EQUAL, Event
from switchgear.core.sampling_params import SamplingParams

BATCHING: dict[str, dict[str, Any]] = {"continuous_batching": {}, "paged_kv": {}}
CACHED = {**BATCHING, "prefix_cache": {}}


class Stepped:
    """An engine whose steps take a second each of a clock that nothing else moves, but for waiting."""

    def __init__(self, model: Path, plugins: Mapping[str, Mapping[str, Any]], *classes: type, **engine: Any) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        options = {"kv_bytes": 4_000_000, **engine}
        self.llm = LLM(
            str(model),
            dtype="float32",
            plugins=plugins,
            plugin_classes=classes,
            clock=lambda: self.now,
            **options,
        )
        executor = self.llm._engine.executor
        submit = executor.submit

        def timed(batch: Any) -> int:
            self.now += 1.0
            return submit(batch)

        executor.submit = timed  # type: ignore[method-assign]

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def run(self, workload: Workload, **options: Any) -> Run:
        return run_in_process(self.llm, workload, clock=lambda: self.now, wait=self.wait, **options)


@pytest.fixture
def stepped(tiny_model: Path) -> Iterator[Stepped]:
    stepped = Stepped(tiny_model, BATCHING)
    yield stepped
    assert stepped.llm.audit() == []
    stepped.llm.close()


@pytest.fixture
def cached(tiny_model: Path) -> Iterator[Stepped]:
    stepped = Stepped(tiny_model, CACHED)
    yield stepped
    stepped.llm.close()


def test_one_request_takes_a_step_for_its_prompt_and_one_for_each_token_after_the_first(stepped: Stepped) -> None:
    run = stepped.run(fixed(1, 8, 5))
    (served,) = run.served
    assert served.token_times == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert (served.due, served.sent, served.finished, run.seconds) == (0.0, 0.0, 5.0, 5.0)
    assert (served.ttft, served.tpot, served.end_to_end, served.queue_wait) == (1.0, 1.0, 5.0, 0.0)
    assert (served.num_prompt, served.num_output, served.num_cached) == (8, 5, 0)
    assert (len(served.token_ids), served.finish_reason, served.error) == (5, "length", "")
    assert run.plan_hash == stepped.llm.plan.hash and run.environment == stepped.llm.plan.environment
    assert run.is_whole


def test_a_request_that_comes_during_a_step_waits_for_its_end(stepped: Stepped) -> None:
    asks = tuple(Ask(arrival, 3, (Segment(number, 8),)) for number, arrival in enumerate((0.0, 0.25, 9.5)))
    run = stepped.run(Workload("test", asks))
    first, second, third = run.served
    assert first.token_times == (1.0, 2.0, 3.0)
    assert (second.due, second.sent, second.token_times) == (0.25, 1.0, (2.0, 3.0, 4.0))
    assert second.ttft == 1.75
    assert third.due == third.sent == pytest.approx(9.5) and third.ttft == pytest.approx(1.0)
    assert sum(stepped.waits) == pytest.approx(5.5)
    assert run.extras["batch_size"] == pytest.approx(9 / 7)


def test_waiting_for_a_slot_is_a_wait_in_the_queue(tiny_model: Path) -> None:
    stepped = Stepped(tiny_model, BATCHING, max_num_seqs=1)
    run = stepped.run(fixed(2, 8, 4))
    assert [served.queue_wait for served in run.served] == [0.0, 4.0]
    assert run.metrics()["queue_wait_p50"] == 2.0
    stepped.llm.close()


def test_in_a_closed_loop_nobody_waits_and_the_batch_is_as_large_as_there_are_clients(stepped: Stepped) -> None:
    run = stepped.run(fixed(6, 8, 4, arrivals=Arrivals(num_clients=2)))
    assert [served.due for served in run.served] == [0.0, 0.0, 4.0, 4.0, 8.0, 8.0]
    assert {served.ttft for served in run.served} == {1.0}
    assert run.extras["batch_size"] == 2.0
    assert run.metrics()["output_tokens_per_s"] == 2.0


def test_a_conversation_sends_all_that_was_said(cached: Stepped) -> None:
    run = cached.run(conversations(2, 3, 20, 5, prefix_len=16))
    prompts = [served.num_prompt for served in run.served]
    assert prompts == [36, 61, 86] * 2
    assert [served.due for served in run.served] == [0.0, 5.0, 10.0] * 2
    # of the blocks of 16 that were full when the turn before it ended; the first one of both came together
    assert [served.num_cached for served in run.served] == [0, 32, 64] * 2
    expected = sum([0, 32, 64] * 2) / sum(prompts)
    assert run.metrics()["prefix_hit_rate"] == pytest.approx(expected)


def test_the_answers_in_a_conversation_are_those_to_the_whole_text_before(cached: Stepped) -> None:
    workload = conversations(1, 2, 20, 5)
    first, second = cached.run(workload).served
    whole = [
        *workload.asks[0].token_ids(64, 512).tolist(),
        *first.token_ids,
        *workload.asks[1].token_ids(64, 512).tolist(),
    ]
    (result,) = cached.llm.generate([whole], SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
    assert second.token_ids == result.token_ids


def test_conversations_of_text_go_through_the_chat_template(stepped: Stepped, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text('{"turns": ["Hello", "Again"]}\n')
    first, second = stepped.run(from_prompts(file, 4)).served
    messages = [{"role": "user", "content": "Hello"}]
    assert first.num_prompt == stepped.llm.num_tokens(messages)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Again"}]
    assert second.num_prompt == stepped.llm.num_tokens(messages)


def test_a_shared_prefix_is_found_by_those_who_come_later(cached: Stepped) -> None:
    run = cached.run(shared_prefix(3, 32, 8, 4, arrivals=Arrivals(0.1, 0.0)))
    assert [served.num_cached for served in run.served] == [0, 32, 32]
    assert run.metrics()["prefix_hit_rate"] == pytest.approx(64 / 120)


def test_the_warm_up_leaves_nothing_that_a_workload_finds(cached: Stepped) -> None:
    warm_up(cached.llm)
    assert [served.num_cached for served in cached.run(fixed(4, 32, 2)).served] == [0] * 4


# -- what the engine tells ------------------------------------------------------------------------------------------


class Watcher:
    """Sees every event of the engine."""

    name = "watcher"
    equivalence = TOKEN_EQUAL
    events: ClassVar[list[Event]] = []

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        self.events.clear()

    @hookimpl
    def observe(self) -> Watcher:
        return self

    def on_events(self, events: tuple[Event, ...]) -> None:
        self.events.extend(events)


def test_rows_and_preemptions_are_those_of_the_event_stream(tiny_model: Path) -> None:
    # KV for 8 blocks of 16 tokens, and four requests that want 3 each
    bytes_per_token = 2 * 2 * 2 * 16 * 4
    stepped = Stepped(
        tiny_model, {**BATCHING, "watcher": {}}, Watcher, kv_bytes=8 * 16 * bytes_per_token, max_model_len=96
    )
    run = stepped.run(fixed(4, 24, 20))
    rows = [event.values["rows"] for event in Watcher.events if event.kind == "step"]
    assert run.extras["batch_size"] == pytest.approx(np.mean(rows))
    num_preempted = sum(event.kind == "preempted" for event in Watcher.events)
    assert run.extras["preemptions"] == num_preempted > 0
    assert 0.5 < run.extras["kv_residency"] <= 1.0
    stepped.llm.close()


def test_the_pool_in_use_is_weighed_by_time(stepped: Stepped) -> None:
    num_blocks = stepped.llm.plan.kv_num_blocks
    # 16 tokens fill a block, of which the last step, that gives it back, sees none
    run = stepped.run(fixed(1, 8, 6))
    assert run.extras["kv_residency"] == pytest.approx((5 * 1 + 0) / 6 / num_blocks)


class Drafts:
    """Counts as a proposer does."""

    name = "drafts"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        self.num_asked = 0

    @hookimpl
    def control(self, engine: EngineHandle) -> Drafts:
        return self

    def commands(self) -> Mapping[str, Any]:
        return {}

    def stats(self) -> Mapping[str, float]:
        self.num_asked += 1
        return {"drafted": 100 + 8 * self.num_asked, "accepted": 50 + 6 * self.num_asked}


def test_the_acceptance_rate_is_of_what_was_drafted_during_the_run(tiny_model: Path) -> None:
    stepped = Stepped(tiny_model, {**BATCHING, "drafts": {}}, Drafts)
    assert stepped.run(fixed(1, 8, 2)).metrics()["acceptance_rate"] == 0.75
    assert "acceptance_rate" not in Stepped(tiny_model, BATCHING).run(fixed(1, 8, 2)).metrics()
    stepped.llm.close()


# -- what goes wrong ------------------------------------------------------------------------------------------------


def test_requests_that_are_too_long_are_refused_before_anything_runs(stepped: Stepped) -> None:
    told: list[Served] = []
    with pytest.raises(ConfigError, match=r"1 of 4 requests are longer than the 512 tokens of .* longest has 520"):
        stepped.run(conversations(1, 4, 100, 30), on_served=told.append)
    assert not told and stepped.now == 100.0


def test_conversations_of_text_need_a_template(stepped: Stepped, tmp_path: Path) -> None:
    stepped.llm.prompts.template_variables = {}
    (tmp_path / "turns.jsonl").write_text('{"turns": ["Hello", "Again"]}\n')
    with pytest.raises(ConfigError, match="no chat template"):
        stepped.run(from_prompts(tmp_path / "turns.jsonl", 4))


def test_a_request_that_fails_is_an_error_and_the_end_of_its_conversation(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = stepped.llm._engine.executor
    submit, submitted = executor.submit, []

    def fail_once(batch: Any) -> int:
        submitted.append(batch)
        if len(submitted) == 2:
            raise RuntimeError("no luck")
        return submit(batch)

    monkeypatch.setattr(executor, "submit", fail_once)
    run = stepped.run(conversations(2, 3, 8, 4, arrivals=Arrivals(num_clients=1)))
    assert "no luck" in run.served[0].error
    assert [served.error for served in run.served[1:3]] == [FOLLOWS_A_FAILURE] * 2
    assert [served.error for served in run.served[3:]] == [""] * 3
    metrics = run.metrics()
    assert metrics["errors"] == 3.0 and metrics["requests_per_s"] == pytest.approx(3 / run.seconds)


def test_a_run_that_is_stopped_keeps_what_was_answered(stepped: Stepped) -> None:
    told: list[Served] = []
    run = stepped.run(
        fixed(4, 8, 4, arrivals=Arrivals(num_clients=1)), on_served=told.append, should_stop=lambda: len(told) == 2
    )
    assert not run.is_whole
    assert [served.index for served in run.served] == [served.index for served in told] == [0, 1]
    assert run.seconds == 8.0
    assert not stepped.llm._engine.has_work


def test_waiting_looks_whether_to_stop(stepped: Stepped) -> None:
    asks = (Ask(1e6, 1, (Segment(1, 4),)),)
    run = stepped.run(Workload("test", asks), should_stop=lambda: len(stepped.waits) == 3)
    assert not run.is_whole and run.served == () and max(stepped.waits) <= 0.1


# -- an arm ---------------------------------------------------------------------------------------------------------


def test_an_arm_is_cold_or_has_run_the_workload_before(tiny_model: Path) -> None:
    config = build_config(
        recipe="recommended",
        overrides=[f"model.name={tiny_model}", "model.dtype=float32", "engine.kv_bytes=4000000"],
    )
    workload = fixed(3, 40, 3)
    cold, warm = (measure_arm(config, workload, warm=warm) for warm in (False, True))
    assert [served.num_cached for served in cold.served] == [0] * 3
    assert [served.num_cached for served in warm.served] == [32] * 3
    assert [served.token_ids for served in cold.served] == [served.token_ids for served in warm.served]
    assert cold.plan_hash == warm.plan_hash and cold.client_cpu_seconds > 0
    assert cold.metrics()["client_cpu_seconds"] == cold.client_cpu_seconds
