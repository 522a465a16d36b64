import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from switchgear.core.errors import RequestError
from switchgear.core.sampling_params import MAX_STRUCTURE_CHARACTERS, SamplingParams, Structure

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens must be an integer from 1 to"),
    ({"max_tokens": 2**31}, "max_tokens must be an integer from 1 to"),
    ({"max_tokens": True}, "got True"),
    ({"max_tokens": 5.0}, "got 5.0"),
    ({"max_tokens": "5"}, "got '5'"),
    ({"max_tokens": None}, "got None"),
    ({"min_tokens": -1}, "min_tokens must be an integer from 0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must be from 0 to max_tokens, got 9 with max_tokens 8"),
    ({"temperature": float("nan")}, "temperature must be a number from 0 to 100, got nan"),
    ({"temperature": float("inf")}, "temperature must be a number from 0 to 100, got inf"),
    ({"temperature": -0.1}, "temperature must be a number from 0 to 100, got -0.1"),
    ({"temperature": False}, "got False"),
    ({"temperature": 10**400}, "temperature must be a number from 0 to 100"),
    ({"top_k": -1}, "top_k must be an integer from 0"),
    ({"top_p": 0}, "top_p must be a number above 0 and at most 1, got 0"),
    ({"top_p": 1.01}, "top_p must be a number from 0 to 1"),
    ({"min_p": 1.5}, "min_p must be a number from 0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty must be a number from 0.01 to 100"),
    ({"presence_penalty": 2.5}, "presence_penalty must be a number from -2 to 2"),
    ({"frequency_penalty": -3}, "frequency_penalty must be a number from -2 to 2"),
    ({"seed": 1.5}, "seed must be an integer"),
    ({"seed": 2**63}, "seed must be an integer"),
    ({"logit_bias": [1]}, "logit_bias must map at most 1024 token ids"),
    ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias must map at most 1024 token ids"),
    ({"logit_bias": {"a": 1.0}}, "keys, got 'a'"),
    ({"logit_bias": {-1: 1.0}}, "keys, got -1"),
    ({"logit_bias": {1: 101}}, "numbers from -100 to 100 as values, got 101"),
    ({"logit_bias": {1: float("nan")}}, "as values, got nan"),
    ({"stop": ["x"] * 300}, "stop must hold at most 16 strings, got 300"),
    ({"stop": [""]}, "at least one character"),
    ({"stop": ""}, "at least one character"),
    ({"stop": [1]}, "stop must hold strings"),
    ({"stop": 5}, "stop must be a list, got 5"),
    ({"stop": "x" * 4097}, "at most 4096 characters in all, got 4097"),
    ({"stop_token_ids": range(65)}, "stop_token_ids must be a list"),
    ({"stop_token_ids": list(range(65))}, "stop_token_ids must hold at most 64 token ids, got 65"),
    ({"stop_token_ids": [True]}, "got True"),
    ({"stop_token_ids": [-1]}, "got -1"),
    ({"ignore_eos": 1}, "ignore_eos must be true or false, got 1"),
    ({"logprobs": 21}, "logprobs must be an integer from 0 to 20, got 21"),
    ({"prompt_logprobs": -1}, "prompt_logprobs must be an integer from 0 to 20, got -1"),
    ({"n": 0}, "n must be an integer from 1 to 128, got 0"),
    ({"n": 129}, "n must be an integer from 1 to 128, got 129"),
    ({"structure": "json"}, "structure must be a Structure or nothing, got 'json'"),
    ({"structure": {"text": "a"}}, "structure must be a Structure or nothing"),
    ({"structure": {"kind": "xml", "text": "a"}}, "structure must be one of json_object, json_schema, regex,"),
    ({"structure": {"kind": "regex"}}, "structure of kind regex needs a text"),
    ({"structure": {"kind": "json_object", "text": "{}"}}, "structure of kind json_object takes no text"),
    ({"structure": {"kind": "regex", "text": 5}}, "structure must have a text of at most"),
    (
        {"structure": {"kind": "regex", "text": "a" * (MAX_STRUCTURE_CHARACTERS + 1)}},
        f"a text of at most {MAX_STRUCTURE_CHARACTERS} characters",
    ),
    ({"structure": {"kind": "json_object"}, "ignore_eos": True}, "ignore_eos must be false with a structure"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_bad_values_are_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**options)
    text = str(caught.value)
    assert sentence in text
    assert len(text) < 200 and "\n" not in text and text.endswith(".")


def test_the_ends_of_each_range_are_allowed() -> None:
    SamplingParams(max_tokens=1, temperature=0, top_k=0, top_p=1e-9, min_p=0, repetition_penalty=0.01)
    SamplingParams(max_tokens=2**31 - 1, temperature=100, top_k=2**31 - 1, top_p=1, min_p=1, repetition_penalty=100)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, seed=-(2**63), logprobs=0, prompt_logprobs=20, n=128)
    SamplingParams(seed=2**63 - 1, min_tokens=256, stop=["x" * 256] * 16, stop_token_ids=list(range(64)))
    SamplingParams(logit_bias={token: 100.0 if token % 2 else -100.0 for token in range(1024)})


def test_lists_and_sets_become_tuples() -> None:
    params = SamplingParams(stop="end", stop_token_ids={7, 3})
    assert (params.stop, params.stop_token_ids) == (("end",), (3, 7))
    assert SamplingParams(stop=["b", "a"]).stop == ("b", "a")


def test_numbers_of_numpy_become_plain_ones() -> None:
    given: dict[str, Any] = {
        "max_tokens": np.int64(4),
        "temperature": np.float32(0.5),
        "logit_bias": {np.int64(3): np.float64(2)},
    }
    params = SamplingParams(**given)
    assert type(params.max_tokens) is int and type(params.temperature) is float
    assert [(type(token), type(bias)) for token, bias in params.logit_bias.items()] == [(int, float)]


def test_a_later_change_of_the_given_bias_changes_nothing() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 9.0
    assert params.logit_bias == {1: 2.0}


def test_params_are_values() -> None:
    assert SamplingParams(seed=1, stop=["a"]) == SamplingParams(seed=1, stop=("a",))
    assert hash(SamplingParams(logit_bias={1: 1.0})) is not None
    with pytest.raises(AttributeError):
        SamplingParams().max_tokens = 3  # type: ignore[misc]


@pytest.mark.parametrize("options", [{"logit_bias": {100: 1.0}}, {"stop_token_ids": [5, 100]}])
def test_token_ids_outside_the_vocabulary_are_refused(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    params.check_vocabulary(101)
    with pytest.raises(RequestError, match="must hold token ids from 0 to 99, got 100"):
        params.check_vocabulary(100)


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, switchgear.core.sampling_params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_structure_survives_its_plain_form() -> None:
    params = SamplingParams(structure=Structure("regex", "[0-9]+"))
    assert SamplingParams(**asdict(params)) == params
    assert SamplingParams(**asdict(SamplingParams())) == SamplingParams()
