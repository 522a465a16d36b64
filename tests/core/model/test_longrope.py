"""LongRoPE: one list of factors for an engine, chosen by its longest sequence; transformers chooses by the sequence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear import LLM, SamplingParams

from .reference import all_logits, greedy, make_reference, reference_logits, save

ORIGINAL = 32
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0 + 0.1 * index for index in range(6)],
    "long_factor": [1.5 + 0.7 * index for index in range(6)],
}


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[Any, str]]:
    model = make_reference(
        "Phi3ForCausalLM",
        "Phi3Config",
        hidden_size=96,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters=ROPE,
    )
    yield model, str(save(model, tmp_path_factory.mktemp("phi3") / "model", tiny_model))


def sequence(length: int) -> list[int]:
    return torch.randint(3, 512, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.mark.parametrize(
    ("max_model_len", "lengths"), [(ORIGINAL, (2, 20, ORIGINAL)), (None, (ORIGINAL + 1, 150))], ids=["short", "long"]
)
def test_logits_are_those_of_transformers_in_the_same_regime(
    phi3: tuple[Any, str], max_model_len: int | None, lengths: tuple[int, ...]
) -> None:
    model, path = phi3
    sequences = [sequence(length) for length in lengths]
    with LLM(path, dtype="float32", plugins={}, max_model_len=max_model_len) as llm:
        for ours, tokens in zip(all_logits(llm, sequences), sequences, strict=True):
            torch.testing.assert_close(ours, reference_logits(model, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("plugins", [{}, None], ids=["all_off", "recommended"])
def test_greedy_tokens_of_a_long_context(phi3: tuple[Any, str], plugins: dict[str, Any] | None) -> None:
    model, path = phi3
    prompt = sequence(ORIGINAL + 20)
    with LLM(path, dtype="float32", plugins=plugins) as llm:
        (result,) = llm.generate([prompt], SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True))
    assert list(result.token_ids) == greedy(model, prompt, 40)


def test_the_choice_is_the_engines_not_the_sequences(phi3: tuple[Any, str]) -> None:
    """A short prompt is computed with the long factors where the engine serves long ones, so that it can grow."""
    model, path = phi3
    tokens = sequence(20)
    with LLM(path, dtype="float32", plugins={}) as llm:
        (alone,) = all_logits(llm, [tokens])
        (longer,) = all_logits(llm, [tokens + sequence(100)])
    torch.testing.assert_close(alone, longer[:20], atol=1e-4, rtol=0)
    assert not torch.allclose(alone, reference_logits(model, tokens), atol=0.01)
