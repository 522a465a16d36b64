"""Log probabilities are those of transformers on the same weights, wherever a request asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.gateway.results import PositionLogprobs

PROMPT = [5, 60, 70, 8, 90, 10, 11, 300, 401]
PARAMS = SamplingParams(max_tokens=10, seed=3, ignore_eos=True)
ERROR = 1e-4


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), dtype="float32", plugins={}, max_num_seqs=8, max_model_len=128) as llm:
        yield llm


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    return model


def expected(reference: torch.nn.Module, tokens: Sequence[int]) -> torch.Tensor:
    """`[N - 1, V]`: the law of each token but the first."""
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens])).logits[0, :-1]
    return torch.log_softmax(logits, dim=-1)


def check(positions: Sequence[PositionLogprobs], laws: torch.Tensor, tokens: Sequence[int], num_top: int) -> None:
    for position, law, token in zip(positions, laws, tokens, strict=True):
        assert position.chosen.token_id == token
        assert position.chosen.logprob == pytest.approx(float(law[token]), abs=ERROR)
        assert abs(position.rank - (int((law > law[token]).sum()) + 1)) <= int((law - law[token]).abs().lt(ERROR).sum())
        best = law.topk(num_top) if num_top else None
        assert len(position.top) == num_top
        if best is not None:
            assert [entry.logprob for entry in position.top] == pytest.approx(best.values.tolist(), abs=ERROR)
            for entry in position.top:
                assert float(law[entry.token_id]) == pytest.approx(entry.logprob, abs=ERROR)


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_of_the_output(llm: LLM, reference: torch.nn.Module, num_top: int) -> None:
    [result] = llm.generate(PROMPT, replace(PARAMS, logprobs=num_top))
    assert result.logprobs is not None
    laws = expected(reference, [*PROMPT, *result.token_ids])[len(PROMPT) - 1 :]
    check(result.logprobs, laws, result.token_ids, num_top)


@pytest.mark.parametrize("num_top", [0, 3])
def test_of_the_prompt(llm: LLM, reference: torch.nn.Module, num_top: int) -> None:
    [result] = llm.generate(PROMPT, replace(PARAMS, prompt_logprobs=num_top))
    assert result.prompt_logprobs is not None
    first, *rest = result.prompt_logprobs
    assert first is None
    check([each for each in rest if each], expected(reference, PROMPT), PROMPT[1:], num_top)


def test_of_a_prompt_of_one_token(llm: LLM) -> None:
    [result] = llm.generate([5], replace(PARAMS, prompt_logprobs=2))
    assert result.prompt_logprobs == (None,)


def test_each_request_of_a_batch_gets_what_it_asked_for(llm: LLM, reference: torch.nn.Module) -> None:
    wishes = [(None, None), (2, None), (None, 4), (0, 0), (20, 1)]
    prompts = [[20 + index, *PROMPT[index:]] for index in range(len(wishes))]
    params = [replace(PARAMS, logprobs=output, prompt_logprobs=prompt) for output, prompt in wishes]
    for prompt, (output_top, prompt_top), result in zip(prompts, wishes, llm.generate(prompts, params), strict=True):
        laws = expected(reference, [*prompt, *result.token_ids])
        if output_top is None:
            assert result.logprobs is None
        else:
            assert result.logprobs is not None
            check(result.logprobs, laws[len(prompt) - 1 :], result.token_ids, output_top)
        if prompt_top is None:
            assert result.prompt_logprobs is None
        else:
            assert result.prompt_logprobs is not None
            scored = [each for each in result.prompt_logprobs if each]
            check(scored, laws[: len(prompt) - 1], prompt[1:], prompt_top)


def test_options_do_not_change_them(llm: LLM) -> None:
    """They are the model's own law, before temperature, filters, penalties and bias."""
    [plain] = llm.generate(PROMPT, replace(PARAMS, logprobs=5, max_tokens=1))
    options = {"temperature": 0.0, "repetition_penalty": 1.7, "logit_bias": {7: 3.0}, "top_k": 2}
    [bent] = llm.generate(PROMPT, replace(PARAMS, logprobs=5, max_tokens=1, **options))  # type: ignore[arg-type]
    assert plain.logprobs is not None and bent.logprobs is not None
    assert plain.logprobs[0].top == bent.logprobs[0].top


def test_they_end_with_the_text(llm: LLM) -> None:
    [whole] = llm.generate(PROMPT, replace(PARAMS, logprobs=1))
    stop = next(text for text in (llm.tokenizer.decode([token]) for token in whole.token_ids[3:]) if text.isascii())
    [cut] = llm.generate(PROMPT, replace(PARAMS, logprobs=1, stop=(stop,)))
    assert cut.logprobs is not None and whole.logprobs is not None
    assert cut.logprobs == whole.logprobs[: len(cut.token_ids)]


def test_they_are_named_by_their_text(llm: LLM) -> None:
    [result] = llm.generate(PROMPT, replace(PARAMS, logprobs=3))
    assert result.logprobs is not None
    for position in result.logprobs:
        for entry in (position.chosen, *position.top):
            assert entry.token == llm.tokenizer.decode([entry.token_id], skip_special=False)
