"""Vectors of prompts: equal to transformers' hidden states, whatever else the engine does meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.errors import RequestError
from switchgear.core.gateway.embedding import normalized
from transformers import AutoModelForCausalLM

PROMPTS = [[7, 8, 9, 10, 11, 12, 13], [5], list(range(20, 60))]
PLUGINS: dict[str, dict[str, Any]] = {
    "everything off": {},
    "chunks": {
        "continuous_batching": {},
        "paged_kv": {"block_size": 4},
        "prefix_cache": {},
        "chunked_prefill": {"max_num_batched_tokens": 8},
    },
}


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[np.ndarray]:
    """`[P, E]` of each prompt, after the final norm."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.inference_mode():
        return [
            model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0].numpy() for prompt in PROMPTS
        ]


@pytest.mark.parametrize("plugins", PLUGINS.values(), ids=PLUGINS)
def test_equal_to_the_reference(tiny_model: Path, expected: list[np.ndarray], plugins: dict[str, Any]) -> None:
    with LLM(str(tiny_model), dtype="float32", plugins=plugins, max_num_seqs=8) as llm:
        for _ in range(2):  # the second time on a warm prefix cache, where there is one
            mean = llm.embed(PROMPTS, normalize=False)
            last = llm.embed(PROMPTS, pooling="last", normalize=False)
            for index, hidden in enumerate(expected):
                np.testing.assert_allclose(mean[index], hidden.mean(0), atol=1e-4)
                np.testing.assert_allclose(last[index], hidden[-1], atol=1e-4)
        assert llm.audit() == []


def test_beside_texts_and_after_preemption(tiny_model: Path, expected: list[np.ndarray]) -> None:
    """A pool so small that rows are preempted in the middle of their prompts."""
    plugins: dict[str, dict[str, Any]] = {
        "continuous_batching": {},
        "paged_kv": {"block_size": 4},
        "chunked_prefill": {"max_num_batched_tokens": 8},
    }
    with LLM(
        str(tiny_model), dtype="float32", plugins=plugins, max_num_seqs=8, max_model_len=64, kv_bytes=40_000
    ) as llm:
        params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        streams = [llm.stream([3 + index, 4, 5], params) for index in range(6)]
        texts = [next(stream) for stream in streams]
        vectors = llm.embed(PROMPTS, normalize=False)
        for stream in streams:
            list(stream)
        assert texts and llm.audit() == []
    for vector, hidden in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(vector, hidden.mean(0), atol=1e-4)


def test_normalised_by_default(tiny_model: Path) -> None:
    with LLM(str(tiny_model), dtype="float32", plugins={}) as llm:
        [vector] = llm.embed("a text")
        [raw] = llm.embed("a text", normalize=False)
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    np.testing.assert_allclose(vector, raw / np.linalg.norm(raw), atol=1e-6)


def test_a_bad_prompt_is_refused_before_anything_runs(tiny_model: Path) -> None:
    with LLM(str(tiny_model), dtype="float32", plugins={}) as llm:
        with pytest.raises(RequestError, match="empty"):
            llm.embed([[1, 2], []])
        assert not llm._engine.has_work


def test_nothing_stays_nothing() -> None:
    assert normalized(np.zeros(3, dtype=np.float32)).tolist() == [0, 0, 0]
