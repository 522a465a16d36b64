"""config.json and generation_config.json from a GGUF's metadata, in the words that transformers uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .gguf_file import GGUFFile
from .gguf_layout import GGUFLayout, num_experts
from .gguf_rope import rope_keys

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
"""What ends a turn in files that have no key for it; looked for in their chat template."""

GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""The one size of a family that scales queries by hidden size / heads instead of the head size; no key says so."""


def model_config(file: GGUFFile, layout: GGUFLayout, dtype: str) -> dict[str, Any]:
    """What transformers calls the model's config."""
    arch = file.architecture
    num_heads = file.require(f"{arch}.attention.head_count")
    hidden_size = file.require(f"{arch}.embedding_length")
    common = {
        "architectures": [layout.class_name],
        "model_type": layout.model_type,
        "dtype": dtype,
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden_size,
        "num_hidden_layers": file.require(f"{arch}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": file.get(f"{arch}.attention.head_count_kv", num_heads),
        "head_dim": file.get(f"{arch}.attention.key_length", hidden_size // num_heads),
        "max_position_embeddings": file.require(f"{arch}.context_length"),
        "rms_norm_eps": file.require(f"{arch}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensor_names(),
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(file),
    }
    return common | rope_keys(file, common["head_dim"]) | FAMILY_KEYS[layout.model_type](file)


def generation_config(file: GGUFFile) -> dict[str, Any]:
    return {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(file),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }


def _eos_token_ids(file: GGUFFile) -> int | list[int] | None:
    """The ends of a text, of a turn and of a message: a model may stop at any of them."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    ids = [id for key in keys if (id := file.get(key)) is not None]
    tokens, template = file.require("tokenizer.ggml.tokens"), file.get("tokenizer.chat_template", "")
    ids += [tokens.index(token) for token in TURN_ENDS if token in template and token in tokens]
    ids = list(dict.fromkeys(ids))
    return ids[0] if len(ids) == 1 else ids or None


def _llama(file: GGUFFile) -> dict[str, Any]:
    return _dense(file) | {
        "attention_bias": "blk.0.attn_q.bias" in file.tensor_names(),
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensor_names(),
    }


def _mixtral(file: GGUFFile) -> dict[str, Any]:
    return _dense(file) | {
        "num_local_experts": num_experts(file),
        "num_experts_per_tok": file.require("llama.expert_used_count"),
        "sliding_window": None,
    }


def _qwen2(file: GGUFFile) -> dict[str, Any]:
    return _dense(file) | {"use_sliding_window": False}


def _qwen3(file: GGUFFile) -> dict[str, Any]:
    return _qwen2(file) | {"attention_bias": "blk.0.attn_q.bias" in file.tensor_names()}


def _qwen3_moe(file: GGUFFile) -> dict[str, Any]:
    expert_size = file.require("qwen3moe.expert_feed_forward_length")
    return {
        "hidden_act": "silu",
        "intermediate_size": file.get("qwen3moe.feed_forward_length", expert_size),
        "moe_intermediate_size": expert_size,
        "num_experts": num_experts(file),
        "num_experts_per_tok": file.require("qwen3moe.expert_used_count"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": "blk.0.attn_q.bias" in file.tensor_names(),
        "use_sliding_window": False,
    }


def _gemma2(file: GGUFFile) -> dict[str, Any]:
    return _gemma(file, window=file.get("gemma2.attention.sliding_window", 4096), period=2) | {
        "attn_logit_softcapping": file.get("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.get("gemma2.final_logit_softcapping", 30.0),
    }


def _gemma3(file: GGUFFile) -> dict[str, Any]:
    return _gemma(file, window=file.get("gemma3.attention.sliding_window"), period=6) | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": file.get("gemma3.final_logit_softcapping"),
        "rope_local_base_freq": file.get("gemma3.rope.freq_base_swa", 10000.0),
    }


def _dense(file: GGUFFile) -> dict[str, Any]:
    return {"hidden_act": "silu", "intermediate_size": file.require(f"{file.architecture}.feed_forward_length")}


def _gemma(file: GGUFFile, window: int | None, period: int) -> dict[str, Any]:
    arch = file.architecture
    num_layers, num_heads = file.require(f"{arch}.block_count"), file.require(f"{arch}.attention.head_count")
    hidden_size = file.require(f"{arch}.embedding_length")
    scale_size = file.require(f"{arch}.attention.key_length")
    if num_layers == GEMMA_27B_LAYERS[arch]:
        scale_size = hidden_size // num_heads
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "intermediate_size": file.require(f"{arch}.feed_forward_length"),
        "attention_bias": False,
        "query_pre_attn_scalar": scale_size,
        "sliding_window": window,
        "layer_types": _layer_types(file, num_layers, window, period),
    }


def _layer_types(file: GGUFFile, num_layers: int, window: int | None, period: int) -> list[str]:
    """The last layer of each period sees everything. A file may give another period, or a flag for each layer."""
    pattern = file.get(f"{file.architecture}.attention.sliding_window_pattern", period)
    if window is None:
        is_local = [False] * num_layers
    elif isinstance(pattern, list):
        is_local = [bool(flag) for flag in pattern]
    else:
        is_local = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    return ["sliding_attention" if local else "full_attention" for local in is_local]


FAMILY_KEYS: Mapping[str, Callable[[GGUFFile], dict[str, Any]]] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
}
"""What only one family has, by `model_type`."""
