"""Tiny random Llama checkpoints in the Hugging Face layout: real files for tests, made from a seed in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

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

MERGE_SOURCE = """
The switch is a small part of the machine, and the machine is the sum of its switches. When every switch is off the
machine still runs, slowly and in plain sight, and whoever reads its parts can follow a request from the door to the
answer. Each technique that makes it faster is one more switch: turn it on alone, measure what it buys, turn it off
again, and the answer must be the same. Numbers such as 1, 2, 3, 10 and 2048, names such as block_size or max_tokens,
and code such as def add(left, right): return left + right are cut into pieces as well as any other text would be.
Queues, blocks, drafts, kernels, pools and routers: every one of those words names something which somebody can change.
Schedulers choose rows; allocators choose blocks; attention reads keys and values; a sampler draws the following token.
"""


def make_tiny_model(directory: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random Llama with a byte-level tokenizer into `directory` and return it.

    `overrides` replace or add entries of config.json, such as `num_key_value_heads=1` or `tie_word_embeddings=True`.
    The same seed and overrides give the same files. Greedy text varies from token to token, so that a wrong logit
    shows. `vocab_size` must leave room for 256 bytes and the special tokens.
    """
    config = {**DEFAULTS, **overrides}
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
    save_file(_random_weights(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


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


def _random_weights(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, config["dtype"])
    weights: dict[str, torch.Tensor] = {}

    def draw(name: str, *shape: int, mean: float = 0.0, std: float) -> None:
        values = torch.empty(shape, dtype=torch.float64).normal_(mean, std, generator=generator)
        weights[name] = values.to(dtype)

    def draw_linear(path: str, rows: int, columns: int, has_bias: bool = False) -> None:
        draw(f"{path}.weight", rows, columns, std=2.0 * columns**-0.5)
        if has_bias:
            draw(f"{path}.bias", rows, std=0.2)

    vocab, hidden, inner = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    query_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]
    draw("model.embed_tokens.weight", vocab, hidden, std=0.5)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        attention_bias = config["attention_bias"]
        draw_linear(f"{prefix}.self_attn.q_proj", query_rows, hidden, attention_bias)
        draw_linear(f"{prefix}.self_attn.k_proj", kv_rows, hidden, attention_bias)
        draw_linear(f"{prefix}.self_attn.v_proj", kv_rows, hidden, attention_bias)
        draw_linear(f"{prefix}.self_attn.o_proj", hidden, query_rows, attention_bias)
        draw_linear(f"{prefix}.mlp.gate_proj", inner, hidden, config["mlp_bias"])
        draw_linear(f"{prefix}.mlp.up_proj", inner, hidden, config["mlp_bias"])
        draw_linear(f"{prefix}.mlp.down_proj", hidden, inner, config["mlp_bias"])
        draw(f"{prefix}.input_layernorm.weight", hidden, mean=1.0, std=0.1)
        draw(f"{prefix}.post_attention_layernorm.weight", hidden, mean=1.0, std=0.1)
    draw("model.norm.weight", hidden, mean=1.0, std=0.1)
    if not config["tie_word_embeddings"]:
        draw_linear("lm_head", vocab, hidden)
    return weights


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
