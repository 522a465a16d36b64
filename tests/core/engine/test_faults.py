"""A plugin's method raises once: the rows of that step fail with its name, the books balance, the engine goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.engine.engine import Engine
from switchgear.core.errors import PluginError, RequestError

from . import faulty
from .build import Heard, add, drain, step, tiny_llm, virtual_engine
from .faulty import Faulty, Trap
from .paged import PagedKV
from .schedulers import Continuous
from .virtual import tokens_alone

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPTS = ([5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17])
NUM_RUNNING = 2
"""So that one of three prompts waits, and is in no step of the others."""


def model_with(tiny_model: Path, *classes: type) -> LLM:
    return tiny_llm(tiny_model, *classes, max_num_seqs=NUM_RUNNING, max_step_tokens=32)


def trap_of(llm: LLM) -> Trap:
    return trap_in(llm._engine)


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[tuple[int, ...]]:
    """The tokens of everything-off."""
    with model_with(tiny_model) as llm:
        return [result.token_ids for result in llm.generate(PROMPTS, GREEDY)]


STEP_METHODS = [
    (faulty.FaultyAllocator, "grow"),
    (faulty.FaultyAllocator, "commit"),
    (faulty.FaultyProposer, "propose"),
    (faulty.FaultyProposer, "commit"),
    (faulty.FaultyExecutor, "submit"),
    (faulty.FaultyExecutor, "collect"),
    (faulty.FaultyLogits, "mask"),
    (faulty.FaultyLogits, "advance"),
    (faulty.FaultyAttention, "plan"),
    (faulty.FaultyAttention, "write"),
    (faulty.FaultyAttention, "forward"),
    (faulty.FaultyLinears, "linear"),
    (faulty.FaultyWrappedLinears, "around"),
    (faulty.FaultyCodec, "encode"),
    (faulty.FaultyCodec, "decode"),
    (faulty.FaultyOps, "rms_norm"),
    (faulty.FaultyOps, "rope"),
    (faulty.FaultyOps, "act_mul"),
    (faulty.FaultySink, "on_events"),
]
"""Called when it is known who is in the step."""

OFFER_METHODS = [
    (faulty.FaultyPolicy, "plan"),
    (faulty.FaultyModifier, "revise"),
    (faulty.FaultyAllocator, "num_free"),
]
"""Called while it is decided: whoever was on offer fails."""

END_METHODS = [
    (faulty.FaultyAllocator, "release"),
    (faulty.FaultyLateAllocator, "late release"),
    (faulty.FaultyProposer, "drop"),
    (faulty.FaultyLogits, "drop"),
]
"""Called when a row ends."""


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(("plugin", "method"), STEP_METHODS)
def test_the_rows_of_the_step_fail_and_no_others(
    tiny_model: Path, expected: list[tuple[int, ...]], plugin: type, method: str, call: int
) -> None:
    with model_with(tiny_model, plugin) as llm:
        trap_of(llm).arm(method, call)
        first, second, waiting = llm.generate(PROMPTS, GREEDY)
        assert trap_of(llm).has_sprung
        assert [first.finish_reason, second.finish_reason] == ["error", "error"]
        assert first.error == second.error == f"plugin 'faulty' failed in {method_of(method)}: raised Boom: as armed"
        for result, tokens in zip((first, second), expected, strict=False):
            assert result.token_ids == tokens[: len(result.token_ids)]
        assert (waiting.finish_reason, waiting.token_ids) == ("length", expected[2])
        assert llm.audit() == []
        assert [result.token_ids for result in llm.generate(PROMPTS, GREEDY)] == expected


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(("plugin", "method"), OFFER_METHODS)
def test_everybody_on_offer_fails_when_planning_does(
    tiny_model: Path, expected: list[tuple[int, ...]], plugin: type, method: str, call: int
) -> None:
    with model_with(tiny_model, plugin) as llm:
        trap_of(llm).arm(method, call)
        results = llm.generate(PROMPTS, GREEDY)
        assert {result.error for result in results} == {f"plugin 'faulty' failed in {method}: raised Boom: as armed"}
        assert llm.audit() == []
        assert [result.token_ids for result in llm.generate(PROMPTS, GREEDY)] == expected


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(("plugin", "method"), END_METHODS)
def test_an_end_that_fails_is_an_end(
    tiny_model: Path, expected: list[tuple[int, ...]], plugin: type, method: str, call: int
) -> None:
    with model_with(tiny_model, plugin) as llm:
        trap_of(llm).arm(method, call)
        results = llm.generate(PROMPTS, GREEDY)
        assert trap_of(llm).has_sprung
        for result, tokens in zip(results, expected, strict=True):
            assert result.finish_reason == "length" or "plugin 'faulty' failed in" in result.error
            assert result.token_ids == tokens[: len(result.token_ids)]
        assert llm.audit() == []
        assert [result.token_ids for result in llm.generate(PROMPTS, GREEDY)] == expected


@pytest.mark.parametrize("method", ["match", "adopt", "fork"])
def test_sharing_that_fails_fails_its_step(tiny_model: Path, expected: list[tuple[int, ...]], method: str) -> None:
    with model_with(tiny_model, PagedKV, faulty.FaultyPrefixCache) as llm:
        llm.generate(PROMPTS[0], GREEDY)
        trap_of(llm).arm(method, 1)
        [result] = llm.generate(PROMPTS[0], replace(GREEDY, n=2))
        assert trap_of(llm).has_sprung
        assert result.error == f"plugin 'faulty' failed in {method}: raised Boom: as armed"
        assert llm.audit() == []
        [result] = llm.generate(PROMPTS[0], replace(GREEDY, n=2))
        assert [choice.token_ids for choice in result.choices] == [expected[0]] * 2


def test_books_that_cannot_be_read_start_again(tiny_model: Path, expected: list[tuple[int, ...]]) -> None:
    with model_with(tiny_model, faulty.FaultyAllocator) as llm:
        trap_of(llm).arm("grow", 2)
        trap_of(llm).arm("audit", 1)
        results = llm.generate(PROMPTS, GREEDY)
        assert {result.finish_reason for result in results} == {"error"}
        assert "audit raised Boom: as armed" in results[2].error and "restarted" in results[2].error
        assert llm.audit() == []
        assert [result.token_ids for result in llm.generate(PROMPTS, GREEDY)] == expected


def test_a_restart_gives_no_row_number_twice(tiny_model: Path) -> None:
    with model_with(tiny_model, faulty.FaultyAllocator) as llm:
        trap_of(llm).arm("release", 1)
        llm.generate(PROMPTS, GREEDY)
        assert llm._engine.num_restarts == 1
        assert llm._engine.requests.new_row() == len(PROMPTS)


def test_two_faults_at_once_end_every_row_once(tiny_model: Path, expected: list[tuple[int, ...]]) -> None:
    with model_with(tiny_model, faulty.FaultyProposer) as llm:
        trap_of(llm).arm("propose", 2)
        trap_of(llm).arm("drop", 1)
        first, second, waiting = llm.generate(PROMPTS, GREEDY)
        assert first.error == second.error == "plugin 'faulty' failed in propose: raised Boom: as armed"
        assert waiting.token_ids == expected[2]
        assert llm.audit() == []


@pytest.mark.parametrize("method", ["release", "late release"])
def test_a_victim_whose_kv_is_in_doubt_fails(method: str) -> None:
    plugin = faulty.FaultyAllocator if method == "release" else faulty.FaultyLateAllocator
    engine = virtual_engine(plugin, Continuous, num_blocks=6, block_size=4)
    params = SamplingParams(max_tokens=12, seed=1, ignore_eos=True)
    heard = Heard()
    add(engine, "old", [5] * 8, params)
    add(engine, "new", [6] * 8, params)
    trap_in(engine).arm(method, 1)
    drain(engine, heard)
    assert heard.reason("old") == heard.reason("new") == "error"
    assert heard.error("new").startswith(f"plugin 'faulty' failed in {method.removeprefix('late ')}")
    add(engine, "next", [5] * 8, params)
    assert drain(engine, heard).output("next") == tokens_alone([5] * 8, params)


def test_an_abort_that_fails_is_an_abort_and_harms_nobody() -> None:
    engine = virtual_engine(faulty.FaultyProposer)
    params = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    heard = Heard()
    for request in ("leaves", "stays"):
        add(engine, request, [5, 6, 7], params)
    step(engine, heard)
    trap_in(engine).arm("drop", 1)
    engine.abort("leaves")
    drain(engine, heard)
    assert heard.reason("leaves") == "abort"
    assert heard.output("stays") == tokens_alone([5, 6, 7], params)


def test_closing_ends_every_row_whatever_raises() -> None:
    engine = virtual_engine(faulty.FaultyLogits)
    for request in ("a", "b"):
        add(engine, request, [5, 6, 7], SamplingParams(max_tokens=6, seed=1))
    trap_in(engine).arm("drop", 1)
    engine.close()
    assert [emission.finish_reason for emission in engine.emissions] == ["abort", "abort"]


def test_a_step_in_flight_survives_the_fault_of_another() -> None:
    engine = virtual_engine(faulty.FaultyExecutor, Continuous, max_in_flight=2, max_step_tokens=4)
    params = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    heard = Heard()
    add(engine, "first", [5, 6, 7], params)
    add(engine, "second", [8, 9], params)
    trap_in(engine).arm("submit", 2)
    step(engine, heard)
    assert len(engine.in_flight) == 1
    assert "faulty" in heard.error("second")
    assert drain(engine, heard).output("first") == tokens_alone([5, 6, 7], params)


# -- the gateway's side ---------------------------------------------------------------------------------------------


def test_a_stage_that_fails_at_the_door_refuses_its_request(tiny_model: Path, expected: list[tuple[int, ...]]) -> None:
    with model_with(tiny_model, faulty.FaultyStage) as llm:
        trap_of(llm).arm("enter", 2)
        with pytest.raises(RequestError, match=r"^plugin .faulty. failed in enter: raised Boom: as armed$"):
            llm.generate(PROMPTS, GREEDY)
        assert llm.audit() == []
        assert [result.token_ids for result in llm.generate(PROMPTS, GREEDY)] == expected


def test_a_stage_that_fails_on_the_way_out_is_logged(
    tiny_model: Path, expected: list[tuple[int, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    with model_with(tiny_model, faulty.FaultyStage) as llm:
        trap_of(llm).arm("leave", 1)
        assert [result.token_ids for result in llm.generate(PROMPTS, GREEDY)] == expected
        assert "plugin 'faulty' failed in leave: raised Boom: as armed" in caplog.messages


@pytest.mark.parametrize("method", ["commands", "double", "stats"])
def test_a_command_that_fails_names_its_plugin(tiny_model: Path, method: str) -> None:
    with model_with(tiny_model, faulty.FaultyControl) as llm:
        trap_of(llm).arm(method, 1)
        with pytest.raises(PluginError, match=rf"^plugin .faulty. failed in {method}: raised Boom: as armed$"):
            llm.stats() if method == "stats" else llm.control("faulty", "double", number=2)
        assert llm.control("faulty", "double", number=2) == 4
        assert llm.stats() == {"faulty": {}}


# -- what the tests above need --------------------------------------------------------------------------------------


def method_of(method: str) -> str:
    """What the traceback calls a trapped method."""
    closures = {"around": "around", "rms_norm": "operation", "rope": "operation", "act_mul": "operation"}
    return closures.get(method, method)


def trap_in(engine: Engine) -> Trap:
    (plugin,) = (plugin.instance for plugin in engine.parts.registry.plugins if plugin.name == "faulty")
    assert isinstance(plugin, Faulty)
    return plugin.trap
