"""The decoder against transformers, over the shapes that Llama checkpoints come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear import LLM
from switchgear.core.errors import ModelError
from switchgear.core.model.architectures import model_spec
from switchgear.core.model.families import ARCHITECTURES

from .reference import all_logits, make_reference, reference_logits, save

SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {},
    "gqa group of three": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
    "mqa": {"num_key_value_heads": 1},
    "mha": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "attention bias": {"attention_bias": True},
    "mlp bias": {"mlp_bias": True},
    "head size apart from hidden size": {"head_dim": 24},
    "gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "rope base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "rope llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "rope yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def reference(**overrides: Any) -> Any:
    return make_reference("LlamaForCausalLM", "LlamaConfig", **overrides)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(shape: str, tmp_path: Path, tiny_model: Path) -> None:
    model = reference(**SHAPES[shape])
    generator = torch.Generator().manual_seed(3)
    sequences = [torch.randint(512, (length,), generator=generator).tolist() for length in (1, 37, 100, 180)]
    with LLM(str(save(model, tmp_path / "m", tiny_model)), dtype="float32", plugins={}, kv_bytes=1 << 26) as llm:
        for ours, sequence in zip(all_logits(llm, sequences), sequences, strict=True):
            torch.testing.assert_close(ours, reference_logits(model, sequence), atol=1e-4, rtol=0)


def test_sharded_checkpoint_gives_the_same_logits(tmp_path: Path, tiny_model: Path) -> None:
    model = reference(attention_bias=True)
    whole = save(model, tmp_path / "whole", tiny_model)
    sharded = save(model, tmp_path / "sharded", tiny_model, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    prompt = [[5, 6, 7, 8, 9]]
    with (
        LLM(str(whole), dtype="float32", plugins={}) as one,
        LLM(str(sharded), dtype="float32", plugins={}) as many,
    ):
        assert torch.equal(all_logits(one, prompt)[0], all_logits(many, prompt)[0])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_precisions_err_no_more_than_transformers(dtype: str, tmp_path: Path, tiny_model: Path) -> None:
    """Against the same rounded weights in float64: at most twice the error that transformers makes in this dtype."""
    model = reference().to(getattr(torch, dtype))
    path = save(model, tmp_path / "m", tiny_model)
    sequence = list(range(40, 90))
    theirs = reference_logits(model, sequence).double()
    exact = reference_logits(model.double(), sequence)
    with LLM(str(path), dtype=dtype, plugins={}) as llm:
        ours = all_logits(llm, [sequence])[0].double()
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-4


def test_an_unknown_architecture_is_refused_with_the_list() -> None:
    with pytest.raises(ModelError, match=r"'GPT2LMHeadModel'.*LlamaForCausalLM"):
        model_spec("gpt2", {"architectures": ["GPT2LMHeadModel"]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_attention_heads": 5, "num_key_value_heads": 2}, "5 query heads cannot share 2 KV heads"),
        ({"hidden_act": "swiglu"}, "activation 'swiglu' is unknown"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic' is unknown"),
        ({"rope_scaling": {"type": "linear"}}, "lacks 'factor'"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    }
    assert model_spec("m", config).num_layers == 2
    with pytest.raises(ModelError, match=said):
        model_spec("m", {**config, **change})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ModelError, match="lacks 'hidden_size'"):
        model_spec("m", {"architectures": [next(iter(ARCHITECTURES))]})
