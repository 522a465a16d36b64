from argparse import ArgumentParser
from dataclasses import fields
from typing import Any

import pytest
from switchgear.core.cli.sampling_options import add_sampling_options, sampling_params
from switchgear.core.errors import RequestError
from switchgear.core.sampling_params import SamplingParams, Structure

EACH: dict[str, tuple[list[str], Any]] = {
    "max_tokens": (["--max-tokens", "7"], 7),
    "min_tokens": (["--min-tokens", "2"], 2),
    "temperature": (["--temperature", "0.5"], 0.5),
    "top_k": (["--top-k", "3"], 3),
    "top_p": (["--top-p", "0.25"], 0.25),
    "min_p": (["--min-p", "0.125"], 0.125),
    "repetition_penalty": (["--repetition-penalty", "1.5"], 1.5),
    "presence_penalty": (["--presence-penalty", "-0.5"], -0.5),
    "frequency_penalty": (["--frequency-penalty", "0.75"], 0.75),
    "seed": (["--seed", "-9"], -9),
    "logit_bias": (["--logit-bias", "4=-2.5", "--logit-bias", "5=1"], {4: -2.5, 5: 1.0}),
    "stop": (["--stop", "a b", "--stop", "c"], ("a b", "c")),
    "stop_token_ids": (["--stop-token-ids", "8", "--stop-token-ids", "9"], (8, 9)),
    "ignore_eos": (["--ignore-eos"], True),
    "logprobs": (["--logprobs", "0"], 0),
    "prompt_logprobs": (["--prompt-logprobs", "1"], 1),
    "n": (["--n", "2"], 2),
    "structure": (["--structure", "regex=a=b"], Structure("regex", "a=b")),
}


def parsed(*arguments: str) -> SamplingParams:
    parser = ArgumentParser()
    add_sampling_options(parser)
    return sampling_params(parser.parse_args(arguments))


def test_every_field_is_tried() -> None:
    assert set(EACH) == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("name", EACH)
def test_every_field_has_an_option_that_sets_it_and_nothing_else(name: str) -> None:
    arguments, value = EACH[name]
    assert parsed(*arguments) == SamplingParams(**{name: value})


def test_what_is_not_given_has_its_default() -> None:
    assert parsed() == SamplingParams()


def test_help_says_what_the_field_says() -> None:
    parser = ArgumentParser()
    add_sampling_options(parser, leave_out=("n",))
    text = " ".join(parser.format_help().split())
    assert "Most tokens to generate, 1 or more. Default 256." in text
    assert "--n N" not in text


@pytest.mark.parametrize("text", ["4", "4=", "=1", "four=1"])
def test_a_bias_that_cannot_be_read_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--logit-bias", text)
    assert f"{text!r} is no token id and bias, such as 42=-100" in capsys.readouterr().err


def test_a_value_out_of_range_is_refused_with_its_range() -> None:
    with pytest.raises(RequestError, match="temperature must be a number from 0 to 100, got nan"):
        parsed("--temperature", "nan")
