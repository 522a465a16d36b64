"""Bad input gets one sentence with the numbers or names in it, and the engine goes on with the right tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.errors import ConfigError, ModelError, RequestError, SwitchgearError
from switchgear.core.testing.tiny import make_tiny_model

from .build import tiny_llm
from .paged import PagedKV

GOOD = SamplingParams(max_tokens=6, temperature=0.0)
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with tiny_llm(tiny_model) as llm:
        yield llm


def test_no_prompt_is_no_error(llm: LLM) -> None:
    assert llm.generate([], GOOD) == []
    assert llm.chat([], GOOD) == []


@pytest.fixture(scope="module")
def expected(llm: LLM) -> tuple[int, ...]:
    return llm.generate(PROMPT, GOOD)[0].token_ids


def sentence(kind: type[SwitchgearError], act: Callable[[], Any]) -> str:
    """What the user reads."""
    with pytest.raises(kind) as refused:
        act()
    text = str(refused.value)
    assert text and "\n" not in text
    return text


def refused(llm: LLM, expected: tuple[int, ...], act: Callable[[], Any]) -> str:
    """The sentence, and the engine alive after it."""
    text = sentence(RequestError, act)
    assert llm.audit() == [] and not llm._engine.has_work and not llm._live
    assert llm.generate(PROMPT, GOOD)[0].token_ids == expected
    return text


PROMPTS: list[tuple[Any, str]] = [
    ("", "the prompt is empty: send at least one token"),
    ([[5, 6], []], "the prompt is empty: send at least one token"),
    ([5] * 64, "the prompt has 64 tokens, and prompt and output together may have 64: shorten the prompt or"),
    ([5] * 500, "the prompt has 500 tokens, and prompt and output together may have 64"),
    ([5] * 60, "prompt (60) and max_tokens (6) together exceed max_model_len (64): set max_tokens to 4 or less"),
    ([5, 512], "token id 512 is out of range: this model's ids go from 0 to 511"),
    ([5, -1], "token id -1 is out of range: this model's ids go from 0 to 511"),
    ([2**70], "a token id is out of range: this model's ids go from 0 to 511"),
    ([5, 6.0], "a prompt is a text or a list of token ids: this list holds something else"),
    ([5, None], "a prompt is a text or a list of token ids: this list holds something else"),
    ([True, False], "a prompt is a text or a list of token ids: this list holds something else"),
    (17, "a prompt is a text or a list of token ids, not int"),
    (None, "a prompt is a text or a list of token ids, not NoneType"),
    ("a\ud800b", "the text has a lone surrogate at character 1; send valid Unicode"),
    (["fine", "\udfff"], "the text has a lone surrogate at character 0; send valid Unicode"),
]


@pytest.mark.parametrize(("prompt", "problem"), PROMPTS, ids=[problem[:40] for _, problem in PROMPTS])
def test_a_bad_prompt(llm: LLM, expected: tuple[int, ...], prompt: Any, problem: str) -> None:
    text = refused(llm, expected, lambda: llm.generate(prompt, GOOD))
    assert text.startswith(problem)


def test_one_bad_prompt_refuses_the_batch_before_anything_runs(llm: LLM, expected: tuple[int, ...]) -> None:
    num_steps = llm._engine.num_steps
    sentence(RequestError, lambda: llm.generate([PROMPT, [5, 512], PROMPT], GOOD))
    assert llm._engine.num_steps == num_steps


def test_a_bad_prompt_of_a_stream_is_refused_at_once(llm: LLM, expected: tuple[int, ...]) -> None:
    assert "out of range" in refused(llm, expected, lambda: llm.stream([512], GOOD))


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens must be an integer from 1 to 2147483647, got 0"),
    ({"max_tokens": -3}, "max_tokens must be an integer from 1 to"),
    ({"max_tokens": 61}, "prompt (4) and max_tokens (61) together exceed max_model_len (64): set max_tokens to 60"),
    ({"max_tokens": 2**31 - 1}, "prompt (4) and max_tokens (2147483647) together exceed max_model_len (64)"),
    ({"temperature": math.nan}, "temperature must be a number from 0 to 100, got nan"),
    ({"temperature": math.inf}, "temperature must be a number from 0 to 100, got inf"),
    ({"temperature": -0.1}, "temperature must be a number from 0 to 100, got -0.1"),
    ({"temperature": "hot"}, "temperature must be a number from 0 to 100, got 'hot'"),
    ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got 0"),
    ({"top_p": math.nan}, "top_p must be a number from 0 to 1, got nan"),
    ({"stop": [f"stop {index}" for index in range(300)]}, "stop must hold at most 16 strings, got 300"),
    ({"stop": [""]}, "stop must hold strings of at least one character"),
    ({"stop_token_ids": [600]}, "stop_token_ids must hold token ids from 0 to 511, got 600"),
    ({"logit_bias": {600: 1.0}}, "logit_bias must hold token ids from 0 to 511, got 600"),
    ({"n": 0}, "n must be an integer from 1 to 128, got 0"),
    ({"seed": 2**63}, "seed must be an integer from -9223372036854775808 to 9223372036854775807"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must be from 0 to max_tokens, got 9 with max_tokens 8"),
    ({"logprobs": 21}, "logprobs must be an integer from 0 to 20, got 21"),
]


@pytest.mark.parametrize(("options", "problem"), OPTIONS, ids=[problem[:40] for _, problem in OPTIONS])
def test_bad_options(llm: LLM, expected: tuple[int, ...], options: dict[str, Any], problem: str) -> None:
    text = refused(llm, expected, lambda: llm.generate(PROMPT, SamplingParams(**{"max_tokens": 6, **options})))
    assert text.startswith(problem)


def test_prompts_and_params_that_do_not_match(llm: LLM, expected: tuple[int, ...]) -> None:
    text = refused(llm, expected, lambda: llm.generate([PROMPT, PROMPT], [GOOD] * 3))
    assert text.startswith("2 prompts and 3 sampling params")


def test_a_request_that_no_pool_can_hold(tiny_model: Path, expected: tuple[int, ...]) -> None:
    with tiny_llm(tiny_model, PagedKV, kv_bytes=5 * 4 * 512) as small:
        text = refused(small, expected, lambda: small.generate([5] * 30, GOOD))
    assert text.startswith("the request needs 9 KV blocks of 4 tokens and the pool has 5: lower max_tokens")


# -- conversations --------------------------------------------------------------------------------------------------

CHATS: list[tuple[Any, str]] = [
    ([[]], "a conversation needs at least one message"),
    ([{"content": "hi"}], "message 0 has no role; each message needs a role and a content"),
    ([{"role": "user", "content": 5}], "the content of message 0 must be a string or a list of text parts"),
    ([{"role": "user", "content": "\ud800"}], "the text has a lone surrogate"),
    ([{"role": "user", "content": "word " * 200}], "the prompt has "),
]


@pytest.mark.parametrize(("messages", "problem"), CHATS)
def test_a_bad_conversation(llm: LLM, expected: tuple[int, ...], messages: Any, problem: str) -> None:
    assert refused(llm, expected, lambda: llm.chat(messages, GOOD)).startswith(problem)


def test_a_template_that_raises(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    config_file = model / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    config["chat_template"] = (
        "{% if messages|length > 1 %}{{ raise_exception('one message,\nno more') }}{% endif %}{{ messages[0].content }}"
    )
    config_file.write_text(json.dumps(config))
    turn = {"role": "user", "content": "hello"}
    with tiny_llm(model) as llm:
        [good] = llm.chat([turn], GOOD)
        text = refused(llm, llm.generate(PROMPT, GOOD)[0].token_ids, lambda: llm.chat([turn, turn], GOOD))
        assert text == (
            "the model's chat template refused the messages (one message, no more); change them or use a plain prompt"
        )
        assert llm.chat([turn], GOOD)[0].token_ids == good.token_ids


# -- models and configs ---------------------------------------------------------------------------------------------


def load(model: Path, **engine: Any) -> LLM:
    return LLM(str(model), dtype="float32", plugins={}, **engine)


def test_a_truncated_checkpoint(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    text = sentence(ModelError, lambda: load(model))
    assert "model.safetensors is truncated or not a safetensors file" in text and "fetch the model again" in text


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    other = make_tiny_model(tmp_path / "other", hidden_size=32)
    (model / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    text = sentence(ModelError, lambda: load(model))
    assert "[512, 32] where config.json means [512, 64]" in text


def test_a_checkpoint_without_a_layer(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", num_hidden_layers=1)
    config_file = model / "config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "num_hidden_layers": 2}))
    text = sentence(ModelError, lambda: load(model))
    assert text.startswith("the tensor model.layers.1.") and "does not fit its config.json" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"architectures": ["GPT9"]}, "is of architecture 'GPT9', which this engine cannot run: it runs "),
        ({"num_attention_heads": 3}, "3 query heads cannot share 2 KV heads evenly"),
        ({"hidden_size": None}, "hidden_size is None, it must be a positive integer"),
        ({"hidden_act": "sine"}, "activation 'sine' is unknown"),
    ],
)
def test_a_config_json_that_cannot_be_used(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    model = make_tiny_model(tmp_path / "model")
    config_file = model / "config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), **change}))
    assert problem in sentence(ModelError, lambda: load(model))


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ({"max_num_sequences": 4}, "[engine]: unknown option 'max_num_sequences' (did you mean 'max_num_seqs'?)"),
        ({"max_num_seqs": 0}, "[engine]: Expected `int` >= 1"),
        ({"max_num_seqs": "many"}, "[engine]: Expected `int`, got `str`"),
        ({"max_num_seqs": 64, "max_step_tokens": 32}, "max_step_tokens = 32 is below max_num_seqs = 64"),
        ({"max_model_len": 5000}, "max_model_len = 5000 exceeds the 512 tokens that model"),
        ({"kv_bytes": 1000}, "KV of 1000 bytes holds no block of 512 tokens, which takes 262144"),
        ({"seed": 2**63}, "[engine]: Expected `int` <= 9223372036854775807"),
    ],
)
def test_a_bad_engine_section(tiny_model: Path, engine: dict[str, Any], problem: str) -> None:
    assert problem in sentence(ConfigError, lambda: load(tiny_model, **engine))


def test_an_unknown_plugin_and_an_unknown_option(tiny_model: Path) -> None:
    def build(plugins: dict[str, Any]) -> Callable[[], LLM]:
        return lambda: LLM(str(tiny_model), plugins=plugins, plugin_classes=[PagedKV])

    text = sentence(ConfigError, build({"pagd": {}}))
    assert text.startswith("unknown plugin 'pagd' (did you mean 'paged'?): valid are ") and "paged" in text
    text = sentence(ConfigError, build({"paged": {"blocksize": 4}}))
    assert text.startswith("[plugins.paged]: unknown option 'blocksize' (did you mean 'block_size'?)")
    text = sentence(ConfigError, build({"paged": {"block_size": "big"}}))
    assert text.startswith("[plugins.paged]: Expected `int`, got `str`")
    text = sentence(ConfigError, build({"paged": 5}))
    assert text == "[plugins.paged] must be a table of options, not 5"
