"""Llama-3.1-8B in shape, with weights that are drawn on the device, in an engine of the plugins for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from switchgear.core.config import build_config
from switchgear.core.defaults import make_registry
from switchgear.core.engine.assemble import Assembled, assemble
from switchgear.core.model.architectures import model_spec
from switchgear.core.model.spec import ModelSpec
from switchgear.core.records import LinearSpec
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.cuda_graphs import CudaGraphs
from switchgear.plugins.flash_attention import FlashAttention
from switchgear.plugins.paged_kv import PagedKV
from switchgear.plugins.triton_ops import TritonOps

from ..plugins.recorded import GraphsOnCPU
from .hardware import Hardware

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
SMALL: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
BLOCK_SIZE = 16


class RandomWeights:
    """Implements `TensorReader`: each tensor is drawn when it is read, and stays on the device."""

    def __init__(self, spec: ModelSpec, hardware: Hardware) -> None:
        self.spec = spec
        self.hardware = hardware
        self.generator = torch.Generator(hardware.type).manual_seed(0)

    def names(self) -> frozenset[str]:
        return frozenset()

    def read(self, name: str) -> torch.Tensor:
        """Norms, all of them of the hidden size in this family."""
        return torch.ones(self.spec.hidden_size, device=self.hardware.type, dtype=self.hardware.dtype)

    def fused(self, spec: LinearSpec, suffix: str, dtype: torch.dtype) -> torch.Tensor:
        weight = torch.empty(spec.out_features, spec.in_features, device=self.hardware.type, dtype=dtype)
        return weight.normal_(std=spec.in_features**-0.5, generator=self.generator)


def llama_spec(hardware: Hardware) -> ModelSpec:
    return model_spec("random-llama", {**LLAMA, **(SMALL if hardware.is_small else {})})


def assembled(
    hardware: Hardware, batch_sizes: tuple[int, ...], max_model_len: int, num_kv_tokens: int, max_num_seqs: int = 64
) -> Assembled:
    """An engine that has not started. num_kv_tokens: room for so many tokens of KV."""
    spec = llama_spec(hardware)
    graph_bytes = 1 << 30
    plugins: dict[str, Any] = {
        "continuous_batching": {},
        "paged_kv": {"block_size": BLOCK_SIZE},
        "flash_attention": {"backend": "triton"},
        "triton_ops": {},
        "cuda_graphs": {"batch_sizes": list(batch_sizes), "memory_bytes": graph_bytes},
    }
    itemsize = hardware.dtype.itemsize
    bytes_per_token = sum(2 * layer.num_kv_heads * layer.head_size * itemsize for layer in spec.layers)
    engine = {
        "max_num_seqs": max_num_seqs,
        "max_step_tokens": max(max_model_len, max_num_seqs),
        "max_model_len": max_model_len,
        "kv_bytes": graph_bytes + (num_kv_tokens + 2 * BLOCK_SIZE) * bytes_per_token,
    }
    config = build_config(sections={"engine": engine, "plugins": plugins})
    graphs = CudaGraphs if hardware.type == "cuda" else GraphsOnCPU
    registry = make_registry(config, (ContinuousBatching, PagedKV, FlashAttention, TritonOps, graphs))
    reader = RandomWeights(spec, hardware)
    parts = assemble(config, registry, spec, lambda: reader, hardware.device)
    idle = registry.without_effect()
    assert not idle, idle
    return parts
