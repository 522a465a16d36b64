"""The Python API: what a result holds, and that every way to the same answer gives the same answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.gateway.results import Chunk, Result
from switchgear.core.testing.tiny import CHAT_TEMPLATE

GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=16, seed=11, ignore_eos=True)
TEXT = "The machine is the sum of its switches."
EOS = 2


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), dtype="float64", plugins={}, max_num_seqs=8, max_model_len=128) as llm:
        yield llm


def one(llm: LLM, prompt: object, params: SamplingParams) -> Result:
    [result] = llm.generate(prompt, params)  # type: ignore[arg-type]
    return result


def only_token(llm: LLM, token: int) -> SamplingParams:
    """Options under which the model says nothing else."""
    return replace(GREEDY, logit_bias={token: 100.0})


# -- results --------------------------------------------------------------------------------------------------------


def test_a_result_holds_what_was_asked_and_answered(llm: LLM) -> None:
    result = one(llm, TEXT, GREEDY)
    assert result.prompt_token_ids == tuple(llm.tokenizer.encode(TEXT))
    assert len(result.token_ids) == 16
    assert result.text == llm.tokenizer.decode(result.token_ids)
    assert (result.finish_reason, result.error) == ("length", "")
    assert result.logprobs is None and result.prompt_logprobs is None
    assert result.plan_hash == llm.plan.hash
    assert [choice.index for choice in result.choices] == [0]


def test_results_stand_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts: list[str | list[int]] = [TEXT, [5, 6, 7], "Queues, blocks", [9]]
    results = llm.generate(prompts, [replace(GREEDY, max_tokens=count) for count in (9, 3, 12, 1)])
    assert [len(result.token_ids) for result in results] == [9, 3, 12, 1]
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == one(llm, prompt, GREEDY).token_ids[: len(result.token_ids)]
    assert len({result.request_id for result in results}) == 4


def test_a_text_and_its_tokens_are_the_same_prompt(llm: LLM) -> None:
    assert one(llm, llm.tokenizer.encode(TEXT), GREEDY).token_ids == one(llm, TEXT, GREEDY).token_ids


def test_timing_adds_up(tiny_model: Path) -> None:
    """On a clock that counts: total = ttft + (tokens - 1) * tpot, whatever the readings are."""
    ticks = iter(range(10**6))
    with LLM(str(tiny_model), plugins={}, clock=lambda: float(next(ticks)), max_model_len=128) as llm:
        timing = one(llm, TEXT, GREEDY).timing
        assert 0 < timing.queue < timing.ttft < timing.total
        assert timing.total == pytest.approx(timing.ttft + 15 * timing.tpot)
        assert math.isnan(one(llm, TEXT, replace(GREEDY, max_tokens=1)).timing.tpot)


def test_outputs_of_one_prompt_share_it(llm: LLM) -> None:
    result = one(llm, TEXT, replace(SEEDED, n=3))
    assert [choice.index for choice in result.choices] == [0, 1, 2]
    assert len({choice.token_ids for choice in result.choices}) == 3
    assert result.token_ids == result.choices[0].token_ids == one(llm, TEXT, SEEDED).token_ids
    for choice in result.choices:
        assert choice.text == llm.tokenizer.decode(choice.token_ids)


# -- streaming ------------------------------------------------------------------------------------------------------


def joined(chunks: list[Chunk], index: int) -> tuple[str, tuple[int, ...]]:
    own = [chunk for chunk in chunks if chunk.index == index]
    return "".join(chunk.text for chunk in own), tuple(token for chunk in own for token in chunk.token_ids)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stop", [(), (" ",), ("e",)])
def test_a_stream_is_the_result_in_pieces(llm: LLM, n: int, stop: tuple[str, ...]) -> None:
    params = replace(SEEDED, n=n, stop=stop, logprobs=1)
    chunks, expected = list(llm.stream(TEXT, params)), one(llm, TEXT, params)
    assert [chunk.result is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    result = chunks[-1].result
    assert result is not None
    for choice, streamed in zip(expected.choices, result.choices, strict=True):
        text, token_ids = joined(chunks, choice.index)
        assert (text, token_ids) == (choice.text, choice.token_ids) == (streamed.text, streamed.token_ids)
        assert streamed.logprobs == choice.logprobs
        reasons = [chunk.finish_reason for chunk in chunks if chunk.index == choice.index]
        assert reasons == [None] * (len(reasons) - 1) + [choice.finish_reason]


def test_a_stream_comes_token_by_token(llm: LLM) -> None:
    chunks = list(llm.stream(TEXT, GREEDY))
    assert [len(chunk.token_ids) for chunk in chunks] == [1] * 16


def test_a_conversation_streams_too(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Who are you?"}]
    chunks = list(llm.stream(messages, GREEDY))
    assert joined(chunks, 0)[1] == llm.chat(messages, GREEDY)[0].token_ids


# -- conversations --------------------------------------------------------------------------------------------------


def test_chat_is_the_template_by_hand(llm: LLM) -> None:
    assert "<|im_start|>" in CHAT_TEMPLATE
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    [result] = llm.chat(messages, GREEDY)
    assert list(result.prompt_token_ids) == llm.tokenizer.encode(prompt, add_special=False)
    assert result.token_ids == one(llm, list(result.prompt_token_ids), GREEDY).token_ids


def test_a_text_gets_a_beginning_and_a_conversation_has_its_own(model_with_bos: Path) -> None:
    with LLM(str(model_with_bos), dtype="float32", plugins={}, max_model_len=64) as llm:
        [text] = llm.generate("Hello", GREEDY)
        [conversation] = llm.chat([{"role": "user", "content": "Hello"}], GREEDY)
        assert text.prompt_token_ids[0] == 1 and text.prompt_token_ids.count(1) == 1
        assert conversation.prompt_token_ids[0] == 1 and conversation.prompt_token_ids[1] != 1
        [tokens] = llm.generate([5, 6], GREEDY)
        assert tokens.prompt_token_ids == (5, 6)


def test_several_conversations_at_once(llm: LLM) -> None:
    conversations = [[{"role": "user", "content": text}] for text in ("Hello", "Good evening")]
    results = llm.chat(conversations, GREEDY)
    assert [result.token_ids for result in results] == [llm.chat(each, GREEDY)[0].token_ids for each in conversations]


# -- where an output ends -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(llm: LLM) -> SamplingParams:
    """Options under which the output has no broken characters."""
    return next(
        params
        for params in (replace(SEEDED, temperature=0.3, max_tokens=12, seed=seed) for seed in range(200))
        if one(llm, TEXT, params).text.isascii()
    )


def test_a_stop_string_ends_the_text_before_it(llm: LLM, plain: SamplingParams) -> None:
    """Also one that lies across tokens, as most of these do."""
    whole = one(llm, TEXT, plain)
    for start in range(len(whole.text) - 2):
        stop = whole.text[start : start + 3]
        cut = one(llm, TEXT, replace(plain, stop=("never", stop)))
        assert cut.finish_reason == "stop"
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert whole.token_ids[: len(cut.token_ids)] == cut.token_ids
        # it ends with the token that completed the stop string
        assert stop in llm.tokenizer.decode(cut.token_ids)
        assert stop not in llm.tokenizer.decode(cut.token_ids[:-1])


def test_a_stop_string_that_never_comes_is_no_loss(llm: LLM) -> None:
    """What was held back as its possible beginning is shown at the end."""
    whole = one(llm, TEXT, GREEDY)
    never = whole.text[-2:] + "never"
    result = one(llm, TEXT, replace(GREEDY, stop=(never,)))
    assert (result.text, result.finish_reason) == (whole.text, "length")


def test_the_engine_stops_with_the_text(llm: LLM) -> None:
    """A request that ended at a stop string does not run on."""
    num_steps = llm._engine.num_steps
    whole = one(llm, TEXT, replace(GREEDY, max_tokens=100))
    cut = one(llm, TEXT, replace(GREEDY, max_tokens=100, stop=(whole.text[3:6],)))
    assert llm._engine.num_steps - num_steps == 100 + len(cut.token_ids)
    assert llm.audit() == [] and not llm._engine.has_work


def test_min_tokens_put_stop_strings_off(llm: LLM) -> None:
    whole = one(llm, TEXT, GREEDY)
    letter = whole.text[0]
    assert one(llm, TEXT, replace(GREEDY, stop=(letter,))).text == ""
    late = one(llm, TEXT, replace(GREEDY, stop=(letter,), min_tokens=5))
    assert len(late.token_ids) > 5 or late.finish_reason == "length"
    assert late.text.startswith(letter)


def test_a_stop_token_ends_the_output_and_is_no_text(llm: LLM) -> None:
    whole = one(llm, TEXT, GREEDY)
    stop = whole.token_ids[4]
    result = one(llm, TEXT, replace(GREEDY, stop_token_ids=(stop,)))
    end = whole.token_ids.index(stop)
    assert result.token_ids == whole.token_ids[: end + 1]
    assert result.finish_reason == "stop"
    assert result.text == llm.tokenizer.decode(whole.token_ids[:end])


def test_end_of_text_ends_unless_ignored(llm: LLM) -> None:
    says_eos = replace(only_token(llm, EOS), ignore_eos=False)
    result = one(llm, TEXT, says_eos)
    assert (result.token_ids, result.text, result.finish_reason) == ((EOS,), "", "stop")
    ignored = one(llm, TEXT, replace(says_eos, ignore_eos=True))
    assert (ignored.token_ids, ignored.text, ignored.finish_reason) == ((EOS,) * 16, "", "length")


def test_min_tokens_put_end_of_text_off(llm: LLM) -> None:
    result = one(llm, TEXT, replace(only_token(llm, EOS), ignore_eos=False, min_tokens=5))
    assert len(result.token_ids) == 6 and result.token_ids.index(EOS) == 5
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 16])
def test_max_tokens(llm: LLM, max_tokens: int) -> None:
    result = one(llm, TEXT, replace(GREEDY, max_tokens=max_tokens))
    assert (len(result.token_ids), result.finish_reason) == (max_tokens, "length")


def test_up_to_the_last_token_that_fits(llm: LLM) -> None:
    result = one(llm, [5] * 127, replace(GREEDY, max_tokens=1))
    assert (len(result.token_ids), result.finish_reason) == (1, "length")
