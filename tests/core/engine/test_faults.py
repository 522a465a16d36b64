"""A plugin's method raises once: the rows of that step fail with its name, the books balance, the engine goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchgear import LLM, SamplingParams
from switchgear.core.errors import PluginError, RequestError

from . import faulty
from .build import Heard, add, drain, executor_of, step, virtual_engine
from .faulty import Faulty, Trap
from .paged import PagedKV
from .virtual import tokens_alone

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPTS = ([5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17])
NUM_RUNNING = 2
"""So that one of three prompts waits, and is in no step of the others."""


def model_with(tiny_model: Path, *classes: type) -> LLM:
    plugins: dict[str, dict[str, Any]] = {str(cls.name): {} for cls in classes}  # type: ignore[attr-defined]
    limits = {"max_num_seqs": NUM_RUNNING, "max_step_tokens": 32, "max_model_len": 64}
    return LLM(str(tiny_model), dtype="float32", plugins=plugins, plugin_classes=classes, **limits)


def trap_of(llm: LLM) -> Trap:
    (plugin,) = (plugin.instance for plugin in llm._registry.plugins if plugin.name == "faulty")
    assert isinstance(plugin, Faulty)
    return plugin.trap


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


def method_of(method: str) -> str:
    """What the traceback calls a trapped method."""
    closures = {"around": "around", "rms_norm": "operation", "rope": "operation", "act_mul": "operation"}
    return closures.get(method, method)
