"""Each family: a tiny checkpoint written as a GGUF the way llama.cpp does it, converted, compared with the original."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from safetensors.torch import load_file
from switchgear import LLM, SamplingParams
from switchgear.core.model.architectures import model_spec
from switchgear.core.model.gguf_convert import convert_gguf
from switchgear.core.testing.gguf_writer import write_gguf
from switchgear.core.testing.tiny import make_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
GEMMA: Mapping[str, Any] = {"query_pre_attn_scalar": 16, "tie_word_embeddings": True}
# 128 and 768: what transformers' own reader takes for granted, since it does not look at these keys of a GGUF.
CASES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"family": "llama"},
    "llama_with_biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama3": {"family": "llama", "rope_scaling": LLAMA3, "rope_theta": 500000.0, "tie_word_embeddings": True},
    "mixtral": {"family": "mixtral"},
    "qwen2": {"family": "qwen2", "rope_scaling": YARN},
    "qwen3": {"family": "qwen3", "head_dim": 128},
    "qwen3_moe": {"family": "qwen3_moe", "mlp_only_layers": [], "norm_topk_prob": True, "moe_intermediate_size": 768},
    "gemma2": {"family": "gemma2", **GEMMA},
    "gemma3": {"family": "gemma3", **GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
}
READ_BY_TRANSFORMERS = [case for case in CASES if case not in ("llama_with_biases", "mixtral")]
PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def _make(tmp_path: Path, case: str, quantization: str) -> tuple[Path, Path, Path]:
    """The original directory, the GGUF and the converted directory."""
    original = make_tiny_model(tmp_path / "original", **CASES[case])
    file = write_gguf(original, tmp_path / "tiny.gguf", quantization=quantization)
    converted = tmp_path / "converted"
    converted.mkdir()
    convert_gguf(file, converted, "float32", progress=False)
    return original, file, converted


def _split(converted: Path, model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """The converted weights under the names that transformers has them in memory."""
    wanted, split = model.state_dict(), {}
    for name, tensor in load_file(converted / "model.safetensors").items():
        path, _, suffix = name.rpartition(".")
        parts = PARTS.get(path.rpartition(".")[2])
        if parts is None:
            split[name] = tensor
            continue
        names = [f"{path.rpartition('.')[0]}.{part}.{suffix}" for part in parts]
        split |= dict(zip(names, tensor.split([wanted[name].shape[0] for name in names]), strict=True))
    if model.config.tie_word_embeddings:
        split["lm_head.weight"] = split["model.embed_tokens.weight"]
    return split


def _from_config(directory: Path) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return cast(transformers.PreTrainedModel, model.eval())


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_originals(tmp_path: Path, case: str) -> None:
    original, _, converted = _make(tmp_path, case, "F32")
    expected_model = transformers.AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32).eval()
    model = _from_config(converted)
    weights = _split(converted, model)
    for name, tensor in expected_model.state_dict().items():
        tolerance = 1e-6 if case.startswith("gemma") and name.endswith("norm.weight") else 0.0
        assert torch.allclose(weights[name], tensor, rtol=0.0, atol=tolerance), name
    model.load_state_dict(weights)
    ids = torch.randint(0, 512, (2, 160), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits, expected = model(ids).logits, expected_model(ids).logits
    assert (logits - expected).abs().max() < 1e-4
    assert expected.abs().max() > 1.0


@pytest.mark.parametrize("case", CASES)
def test_our_decoder_gets_the_originals_shape(tmp_path: Path, case: str) -> None:
    original, _, converted = _make(tmp_path, case, "F32")
    configs = [json.loads((directory / "config.json").read_text()) for directory in (original, converted)]
    expected, spec = (model_spec("tiny", config) for config in configs)
    assert spec == expected


@pytest.mark.parametrize("case", READ_BY_TRANSFORMERS)
def test_weights_equal_those_that_transformers_reads(tmp_path: Path, case: str) -> None:
    _, file, converted = _make(tmp_path, case, "Q8_0")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    weights = _split(converted, theirs)
    expected = theirs.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("case", CASES)
def test_engine_continues_both_alike(tmp_path: Path, case: str) -> None:
    original, file, _ = _make(tmp_path, case, "F32")
    prompt = torch.randint(3, 512, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    continued = []
    for name in (original, file):
        with LLM(str(name), dtype="float32", plugins={}, cache=tmp_path / "cache") as llm:
            (result,) = llm.generate([prompt], params)
            continued.append(result.choices[0].token_ids)
    assert continued[0] == continued[1] and len(set(continued[0])) > 2
