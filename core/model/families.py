"""The architecture table: what each family of models has, and what its checkpoints call it. A family is data.

A new family is a new row: the names in its checkpoints, the config keys that it has beyond the common ones, and what
no key says. `architectures.py` reads a config.json by its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LLAMA_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "head": "lm_head",
    "final_norm": "model.norm",
    "input_norm": "model.layers.{n}.input_layernorm",
    "mlp_norm": "model.layers.{n}.post_attention_layernorm",
    "qkv": "model.layers.{n}.self_attn.qkv_proj",
    "q": "model.layers.{n}.self_attn.q_proj",
    "k": "model.layers.{n}.self_attn.k_proj",
    "v": "model.layers.{n}.self_attn.v_proj",
    "o": "model.layers.{n}.self_attn.o_proj",
    "gate_up": "model.layers.{n}.mlp.gate_up_proj",
    "gate": "model.layers.{n}.mlp.gate_proj",
    "up": "model.layers.{n}.mlp.up_proj",
    "down": "model.layers.{n}.mlp.down_proj",
}
HEAD_NORM_NAMES: Mapping[str, str] = {
    "q_norm": "model.layers.{n}.self_attn.q_norm",
    "k_norm": "model.layers.{n}.self_attn.k_norm",
}
OUTER_NORM_NAMES: Mapping[str, str] = {
    "post_attention_norm": "model.layers.{n}.post_attention_layernorm",
    "post_mlp_norm": "model.layers.{n}.post_feedforward_layernorm",
}
EXPERT_NAMES: Mapping[str, str] = {
    "router": "model.layers.{n}.mlp.gate",
    "router_part": "model.layers.{n}.mlp.gate",
    "expert_gate_up": "model.layers.{n}.mlp.experts.{e}.gate_up_proj",
    "expert_gate_up_stack": "model.layers.{n}.mlp.experts.gate_up_proj",
    "expert_gate": "model.layers.{n}.mlp.experts.{e}.gate_proj",
    "expert_up": "model.layers.{n}.mlp.experts.{e}.up_proj",
    "expert_down": "model.layers.{n}.mlp.experts.{e}.down_proj",
    "expert_down_stack": "model.layers.{n}.mlp.experts.down_proj",
    "expert_down_part": "model.layers.{n}.mlp.experts.{e}.down_proj",
}
MIXTRAL_NAMES: Mapping[str, str] = {
    **LLAMA_NAMES,
    **EXPERT_NAMES,
    "router_part": "model.layers.{n}.block_sparse_moe.gate",
    "expert_gate": "model.layers.{n}.block_sparse_moe.experts.{e}.w1",
    "expert_up": "model.layers.{n}.block_sparse_moe.experts.{e}.w3",
    "expert_down_part": "model.layers.{n}.block_sparse_moe.experts.{e}.w2",
}
OLMO2_NAMES: Mapping[str, str] = {
    **{role: name for role, name in LLAMA_NAMES.items() if role not in ("input_norm", "mlp_norm")},
    **HEAD_NORM_NAMES,
    **OUTER_NORM_NAMES,
}
GEMMA2_NAMES: Mapping[str, str] = {
    **LLAMA_NAMES,
    **OUTER_NORM_NAMES,
    "mlp_norm": "model.layers.{n}.pre_feedforward_layernorm",
}
GEMMA3_NAMES: Mapping[str, str] = {**GEMMA2_NAMES, **HEAD_NORM_NAMES}

SWITCHES: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_chunk_size": None,
    "attention_multiplier": None,
    "attn_logit_softcapping": None,
    "attn_temperature_tuning": False,
    "clip_qkv": None,
    "embedding_multiplier": 1.0,
    "final_logit_softcapping": None,
    "layer_types": None,
    "logits_scaling": 1.0,
    "mlp_bias": False,
    "n_shared_experts": None,
    "no_rope_layers": None,
    "num_experts": None,
    "num_local_experts": None,
    "partial_rotary_factor": 1.0,
    "query_pre_attn_scalar": None,
    "residual_multiplier": 1.0,
    "shared_expert_intermediate_size": None,
    "sliding_window": None,
    "use_bidirectional_attention": False,
    "use_qk_norm": False,
}
"""Config keys that change what is computed, with the value that changes nothing."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of the table."""

    names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config keys that the family has, with the value where a config.json is silent.

    Of `SWITCHES` it has only these: a config that sets another one is refused.
    """
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Switches that have this one value in every model of the family."""
    o_bias: bool = True
    """Whether `attention_bias` is also the output projection's."""
    windowed: Literal["none", "all", "late", "most", "unrotated"] = "none"
    """Layers that see `sliding_window` tokens only: those from `max_window_layers` on, all but each
    `sliding_window_pattern`-th, or those without rope. A list in `layer_types` says it instead where the family has it.
    """
    activation_key: str = "hidden_act"
    norm_offset: float = 0.0
    wide_norms: bool = False
    """Norm weights multiply before the result is rounded to the model's dtype."""
    norms_all_heads: bool = False
    """The norms of q and k are over all heads together."""
    scales_embedding: bool = False
    """The embedding is multiplied by the root of the hidden size."""
    text_config: str = ""
    """Key of the text model's own config, inside that of a model for more than text."""


BIASES: Mapping[str, Any] = {"attention_bias": False, "mlp_bias": False}
QWEN_WINDOW: Mapping[str, Any] = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
GEMMA: Mapping[str, Any] = {
    "attention_bias": False,
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "tie_word_embeddings": True,
}
GEMMA2 = Architecture(
    names=GEMMA2_NAMES,
    defaults={
        **GEMMA,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    windowed="most",
    activation_key="hidden_activation",
    norm_offset=1.0,
    wide_norms=True,
    scales_embedding=True,
)
GEMMA3_DEFAULTS: Mapping[str, Any] = {
    **GEMMA,
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "final_logit_softcapping": None,
}


def gemma3(prefix: str, text_config: str) -> Architecture:
    return Architecture(
        names={role: prefix + name for role, name in GEMMA3_NAMES.items()},
        defaults=GEMMA3_DEFAULTS,
        windowed="most",
        activation_key="hidden_activation",
        norm_offset=1.0,
        wide_norms=True,
        scales_embedding=True,
        text_config=text_config,
    )


ARCHITECTURES: Mapping[str, Architecture] = {
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": gemma3(prefix="", text_config=""),
    "Gemma3ForConditionalGeneration": gemma3(prefix="language_model.", text_config="text_config"),
    "GraniteForCausalLM": Architecture(
        defaults={
            **BIASES,
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
        },
    ),
    "LlamaForCausalLM": Architecture(defaults=BIASES),
    "MistralForCausalLM": Architecture(defaults={"sliding_window": 4096}, windowed="all"),
    "MixtralForCausalLM": Architecture(
        names=MIXTRAL_NAMES,
        defaults={
            "sliding_window": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
        },
        windowed="all",
    ),
    "Olmo2ForCausalLM": Architecture(
        names=OLMO2_NAMES,
        defaults={"attention_bias": False, "rms_norm_eps": 1e-5},
        wide_norms=True,
        norms_all_heads=True,
    ),
    "Phi3ForCausalLM": Architecture(
        defaults={
            "sliding_window": None,
            "partial_rotary_factor": 1.0,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        windowed="all",
    ),
    "Qwen2ForCausalLM": Architecture(
        defaults=QWEN_WINDOW, fixed={"attention_bias": True}, o_bias=False, windowed="late"
    ),
    "Qwen3ForCausalLM": Architecture(
        names={**LLAMA_NAMES, **HEAD_NORM_NAMES},
        defaults={**QWEN_WINDOW, "attention_bias": False, "head_dim": 128},
        windowed="late",
    ),
    "Qwen3MoeForCausalLM": Architecture(
        names={**LLAMA_NAMES, **HEAD_NORM_NAMES, **EXPERT_NAMES},
        defaults={
            "attention_bias": False,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "num_experts": 128,
            "num_local_experts": None,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": (),
        },
        windowed="all",
    ),
    "SmolLM3ForCausalLM": Architecture(
        defaults={
            **BIASES,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "rope_theta": 2_000_000.0,
            "tie_word_embeddings": True,
        },
        windowed="unrotated",
    ),
}
