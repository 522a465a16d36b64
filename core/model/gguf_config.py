"""config.json and generation_config.json from a GGUF's metadata."""

from __future__ import annotations

from typing import Any

from .gguf_file import GGUFFile
from .gguf_layout import GGUFLayout


def model_config(file: GGUFFile, layout: GGUFLayout, dtype: str) -> dict[str, Any]:
    """What transformers calls the model's config."""
    arch = file.architecture
    num_heads = file.require(f"{arch}.attention.head_count")
    hidden_size = file.require(f"{arch}.embedding_length")
    return {
        "architectures": [layout.class_name],
        "model_type": layout.model_type,
        "dtype": dtype,
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden_size,
        "intermediate_size": file.require(f"{arch}.feed_forward_length"),
        "num_hidden_layers": file.require(f"{arch}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": file.get(f"{arch}.attention.head_count_kv", num_heads),
        "head_dim": file.get(f"{arch}.attention.key_length", hidden_size // num_heads),
        "max_position_embeddings": file.require(f"{arch}.context_length"),
        "rms_norm_eps": file.require(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.get(f"{arch}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, arch),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensor_names(),
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensor_names(),
        "tie_word_embeddings": "output.weight" not in file.tensor_names(),
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(file),
    }


def generation_config(file: GGUFFile) -> dict[str, Any]:
    return {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(file),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }


def _eos_token_ids(file: GGUFFile) -> int | list[int] | None:
    """The ends of a text, of a turn and of a message: a model may stop at any of them."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    ids = list(dict.fromkeys(id for key in keys if (id := file.get(key)) is not None))
    return ids[0] if len(ids) == 1 else ids or None


def _rope_scaling(file: GGUFFile, arch: str) -> dict[str, Any] | None:
    kind = file.get(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {
        "rope_type": kind,
        "factor": file.require(f"{arch}.rope.scaling.factor"),
        "original_max_position_embeddings": file.get(f"{arch}.rope.scaling.original_context_length"),
    }
    return {key: value for key, value in scaling.items() if value is not None}
