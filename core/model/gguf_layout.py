"""How each GGUF architecture maps to the names and the fused layout of the decoder. A new family is a new entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ModelError


@dataclass(frozen=True, slots=True)
class GGUFLayout:
    """One architecture: its Hugging Face identity and where its tensors go."""

    model_type: str
    class_name: str
    """The entry of `architectures` in config.json."""
    model_tensors: Mapping[str, tuple[str, ...]]
    """Our name to the GGUF tensors whose rows it joins, all without `.weight` or `.bias`."""
    layer_tensors: Mapping[str, tuple[str, ...]]
    """The same below `model.layers.N.` and `blk.N.`."""
    interleaved: Mapping[str, str]
    """Layer tensors that keep the two halves of each rotary pair side by side, and the key of their head count."""

    def sources(self, tensor_names: frozenset[str], num_layers: int) -> dict[str, tuple[str, ...]]:
        """Each of our tensors with its parts in the file; ModelError for tensors that have no place or no sibling."""
        candidates = dict(self.model_tensors)
        for layer in range(num_layers):
            for name, parts in self.layer_tensors.items():
                candidates[f"model.layers.{layer}.{name}"] = tuple(f"blk.{layer}.{part}" for part in parts)
        sources = {}
        for name, parts in candidates.items():
            for suffix in ("weight", "bias"):
                stored = tuple(f"{part}.{suffix}" for part in parts)
                if not tensor_names.isdisjoint(stored):
                    sources[f"{name}.{suffix}"] = stored
        wanted = frozenset(part for parts in sources.values() for part in parts)
        if missing := sorted(wanted - tensor_names):
            raise ModelError(f"the GGUF lacks the tensor {missing[0]!r}; get the file from another source")
        if unknown := sorted(tensor_names - wanted):
            raise ModelError(
                f"the GGUF holds the tensor {unknown[0]!r}, which a plain {self.model_type} model does not have; "
                "use the model's safetensors instead"
            )
        return sources


LAYOUTS: Mapping[str, GGUFLayout] = {
    "llama": GGUFLayout(
        model_type="llama",
        class_name="LlamaForCausalLM",
        model_tensors={
            "model.embed_tokens": ("token_embd",),
            "model.norm": ("output_norm",),
            "lm_head": ("output",),
        },
        layer_tensors={
            "input_layernorm": ("attn_norm",),
            "self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
            "self_attn.o_proj": ("attn_output",),
            "post_attention_layernorm": ("ffn_norm",),
            "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
            "mlp.down_proj": ("ffn_down",),
        },
        interleaved={"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"},
    ),
}


def layout_of(architecture: str) -> GGUFLayout:
    layout = LAYOUTS.get(architecture)
    if layout is None:
        raise ModelError(
            f"the GGUF architecture {architecture!r} is not supported; known: {', '.join(sorted(LAYOUTS))} "
            "(other models load from safetensors)"
        )
    return layout
