import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from switchgear.core.errors import ModelError
from switchgear.core.model.gguf_convert import convert_gguf
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.core.testing.tiny_gguf import make_tiny_gguf


def _convert(tmp_path: Path, dtype: str = "float32", **options: Any) -> Path:
    directory = tmp_path / "converted"
    directory.mkdir()
    convert_gguf(make_tiny_gguf(tmp_path / "tiny.gguf", **options), directory, dtype, progress=False)
    return directory


def _fused(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with q, k, v and gate, up joined, as the decoder wants them."""
    joined_paths = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    fused = {name: tensor for name, tensor in weights.items() if name.split(".")[-2] not in joined_paths}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        for joined, parts in (
            ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            for suffix in ("weight", "bias"):
                if f"{prefix}.{parts[0]}.{suffix}" in weights:
                    tensors = [weights[f"{prefix}.{part}.{suffix}"] for part in parts]
                    fused[f"{prefix}.{joined}.{suffix}"] = torch.cat(tensors)
    return fused


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 1}, {"attention_bias": True, "mlp_bias": True}],
    ids=["untied", "tied", "one_kv_head", "biases"],
)
def test_conversion_gives_back_the_exact_weights(tmp_path: Path, dtype: str, overrides: dict[str, Any]) -> None:
    directory = _convert(tmp_path, dtype, quantization="F32", **overrides)
    original = load_file(make_tiny_model(tmp_path / "model", **overrides) / "model.safetensors")
    expected = {name: tensor.to(getattr(torch, dtype)) for name, tensor in _fused(original).items()}
    converted = load_file(directory / "model.safetensors")
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in expected.items())


def test_config_says_what_the_original_says(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {
        "num_key_value_heads": 1,
        "rope_theta": 50000.0,
        "attention_bias": True,
        "tie_word_embeddings": True,
    }
    directory = _convert(tmp_path, "bfloat16", **overrides)
    original = json.loads((make_tiny_model(tmp_path / "model", **overrides) / "config.json").read_text())
    config = json.loads((directory / "config.json").read_text())
    assert config.pop("rope_scaling") is None
    assert config == {**original, "dtype": "bfloat16"}
    generation_config = json.loads((directory / "generation_config.json").read_text())
    assert generation_config == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_rope_scaling_is_kept(tmp_path: Path) -> None:
    directory = _convert(tmp_path, rope_scaling={"rope_type": "linear", "factor": 4.0})
    config = json.loads((directory / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_unknown_dtype_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dtype 'int8'; choose one of float64, float32, float16, bfloat16"):
        _convert(tmp_path, "int8")


def test_bar_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    convert_gguf(make_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path, "float32", progress=True)
    output, errors = capfd.readouterr()
    assert output == "" and "converting tiny.gguf to float32: 100%" in errors
