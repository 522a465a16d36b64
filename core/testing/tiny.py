"""Tiny random checkpoints in the Hugging Face layout: real files for tests, made from a seed in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from ..model.architectures import model_spec
from ..model.spec import LAYER_NORMS
from ..records import LinearSpec

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 (BOS) and 2 (EOS)."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

DEFAULTS: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 24},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "attention_bias": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 12,
        "sliding_window": 24,
        "attn_logit_softcapping": 8.0,
        "final_logit_softcapping": 12.0,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 12,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "rope_theta": 100000.0,
        "rope_local_base_freq": 10000.0,
    },
    "phi3": {"architectures": ["Phi3ForCausalLM"], "pad_token_id": 0},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"]},
    "granite": {
        "architectures": ["GraniteForCausalLM"],
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0], "pad_token_id": 0},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "mlp_only_layers": [0],
    },
}
"""What each family's config.json has beside `DEFAULTS`. The gemma ones alternate local and global layers."""

FUSED = ("phi3",)
"""Families whose checkpoints hold q, k and v in one tensor, and gate and up in another."""

MERGE_SOURCE = """
The switch is a small part of the machine, and the machine is the sum of its switches. When every switch is off the
machine still runs, slowly and in plain sight, and whoever reads its parts can follow a request from the door to the
answer. Each technique that makes it faster is one more switch: turn it on alone, measure what it buys, turn it off
again, and the answer must be the same. Numbers such as 1, 2, 3, 10 and 2048, names such as block_size or max_tokens,
and code such as def add(left, right): return left + right are cut into pieces as well as any other text would be.
Queues, blocks, drafts, kernels, pools and routers: every one of those words names something which somebody can change.
Schedulers choose rows; allocators choose blocks; attention reads keys and values; a sampler draws the following token.
"""


def make_tiny_model(directory: Path, *, family: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """Write a random model with a byte-level tokenizer into `directory` and return it.

    family: one of `FAMILIES`; "gemma3" has local and global layers. `overrides` replace or add entries of config.json,
    such as `num_key_value_heads=1` or `tie_word_embeddings=True`. The same arguments give the same files. Greedy text
    varies from token to token, so that a wrong logit shows. `vocab_size` must leave room for 256 bytes and the special
    tokens.
    """
    config = tiny_config(family, **overrides)
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", config)
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
    )
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": SPECIAL_TOKENS[0],
            "bos_token": SPECIAL_TOKENS[1],
            "eos_token": SPECIAL_TOKENS[2],
            "pad_token": SPECIAL_TOKENS[2],
            "model_max_length": config["max_position_embeddings"],
            "chat_template": CHAT_TEMPLATE,
        },
    )
    make_tiny_tokenizer(config["vocab_size"]).save(str(directory / "tokenizer.json"))
    save_file(
        _random_weights(config, seed, family in FUSED), directory / "model.safetensors", metadata={"format": "pt"}
    )
    return directory


def tiny_config(family: str = "llama", **overrides: Any) -> dict[str, Any]:
    """The config.json of a tiny model."""
    return {**DEFAULTS, "model_type": family, **FAMILIES[family], **overrides}


def make_tiny_tokenizer(vocab_size: int = 512) -> tokenizers.Tokenizer:
    """A byte-level BPE of the special tokens, all 256 bytes and merges up to `vocab_size`: any text round-trips."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([MERGE_SOURCE], trainer)
    return tokenizer


def _random_weights(config: Mapping[str, Any], seed: int, is_fused: bool) -> dict[str, torch.Tensor]:
    """Each part of each linear, and each norm, as the family's row in the architecture table names them."""
    spec = model_spec("tiny", config)
    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, config["dtype"])
    weights: dict[str, torch.Tensor] = {}

    def draw(name: str, *shape: int, mean: float = 0.0, std: float) -> None:
        values = torch.empty(shape, dtype=torch.float64).normal_(mean, std, generator=generator)
        weights[name] = values.to(dtype)

    def draw_linear(linear: LinearSpec) -> None:
        is_embedding = linear.kind == "embedding"
        std = 0.5 / spec.embedding_multiplier if is_embedding else 2.0 * linear.in_features**-0.5
        for part in linear.parts:
            draw(f"{part.name}.weight", part.num_rows, linear.in_features, std=std)
            if linear.has_bias:
                draw(f"{part.name}.bias", part.num_rows, std=0.2)
        if is_fused and len(linear.parts) > 1:
            weights[f"{linear.path}.weight"] = torch.cat([weights.pop(f"{part.name}.weight") for part in linear.parts])

    def draw_norm(role: str, layer: int = -1) -> None:
        if role in spec.names:
            name, size = spec.name_of(role, layer), spec.norm_size(role, layer)
            draw(f"{name}.weight", size, mean=1.0 - spec.norm_offset, std=0.1)

    linears = spec.linear_specs()
    for layer in range(-1, spec.num_layers):
        for linear in linears:
            if linear.layer == layer and linear.kind != "head":
                draw_linear(linear)
        for role in LAYER_NORMS if layer >= 0 else ():
            draw_norm(role, layer)
    draw_norm("final_norm")
    if not spec.tie_embeddings:
        draw_linear(linears[-1])
    return weights


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
