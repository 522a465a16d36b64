"""Every family of the architecture table against transformers, on a random checkpoint that transformers made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.model.families import ARCHITECTURES

from .reference import StaysDouble, all_logits, greedy, in_float64, make_reference, reference_logits, save

WINDOW = 24
LOCAL_AND_GLOBAL = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "factor": 4.0,
    "short_factor": [1.0 + 0.02 * index for index in range(9)],
    "long_factor": [1.0 + 0.4 * index for index in range(9)],
}


@dataclass(frozen=True)
class Family:
    """A model of a family with all that is peculiar to it."""

    config: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = ""


FAMILIES: dict[str, Family] = {
    "mistral": Family("MistralConfig", {"head_dim": 20, "sliding_window": WINDOW}),
    "qwen2": Family("Qwen2Config", {"hidden_size": 80, "use_sliding_window": True, **LOCAL_AND_GLOBAL}),
    "qwen3": Family(
        "Qwen3Config",
        {"head_dim": 24, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "gemma2": Family(
        "Gemma2Config",
        {
            "head_dim": 24,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 10,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        {
            "head_dim": 20,
            "query_pre_attn_scalar": 10,
            "final_logit_softcapping": 4.0,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0},
            },
            **LOCAL_AND_GLOBAL,
        },
        "Gemma3ForCausalLM",
    ),
    "phi3": Family(
        "Phi3Config",
        {
            "hidden_size": 96,
            "sliding_window": WINDOW,
            "original_max_position_embeddings": 256,
            "rope_parameters": LONGROPE,
        },
    ),
    "olmo2": Family("Olmo2Config", {"hidden_size": 80, "attention_bias": True}),
    "granite": Family(
        "GraniteConfig",
        {
            "attention_multiplier": 0.1,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 3.0,
            "mlp_bias": True,
        },
    ),
    "smollm3": Family(
        "SmolLM3Config",
        {
            "hidden_size": 80,
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "attention_bias": True,
        },
    ),
    "mixtral": Family(
        "MixtralConfig",
        {"head_dim": 20, "sliding_window": WINDOW, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": Family(
        "Qwen3MoeConfig",
        {
            "head_dim": 24,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "mlp_only_layers": [1],
            "attention_bias": True,
        },
    ),
}


@dataclass(frozen=True)
class Made:
    """One family's model in memory and on disk."""

    model: Any
    path: Path
    sequences: list[list[int]]
    """Of one token, within the window, and far beyond it."""


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Made]:
    family = FAMILIES[request.param]
    architecture = family.architecture or family.config.replace("Config", "ForCausalLM")
    model = make_reference(architecture, family.config, **family.overrides)
    path = save(model, tmp_path_factory.mktemp(request.param) / "model", tiny_model)
    generator = torch.Generator().manual_seed(3)
    lengths = (1, WINDOW - 3, 101, 180)
    sequences = [torch.randint(3, 512, (length,), generator=generator).tolist() for length in lengths]
    yield Made(model, path, sequences)


def test_logits_are_those_of_transformers(made: Made) -> None:
    with LLM(str(made.path), dtype="float32", plugins={}) as llm:
        for ours, sequence in zip(all_logits(llm, made.sequences), made.sequences, strict=True):
            theirs = reference_logits(made.model, sequence)
            assert theirs.std() > 0.1
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("plugins", [{}, None], ids=["all_off", "recommended"])
def test_greedy_tokens_are_those_of_transformers_far_beyond_the_window(
    made: Made, plugins: dict[str, Any] | None
) -> None:
    params = SamplingParams(max_tokens=WINDOW + 16, temperature=0.0, ignore_eos=True)
    prompts = made.sequences[1:3]
    with LLM(str(made.path), dtype="float32", plugins=plugins, max_step_tokens=128) as llm:
        results = llm.generate(prompts, params)
        assert llm.audit() == []
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == greedy(made.model, prompt, WINDOW + 16)


def test_sharded_checkpoint_gives_the_same_logits(made: Made, tmp_path: Path, tiny_model: Path) -> None:
    sharded = save(made.model, tmp_path / "sharded", tiny_model, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    sequence = made.sequences[:2]
    with LLM(str(made.path), dtype="float32", plugins={}) as llm:
        expected = all_logits(llm, sequence)
    with LLM(str(sharded), dtype="float32", plugins={}) as llm:
        for ours, one in zip(all_logits(llm, sequence), expected, strict=True):
            assert torch.equal(ours, one)


def test_every_family_is_tested() -> None:
    tested = {family.architecture or family.config.replace("Config", "ForCausalLM") for family in FAMILIES.values()}
    assert tested == {*ARCHITECTURES} - {"LlamaForCausalLM", "Gemma3ForConditionalGeneration"}


def test_logits_in_float64_are_those_of_transformers_to_nine_digits(made: Made) -> None:
    with LLM(str(made.path), dtype="float64", plugins={}) as llm:
        ours = all_logits(llm, made.sequences)
    model = in_float64(made.model)
    with StaysDouble():
        theirs = [reference_logits(model, sequence) for sequence in made.sequences]
    made.model.float()
    for one, other in zip(ours, theirs, strict=True):
        assert other.dtype is torch.float64
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


def test_bfloat16_errs_no_more_than_transformers(made: Made, tmp_path: Path, tiny_model: Path) -> None:
    """Against the same rounded weights in float64: at most twice the error that transformers makes in bfloat16."""
    model = made.model.bfloat16()
    path = save(model, tmp_path / "rounded", tiny_model)
    sequence = made.sequences[1]
    theirs = reference_logits(model, sequence).double()
    exact = reference_logits(model.double(), sequence)
    with LLM(str(path), dtype="bfloat16", plugins={}) as llm:
        ours = all_logits(llm, [sequence])[0].double()
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm()
