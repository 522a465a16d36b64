"""The real model: what it answers, against transformers on the same dequantised weights, and its perplexity."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.testing.equivalence import compare_greedy

pytestmark = pytest.mark.slow

NUM_PROMPTS = 20
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", dtype="float32", plugins={}, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(llm: LLM) -> Any:
    """The same file through transformers' own GGUF reader."""
    from transformers import AutoModelForCausalLM

    path = llm.model_path
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def conversations(shared_data: Path) -> list[list[dict[str, str]]]:
    lines = (shared_data / "prompts" / "mt_bench_questions.jsonl").read_text().split("\n")[:NUM_PROMPTS]
    return [[{"role": "user", "content": json.loads(line)["turns"][0]}] for line in lines]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_greedy_tokens_equal_transformers(
    batch_size: int, llm: LLM, oracle: Any, conversations: list[list[dict[str, str]]]
) -> None:
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    num_undecided = 0
    for start in range(0, NUM_PROMPTS, batch_size):
        results = llm.chat(conversations[start : start + batch_size], params)
        assert len({len(result.prompt_token_ids) for result in results}) > 1 or batch_size == 1, "ragged on purpose"
        for result in results:
            with torch.no_grad():
                logits = oracle(torch.tensor([result.prompt_token_ids + result.token_ids])).logits[0]
            compared = compare_greedy(logits[len(result.prompt_token_ids) - 1 : -1], result.token_ids)
            assert not compared.problem, f"{result.text!r}: {compared.problem}"
            num_undecided += compared.num_undecided
    assert num_undecided <= 2, "ties within 1e-4 are rare, so many of them are a fault"


def test_it_knows_the_capital_of_france(llm: LLM) -> None:
    [result] = llm.chat([{"role": "user", "content": "What is the capital of France?"}], SamplingParams(temperature=0))
    assert "Paris" in result.text
    assert result.finish_reason == "stop"


def test_perplexity_of_wikitext(llm: LLM, shared_data: Path) -> None:
    """23.09 +- 0.05 over the first 4,095 predicted tokens at context 1,024, logits reduced by chunks."""
    text = (shared_data / "text" / "wikitext2_raw_test.txt").read_text()
    token_ids = llm.tokenizer.encode(text[:40_000])[:4096]
    windows = [token_ids[start : start + 1025] for start in range(0, 4096, 1024)]
    results = llm.generate(windows, SamplingParams(max_tokens=1, prompt_logprobs=0))
    logprobs = [entry.chosen.logprob for result in results for entry in result.prompt_logprobs or () if entry]
    assert len(logprobs) == 4095
    assert math.exp(-sum(logprobs) / len(logprobs)) == pytest.approx(23.09, abs=0.05)
