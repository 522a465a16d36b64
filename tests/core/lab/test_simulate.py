"""Runs whose times can be added up by hand, and the same run again to the last digit."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from switchgear.core.config import PluginConfig, build_config
from switchgear.core.errors import ConfigError, PluginError, PluginFault
from switchgear.core.hooks import hookimpl
from switchgear.core.lab.agenda import whole_lengths
from switchgear.core.lab.arrivals import Arrivals
from switchgear.core.lab.in_process import run_in_process
from switchgear.core.lab.simulate import simulate
from switchgear.core.lab.workload import Ask, Segment, Workload
from switchgear.core.lab.workloads import conversations, fixed, shared_prefix
from switchgear.core.records import (
    TOKEN_EQUAL,
    Continue,
    Decision,
    Draft,
    DraftView,
    Event,
    IngressRequest,
    IntArray,
    Outcome,
    PoolView,
)

from tests.core.lab.simulations import CACHED, CHUNKED, CONTINUOUS, STEP, TOKENS, ask, config, workload


def test_the_first_step_makes_the_first_token_and_each_further_one_takes_a_step() -> None:
    run = simulate(config(CONTINUOUS), workload(ask(0.5, 10, 3)), STEP, kv_tokens=64)
    [served] = run.served
    assert (served.due, served.token_times, served.finished) == (0.5, (1.5, 2.5, 3.5), 3.5)
    assert (served.num_prompt, served.num_output, served.finish_reason) == (10, 3, "length")
    assert served.queue_wait == 0 and run.seconds == 3.5 and run.num_steps == 3


def test_who_comes_during_a_step_joins_at_its_end() -> None:
    run = simulate(config(CONTINUOUS), workload(ask(0, 4, 3, 1), ask(0.25, 4, 1, 2)), STEP, kv_tokens=64)
    first, second = run.served
    assert first.token_times == (1.0, 2.0, 3.0)
    assert second.token_times == (2.0,) and second.ttft == 1.75


def test_who_comes_at_the_end_of_a_step_is_in_the_next_one() -> None:
    run = simulate(config(CONTINUOUS), workload(ask(0, 4, 2, 1), ask(1, 4, 1, 2)), STEP, kv_tokens=64)
    assert [served.token_times for served in run.served] == [(1.0, 2.0), (2.0,)]


def test_static_batching_lets_nobody_in_before_the_batch_has_ended() -> None:
    asks = workload(ask(0, 4, 3, 1), ask(0.25, 4, 1, 2))
    run = simulate(config({}), asks, STEP, kv_tokens=512)
    assert [served.token_times for served in run.served] == [(1.0, 2.0, 3.0), (4.0,)]


def test_a_step_costs_the_sum_of_its_tokens() -> None:
    run = simulate(config(CONTINUOUS), workload(ask(0, 10, 2, 1), ask(0, 20, 2, 2)), TOKENS, kv_tokens=64)
    assert [served.token_times for served in run.served] == [(30.0, 32.0)] * 2


def test_chunks_keep_a_running_output_from_standing_still() -> None:
    asks = workload(ask(0, 4, 12, 1), ask(4.5, 40, 1, 2))
    gaps = {}
    for name, plugins in (("whole", CONTINUOUS), ("chunks", CHUNKED)):
        times = simulate(config(plugins), asks, TOKENS, kv_tokens=128).served[0].token_times
        gaps[name] = float(np.diff(times).max())
    assert gaps == {"whole": 41.0, "chunks": 8.0}


def test_a_prefix_is_computed_once() -> None:
    asks = shared_prefix(3, 40, 4, 2, arrivals=Arrivals(rate=0.001, variation=0))
    run = simulate(config(CACHED), asks, TOKENS, kv_tokens=256)
    assert [served.num_cached for served in run.served] == [0, 40, 40]
    assert [served.ttft for served in run.served] == pytest.approx([44.0, 4.0, 4.0])


def test_a_turn_finds_all_that_was_said_before_it() -> None:
    asks = conversations(1, 3, 8, 8)
    run = simulate(config(CACHED), asks, STEP, kv_tokens=256)
    # the last token of an answer was never computed, so that its block is not there
    assert [served.num_prompt for served in run.served] == [8, 24, 40]
    assert [served.num_cached for served in run.served] == [0, 12, 28]
    assert run.served[1].due == run.served[0].finished


def test_a_closed_loop_asks_when_it_is_answered() -> None:
    run = simulate(config(CONTINUOUS), fixed(4, 4, 2, arrivals=Arrivals(num_clients=1)), STEP, kv_tokens=64)
    assert [served.due for served in run.served] == [0.0, 2.0, 4.0, 6.0]


def test_a_full_pool_preempts_and_nobody_is_lost() -> None:
    run = simulate(config(CONTINUOUS), fixed(4, 8, 20), STEP, kv_tokens=60)
    assert run.metrics()["preemptions"] > 0
    assert [served.num_output for served in run.served] == [20] * 4 and not any(served.error for served in run.served)


def test_what_the_pool_can_never_hold_is_an_error_of_that_request() -> None:
    run = simulate(config(CONTINUOUS), workload(ask(0, 60, 10), ask(0, 4, 1, 1)), STEP, kv_tokens=32)
    assert "needs 18 KV blocks" in run.served[0].error and run.served[1].error == ""
    assert run.metrics()["errors"] == 1


def test_requests_that_are_too_long_are_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="longer than the 128 tokens"):
        simulate(config(CONTINUOUS), workload(ask(0, 120, 10)), STEP, kv_tokens=512)


def test_without_a_limit_the_longest_request_is_one() -> None:
    asks = workload(ask(0, 30, 5), ask(0, 10, 5, 1, conversation=1), ask(0, 20, 7, 2, conversation=1))
    assert max(whole_lengths(asks)) == 42
    run = simulate(config({}, max_model_len=None), asks, STEP, kv_tokens=84)
    assert not run.metrics()["errors"]


# -- replicas -------------------------------------------------------------------------------------------------------


def test_requests_go_to_the_least_loaded_replica() -> None:
    run = simulate(config(CONTINUOUS), fixed(6, 4, 4), STEP, num_replicas=3, kv_tokens=64)
    assert run.num_requests == (2, 2, 2)
    assert {served.finished for served in run.served} == {4.0}


def test_a_replica_that_is_in_a_step_is_seen_as_it_is_then() -> None:
    # the first ends with the step that runs when the second comes: the other replica is idle, and not this one
    run = simulate(config(CONTINUOUS), workload(ask(0, 4, 1, 1), ask(0.5, 4, 1, 2)), STEP, num_replicas=2, kv_tokens=64)
    assert run.num_requests == (1, 1)
    assert run.served[1].token_times == (1.5,)


class Router:
    """Sends everything to the last pool, and notes what it hears."""

    name = "to_the_last"
    equivalence = TOKEN_EQUAL
    heard: list[tuple[str, int, float]]

    class Config(PluginConfig):
        target: str = ""
        """Another pool, which may not exist."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def route(self) -> Router:
        return self

    def pick(self, request: IngressRequest, pools: tuple[PoolView, ...]) -> Decision:
        return Decision(self.config.target or pools[-1].name, "it is the last")

    def observe(self, event: Event) -> None:
        type(self).heard.append((event.kind, event.row, event.values["pool"]))


def test_a_router_decides_and_hears_of_each_request() -> None:
    Router.heard = []
    plugins = {**CONTINUOUS, "to_the_last": {}}
    run = simulate(config(plugins), fixed(2, 4, 1), STEP, num_replicas=2, kv_tokens=64, classes=(Router,))
    assert run.num_requests == (0, 2)
    assert Router.heard == [("queued", 0, 1), ("queued", 1, 1), ("finished", 0, 1), ("finished", 1, 1)]


def test_a_pool_that_does_not_exist_is_the_routers_fault() -> None:
    plugins = {**CONTINUOUS, "to_the_last": {"target": "moon"}}
    with pytest.raises(PluginFault, match=r"'to_the_last' failed in pick: .*moon.*replica 0, replica 1"):
        simulate(config(plugins), fixed(2, 4, 1), STEP, num_replicas=2, kv_tokens=64, classes=(Router,))


# -- what is refused ------------------------------------------------------------------------------------------------


class Door:
    """A stage at the door."""

    name = "door"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def on_ingress(self) -> Door:
        return self

    async def enter(self, request: IngressRequest) -> Continue:
        return Continue()

    def leave(self, request: IngressRequest, outcome: Outcome) -> None: ...


class Drafts:
    """A proposer."""

    name = "drafts"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def propose_tokens(self) -> Drafts:
        return self

    def propose(self, view: DraftView, num_drafts: IntArray) -> Draft:
        raise AssertionError("it is refused before")

    def commit(self, rows: IntArray, num_accepted: IntArray) -> None: ...

    def drop(self, rows: IntArray) -> None: ...


@pytest.mark.parametrize(("plugin", "problem"), [(Door, "before requests reach"), (Drafts, "no model that accepts")])
def test_what_would_have_no_effect_is_refused(plugin: type, problem: str) -> None:
    name = plugin.name  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=f"'{name}' .*{problem}.*switch it off"):
        simulate(config({**CONTINUOUS, name: {}}), fixed(1, 4, 1), STEP, kv_tokens=64, classes=(plugin,))


def test_what_replays_steps_of_a_worker_has_none_here_and_is_named_all_the_same() -> None:
    """As in a file that `profile --config-out` wrote."""
    named = config({**CONTINUOUS, "flash_attention": {}, "cpu_graphs": {}})
    assert named.optional == frozenset()
    assert simulate(named, fixed(1, 4, 2), STEP, kv_tokens=64).num_steps == 2


def test_text_has_no_length_without_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="name the model"):
        simulate(config(CONTINUOUS), Workload("text", (Ask(0, 1, text="hello"),)), STEP, kv_tokens=64)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kv_tokens": 0}, "holds nothing"),
        ({"kv_tokens": 64, "num_replicas": 0}, "at least one"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        simulate(config(CONTINUOUS), fixed(1, 4, 1), STEP, **options)  # type: ignore[arg-type]


def test_a_pool_is_given_in_tokens_or_in_bytes() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        simulate(config(CONTINUOUS, kv_bytes=4096), fixed(1, 4, 1), STEP, kv_tokens=64)


def test_a_plugin_that_is_unknown_is_refused_as_everywhere() -> None:
    with pytest.raises((ConfigError, PluginError), match="unknown plugin 'nothing'"):
        simulate(config({"nothing": {}}), fixed(1, 4, 1), STEP, kv_tokens=64)


# -- repeating and reality ------------------------------------------------------------------------------------------


def test_two_runs_are_equal_to_the_last_byte() -> None:
    asks = shared_prefix(40, 20, 12, 9, num_prefixes=3, seed=3, arrivals=Arrivals(rate=0.3))
    plugins = {**CACHED, "chunked_prefill": {"max_num_batched_tokens": 24}}
    texts = []
    for _ in range(2):
        run = simulate(config(plugins), asks, TOKENS, num_replicas=3, kv_tokens=160)
        texts.append(json.dumps([asdict(run), run.metrics()]))
    assert texts[0] == texts[1]


def test_another_cost_model_is_another_plan() -> None:
    hashes = {
        simulate(config(CONTINUOUS), fixed(1, 4, 1), model, kv_tokens=64).plan_hash for model in (STEP, TOKENS, STEP)
    }
    assert len(hashes) == 2


def test_the_models_own_shape_sizes_the_pool_and_steps_are_as_many_as_in_reality(tiny_model: Path) -> None:
    from switchgear import LLM

    here = build_config(
        sections={
            "model": {"name": str(tiny_model), "dtype": "float32"},
            "engine": {"max_num_seqs": 3, "max_step_tokens": 64, "max_model_len": 64, "kv_bytes": 2**16},
            "plugins": CACHED,
        }
    )
    asks = shared_prefix(7, 12, 5, 6)
    simulated = simulate(here, asks, STEP)
    with LLM.from_config(here) as llm:
        measured = run_in_process(llm, asks)
        num_steps = llm._engine.num_steps
        assert llm.plan.environment == simulated.environment
    assert simulated.num_steps == num_steps
    assert simulated.extras["batch_size"] == measured.extras["batch_size"]
    cached = [[served.num_cached for served in run.served] for run in (simulated, measured)]
    assert cached[0] == cached[1] and any(cached[0])


def test_a_text_is_as_long_as_its_models_tokenizer_says(tiny_model: Path) -> None:
    from switchgear import LLM

    here = build_config(sections={"model": {"name": str(tiny_model), "dtype": "float32"}, "plugins": CONTINUOUS})
    with LLM.from_config(here, load=False) as llm:
        expected = len(llm.tokenizer.encode("once upon a time"))
    asks = Workload("text", (Ask(0, 1, text="once upon a time"), Ask(0, 1, (Segment(0, 3),))))
    run = simulate(here, asks, STEP)
    assert [served.num_prompt for served in run.served] == [expected, 3]
