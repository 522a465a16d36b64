"""A Hugging Face directory as one GGUF file, laid out the way llama.cpp's converter lays it out.

What `core/model/gguf_*.py` undoes. The names of tensors are the `gguf` package's own, so that a mistake on our side
shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

ARCHITECTURE_OF: Mapping[str, gguf.MODEL_ARCH] = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "Gemma2ForCausalLM": gguf.MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
}
GEMMA = (gguf.MODEL_ARCH.GEMMA2, gguf.MODEL_ARCH.GEMMA3)


def write_gguf(directory: Path, path: Path, *, quantization: str = "F32", pre: str = "smollm") -> Path:
    """Write the model in `directory`, whose tokenizer must be a byte-level one, and return `path`.

    quantization: of all matrices, a name of the GGUF format such as "F32", "F16", "Q8_0" or "Q4_1".
    pre: what llama.cpp calls the tokenizer's way of splitting text.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    architecture = ARCHITECTURE_OF[config["architectures"][0]]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_config(writer, config, architecture)
    _add_tokenizer(writer, directory, config["vocab_size"], pre)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, array in _stacked(load_file(directory / "model.safetensors")).items():
        stored = gguf.GGMLQuantizationType[quantization if array.ndim > 1 else "F32"]
        data = gguf.quantize(_as_stored(name, array, config, architecture), stored)
        gguf_name = names.get_name(name, (".weight", ".bias"))
        assert gguf_name is not None, f"{name} has no place in a GGUF"
        writer.add_tensor(gguf_name, data, raw_dtype=stored)
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config))
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything that was added and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any], architecture: gguf.MODEL_ARCH) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_rope(writer, config)
    num_experts = config.get("num_local_experts") or config.get("num_experts")
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture in GEMMA:
        writer.add_sliding_window(config["sliding_window"])
    if "sliding_window_pattern" in config:
        writer.add_sliding_window_pattern(config["sliding_window_pattern"])
    if architecture == gguf.MODEL_ARCH.GEMMA2:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _add_rope(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_freq_base(config["rope_theta"])
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def _add_tokenizer(writer: gguf.GGUFWriter, directory: Path, vocab_size: int, pre: str) -> None:
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    special = frozenset(token["content"] for token in content["added_tokens"] if token["special"])
    tokens = {id: token for token, id in content["model"]["vocab"].items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([tokens.get(id, f"[PAD{id}]") for id in range(vocab_size)])
    writer.add_token_types([_kind(tokens.get(id), special) for id in range(vocab_size)])
    writer.add_token_merges([f"{left} {right}" for left, right in content["model"]["merges"]])
    tokenizer_config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    for name in ("unk", "bos", "eos", "pad"):
        token = tokenizer_config[f"{name}_token"]
        getattr(writer, f"add_{name}_token_id")(content["model"]["vocab"][token])
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer_config["chat_template"])


def _kind(token: str | None, special: frozenset[str]) -> gguf.TokenType:
    if token is None:
        return gguf.TokenType.UNUSED
    return gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL


def _stacked(weights: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[np.float32]]:
    """The matrices of all experts of a layer in one, without the expert's number in its name."""
    arrays: dict[str, npt.NDArray[np.float32]] = {}
    experts: dict[str, dict[int, npt.NDArray[np.float32]]] = {}
    for name, tensor in weights.items():
        array = tensor.to(torch.float32).numpy()
        before, separator, after = name.partition(".experts.")
        if separator:
            expert, _, part = after.partition(".")
            experts.setdefault(f"{before}.experts.{part}", {})[int(expert)] = array
        else:
            arrays[name] = array
    return arrays | {name: np.stack([parts[expert] for expert in sorted(parts)]) for name, parts in experts.items()}


def _as_stored(
    name: str, array: npt.NDArray[np.float32], config: Mapping[str, Any], architecture: gguf.MODEL_ARCH
) -> npt.NDArray[np.float32]:
    """Gemma's norms with the one that it adds to them; Llama's query and key rows with rotary pairs side by side."""
    if architecture in GEMMA and name.endswith("norm.weight"):
        return array + np.float32(1.0)
    if architecture != gguf.MODEL_ARCH.LLAMA or not (".q_proj." in name or ".k_proj." in name):
        return array
    num_heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    halves = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def _llama3_divisors(config: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """By how much Llama 3 divides the frequency of each rotary pair."""
    scaling = config["rope_scaling"]
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for index in range(0, config["head_dim"], 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (index / config["head_dim"])
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(scaling["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(divisors, np.float32)
