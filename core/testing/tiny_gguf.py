"""The tiny model of `tiny.py` as a GGUF file, laid out the way llama.cpp's converter lays out a Llama."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from .tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, make_tiny_model, make_tiny_tokenizer

NAMES: Mapping[str, str] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_tiny_gguf(path: Path, *, quantization: str = "Q8_0", seed: int = 0, **overrides: Any) -> Path:
    """Write `make_tiny_model(seed, **overrides)` as one GGUF file and return its path.

    quantization: of all matrices, a name of the GGUF format such as "F32", "F16", "Q8_0" or "Q4_1".
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = make_tiny_model(Path(folder), seed=seed, **overrides)
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        weights = load_file(directory / "model.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    _add_config(writer, config)
    _add_tokenizer(writer, config["vocab_size"])
    for name, tensor in weights.items():
        stored = gguf.GGMLQuantizationType[quantization if tensor.dim() == 2 else "F32"]
        data = gguf.quantize(_permuted(name, tensor, config), stored)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    scaling = config.get("rope_scaling")
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    tokenizer = make_tiny_tokenizer(vocab_size)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _gguf_name(name: str) -> str:
    path, _, suffix = name.rpartition(".")
    if not path.startswith("model.layers."):
        return f"{NAMES[path]}.{suffix}"
    layer, _, part = path.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.{suffix}"


def _permuted(name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Query and key rows with the two halves of each rotary pair side by side."""
    rows = tensor.to(torch.float32).numpy()
    if ".q_proj." in name:
        num_heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        num_heads = config["num_key_value_heads"]
    else:
        return rows
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
