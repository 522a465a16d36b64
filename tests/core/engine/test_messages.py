"""What crosses the border between gateway and engine arrives as it was sent, arrays and errors included."""

from __future__ import annotations

import math
from dataclasses import astuple, fields

import numpy as np
import pytest
from switchgear.core.config import build_config
from switchgear.core.engine.emission import Emission
from switchgear.core.engine.messages import (
    Abort,
    Add,
    Answer,
    Command,
    Failure,
    ForEngine,
    ForGateway,
    Gauges,
    ReadAudit,
    ReadStats,
    Ready,
    Refused,
    Start,
    Step,
    Stop,
    decode_for_engine,
    decode_for_gateway,
    decode_start,
    encode,
    plain,
)
from switchgear.core.engine.sequence import Timing
from switchgear.core.errors import ConfigError, PluginFault, RequestError, SwitchgearError
from switchgear.core.plan import EffectivePlan, HookLine, PluginLine
from switchgear.core.records import Limits, TokenScores
from switchgear.core.sampling_params import SamplingParams, Structure

PLAN = EffectivePlan(
    version="1",
    model="m",
    architecture="a",
    dtype="float32",
    dtype_reason="asked for",
    max_num_seqs=1,
    max_step_tokens=2,
    max_model_len=3,
    seed=2**63 - 1,
    kv_block_size=4,
    kv_num_blocks=5,
    kv_bytes=2**40,
    device="cpu",
    features=("avx2", "fma"),
    equivalence="token_equal",
    hooks=(HookLine("route", "core", "one pool"),),
    plugins=(PluginLine("p", "d", "1", {"share": 0.5, "names": ["a"], "deep": {"x": None}}, "token_equal", "Is."),),
    degraded={"q": "no reason"},
)


def through_engine(message: ForEngine) -> ForEngine:
    return decode_for_engine(encode(message))


def through_gateway(message: ForGateway) -> ForGateway:
    return decode_for_gateway(encode(message))


EVERY_OPTION = SamplingParams(
    max_tokens=7,
    min_tokens=2,
    temperature=0.5,
    top_k=3,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    seed=-(2**63),
    logit_bias={5: -100.0},
    stop=("\u00e9", "x"),
    stop_token_ids=(9,),
    ignore_eos=True,
    logprobs=2,
    prompt_logprobs=0,
    n=3,
)


@pytest.mark.parametrize("params", [EVERY_OPTION, SamplingParams(structure=Structure("json_schema", "{}"))])
def test_sampling_options_arrive(params: SamplingParams) -> None:
    sent = Add("r", np.array([3, 1, 2]), params, tenant="t", priority=-1, pooling="mean")
    came = through_engine(sent)
    assert isinstance(came, Add)
    assert (came.request, came.tenant, came.priority, came.pooling) == ("r", "t", -1, "mean")
    assert came.params == params
    assert came.prompt.dtype == np.int64 and came.prompt.tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    "message",
    [
        Abort("r"),
        Abort("r", 2),
        Command(1, "p", "c", {"a": [1, 2.5, None], "b": {"c": "d"}}),
        ReadStats(2),
        ReadAudit(3),
        Stop(),
    ],
)
def test_what_the_engine_is_told_arrives(message: ForEngine) -> None:
    assert through_engine(message) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(PLAN, Limits(1, 2, 3), {"total": 1.5}, Gauges(kv_total=4)),
        Refused("r", "no"),
        Answer(1, {"a": [1, 2]}),
        Failure(2, "ConfigError", "no"),
    ],
)
def test_what_the_gateway_is_told_arrives(message: ForGateway) -> None:
    assert through_gateway(message) == message


def test_the_plan_keeps_its_hashes() -> None:
    ready = through_gateway(Ready(PLAN, Limits(1, 2, 3), {}, Gauges()))
    assert isinstance(ready, Ready)
    assert (ready.plan.hash, ready.plan.environment) == (PLAN.hash, PLAN.environment)


def test_an_emission_keeps_its_arrays_and_their_types() -> None:
    scores = TokenScores(
        np.array([-0.5, -math.inf]), np.array([1, 7]), np.array([[4, 5], [6, 7]]), np.zeros((2, 2), np.float32)
    )
    no_scores = TokenScores(np.empty(0), np.empty(0, np.int64), np.empty((0, 0), np.int64), np.empty((0, 0)))
    vector = np.linspace(0, 1, 5, dtype=np.float32)
    sent = [
        Emission("a", 1, (3, 4), scores, no_scores, "stop", 4, "e", Timing(1.0, 2.0, 3.0, 4.0), vector, 5, 6),
        Emission("b", 0, ()),
    ]
    came = through_gateway(Step(sent, Gauges(num_steps=3, step_seconds=0.1)))
    assert isinstance(came, Step) and came.gauges == Gauges(num_steps=3, step_seconds=0.1)
    first, second = came.emissions
    for field in fields(Emission):
        expected, got = getattr(sent[0], field.name), getattr(first, field.name)
        if isinstance(expected, TokenScores):
            for array, copy in zip(astuple(expected), astuple(got), strict=True):
                assert copy.dtype == array.dtype and copy.shape == array.shape
                np.testing.assert_array_equal(copy, array)
        elif isinstance(expected, np.ndarray):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
        else:
            assert got == expected, field.name
    assert second == sent[1]


def test_times_that_have_not_come_stay_so() -> None:
    came = through_gateway(Step([Emission("a", 0, (), timing=Timing(1.0))], Gauges()))
    assert isinstance(came, Step) and came.emissions[0].timing is not None
    assert math.isnan(came.emissions[0].timing.first_token)


def test_a_config_arrives_with_its_plugins_in_order() -> None:
    config = build_config(
        overrides=["plugins.paged_kv.block_size=32", "model.name='m'", "engine.kv_bytes=1000000000000"]
    )
    start = decode_start(encode(Start(config, "a", 1.5, "cache")))
    assert start == Start(config, "a", 1.5, "cache")
    assert [entry.name for entry in start.config.plugins] == [entry.name for entry in config.plugins]


@pytest.mark.parametrize(
    "error", [ConfigError("no such thing"), RequestError("too long"), PluginFault("p", "m", "bad")]
)
def test_an_error_is_raised_again_as_it_was(error: SwitchgearError) -> None:
    again = Failure.of(1, error).error()
    assert (type(again), str(again), getattr(again, "plugin", "")) == (
        type(error),
        str(error),
        getattr(error, "plugin", ""),
    )


def test_an_error_of_a_plugins_own_class_is_one_of_ours() -> None:
    class Odd(SwitchgearError):
        pass

    again = Failure.of(1, Odd("odd")).error()
    assert (type(again), str(again)) == (SwitchgearError, "odd")


def test_answers_are_plain_or_refused() -> None:
    assert plain({"a": np.float64(1.5), "b": np.arange(2), "c": [1, "x"], "d": Limits(1, 2, 3)}) == {
        "a": 1.5,
        "b": [0, 1],
        "c": [1, "x"],
        "d": {"max_num_seqs": 1, "max_step_tokens": 2, "max_model_len": 3},
    }
    with pytest.raises(TypeError, match="a value of type object cannot be sent"):
        plain([object()])
