"""How each GGUF architecture maps to the names and the fused layout of the decoder. A new family is a new entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import ModelError
from .gguf_file import GGUFFile

UNSTORED = frozenset({"rope_freqs.weight"})
"""Tensors that are configuration, not weights: config.json says the same in other words."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one tensor of the file."""

    tensor: str
    expert: int | None = None
    """Which expert's rows, of a tensor that stacks those of all experts; None for a tensor as a whole."""


@dataclass(frozen=True, slots=True)
class GGUFLayout:
    """One architecture: its Hugging Face identity and where its tensors go."""

    model_type: str
    class_name: str
    """The entry of `architectures` in config.json."""
    layer_tensors: Mapping[str, tuple[str, ...]]
    """Our name below `model.layers.N.` to the tensors below `blk.N.` whose rows it joins, without the suffix."""
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same for tensors that stack the matrices of all experts; our own names have no suffix there."""
    interleaved: Mapping[str, str] = field(default_factory=dict)
    """Layer tensors that keep the two halves of each rotary pair side by side, and the key of their head count."""
    norm_offset: float = 0.0
    """What the file adds to the weights of all norms."""

    def sources(
        self, tensor_names: frozenset[str], num_layers: int, num_experts: int = 0
    ) -> dict[str, tuple[Part, ...]]:
        """Each of our tensors with its parts in the file; ModelError for tensors that have no place or no sibling."""
        candidates = _with_suffixes(MODEL_TENSORS)
        for layer in range(num_layers):
            candidates |= _with_suffixes(
                {
                    f"model.layers.{layer}.{name}": tuple(f"blk.{layer}.{part}" for part in parts)
                    for name, parts in self.layer_tensors.items()
                }
            )
            for name, parts in self.stacks.items():
                candidates[f"model.layers.{layer}.{name}"] = tuple(
                    Part(f"blk.{layer}.{part}.weight", expert) for expert in range(num_experts) for part in parts
                )
        sources = {
            name: parts for name, parts in candidates.items() if any(part.tensor in tensor_names for part in parts)
        }
        self._check_complete(sources, tensor_names)
        return sources

    def _check_complete(self, sources: Mapping[str, tuple[Part, ...]], tensor_names: frozenset[str]) -> None:
        wanted = frozenset(part.tensor for parts in sources.values() for part in parts)
        if missing := sorted(wanted - tensor_names):
            raise ModelError(f"the GGUF lacks the tensor {missing[0]!r}; get the file from another source")
        if unknown := sorted(tensor_names - wanted - UNSTORED):
            raise ModelError(
                f"the GGUF holds the tensor {unknown[0]!r}, which a plain {self.model_type} model does not have; "
                "use the model's safetensors instead"
            )


def _with_suffixes(tensors: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Part, ...]]:
    return {
        f"{name}.{suffix}": tuple(Part(f"{part}.{suffix}") for part in parts)
        for name, parts in tensors.items()
        for suffix in ("weight", "bias")
    }


MODEL_TENSORS: Mapping[str, tuple[str, ...]] = {
    "model.embed_tokens": ("token_embd",),
    "model.norm": ("output_norm",),
    "lm_head": ("output",),
}
ATTENTION: Mapping[str, tuple[str, ...]] = {
    "input_layernorm": ("attn_norm",),
    "self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
    "self_attn.o_proj": ("attn_output",),
}
HEAD_NORMS: Mapping[str, tuple[str, ...]] = {
    "self_attn.q_norm": ("attn_q_norm",),
    "self_attn.k_norm": ("attn_k_norm",),
}
MLP: Mapping[str, tuple[str, ...]] = {
    "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
    "mlp.down_proj": ("ffn_down",),
}
ROUTER: Mapping[str, tuple[str, ...]] = {"mlp.gate": ("ffn_gate_inp",)}
EXPERTS: Mapping[str, tuple[str, ...]] = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "mlp.experts.down_proj": ("ffn_down_exps",),
}
TWO_NORMS: Mapping[str, tuple[str, ...]] = {"post_attention_layernorm": ("ffn_norm",)}
"""Beside `input_layernorm`: one before the MLP, whatever its name says."""
FOUR_NORMS: Mapping[str, tuple[str, ...]] = {
    "post_attention_layernorm": ("post_attention_norm",),
    "pre_feedforward_layernorm": ("ffn_norm",),
    "post_feedforward_layernorm": ("post_ffw_norm",),
}
INTERLEAVED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}

LAYOUTS: Mapping[str, GGUFLayout] = {
    "llama": GGUFLayout("llama", "LlamaForCausalLM", {**ATTENTION, **TWO_NORMS, **MLP}, interleaved=INTERLEAVED),
    "llama with experts": GGUFLayout(
        "mixtral", "MixtralForCausalLM", {**ATTENTION, **TWO_NORMS, **ROUTER}, EXPERTS, INTERLEAVED
    ),
    "qwen2": GGUFLayout("qwen2", "Qwen2ForCausalLM", {**ATTENTION, **TWO_NORMS, **MLP}),
    "qwen3": GGUFLayout("qwen3", "Qwen3ForCausalLM", {**ATTENTION, **HEAD_NORMS, **TWO_NORMS, **MLP}),
    "qwen3moe": GGUFLayout(
        "qwen3_moe", "Qwen3MoeForCausalLM", {**ATTENTION, **HEAD_NORMS, **TWO_NORMS, **ROUTER}, EXPERTS
    ),
    "gemma2": GGUFLayout("gemma2", "Gemma2ForCausalLM", {**ATTENTION, **FOUR_NORMS, **MLP}, norm_offset=1.0),
    "gemma3": GGUFLayout(
        "gemma3_text", "Gemma3ForCausalLM", {**ATTENTION, **HEAD_NORMS, **FOUR_NORMS, **MLP}, norm_offset=1.0
    ),
}


def layout_of(file: GGUFFile) -> GGUFLayout:
    """ModelError for an architecture without an entry."""
    architecture = file.architecture
    known = [name for name in LAYOUTS if name != "llama with experts"]
    if architecture not in known:
        raise ModelError(
            f"the GGUF architecture {architecture!r} is not supported; known: {', '.join(known)} "
            "(other models load from safetensors)"
        )
    if architecture == "llama" and num_experts(file):
        return LAYOUTS["llama with experts"]
    return LAYOUTS[architecture]


def num_experts(file: GGUFFile) -> int:
    """Experts of each layer, 0 for a dense model."""
    return int(file.get(f"{file.architecture}.expert_count", 0))
