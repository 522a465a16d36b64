"""From a config.json, as the hub and transformers write them, to what the decoder runs; and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model.architectures import model_spec
from switchgear.core.model.families import ARCHITECTURES, SWITCHES
from switchgear.core.model.spec import RopeSpec

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def small(architecture: str, **changes: Any) -> Any:
    return model_spec("m", {"architectures": [architecture], **SMALL, **changes})


def windows(spec: Any) -> list[int | None]:
    return [layer.window for layer in spec.layers]


def test_gemma3_on_the_hub_says_little_and_means_much() -> None:
    text_config = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    spec = model_spec("g", {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text_config})
    assert windows(spec) == [None if (layer + 1) % 6 == 0 else 1024 for layer in range(34)]
    assert spec.ropes[0] == RopeSpec(10000.0, rotary_size=256)
    assert spec.ropes[5] == RopeSpec(1000000.0, "linear", 256, 8.0)
    assert (spec.layers[0].num_heads, spec.layers[0].num_kv_heads, spec.layers[0].head_size) == (8, 4, 256)
    assert spec.layers[0].scale == 256**-0.5 and spec.embedding_multiplier == 2560**0.5
    assert (spec.vocab_size, spec.max_model_len, spec.tie_embeddings) == (262208, 131072, True)
    assert (spec.logit_soft_cap, spec.layers[0].soft_cap) == (None, None)
    assert spec.linear_specs()[0].path == "language_model.model.embed_tokens"


def test_gemma2_caps_scores_and_logits_unless_told_not_to() -> None:
    spec = small("Gemma2ForCausalLM", sliding_window=16)
    assert windows(spec) == [16, None, 16, None]
    assert (spec.layers[0].soft_cap, spec.logit_soft_cap) == (50.0, 30.0)
    free = small("Gemma2ForCausalLM", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (free.layers[0].soft_cap, free.logit_soft_cap) == (None, None)


def test_a_window_that_holds_the_whole_context_is_none() -> None:
    assert windows(small("MistralForCausalLM", sliding_window=127)) == [127] * 4
    assert windows(small("MistralForCausalLM", sliding_window=128)) == [None] * 4
    assert windows(small("MistralForCausalLM", sliding_window=None)) == [None] * 4
    assert windows(small("MistralForCausalLM", max_position_embeddings=32768)) == [4096] * 4


def test_local_layers_keep_their_own_rope_when_the_window_holds_everything() -> None:
    spec = small("Gemma3ForCausalLM", sliding_window=4096, sliding_window_pattern=2)
    assert windows(spec) == [None] * 4
    assert [rope.theta for rope in spec.ropes if rope] == [10000.0, 1000000.0] * 2


def test_qwen_windows_are_off_unless_switched_on_and_then_for_the_late_layers() -> None:
    assert windows(small("Qwen2ForCausalLM", sliding_window=16, max_window_layers=0)) == [None] * 4
    on = {"use_sliding_window": True, "sliding_window": 16}
    assert windows(small("Qwen2ForCausalLM", max_window_layers=3, **on)) == [None, None, None, 16]
    types = ["sliding_attention", "full_attention"] * 2
    assert windows(small("Qwen3ForCausalLM", layer_types=types, **on)) == [16, None, 16, None]
    assert windows(small("Qwen3MoeForCausalLM", max_window_layers=3, **on)) == [16] * 4


def test_smollm3_leaves_every_fourth_layer_unrotated() -> None:
    spec = small("SmolLM3ForCausalLM")
    assert [rope is not None for rope in spec.ropes] == [True, True, True, False]
    assert spec.ropes[0] == RopeSpec(2000000.0, rotary_size=16)
    listed = small("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 1, 1], use_sliding_window=True, sliding_window=8)
    assert [rope is not None for rope in listed.ropes] == [False, True, True, True]
    assert windows(listed) == [8, None, None, None]


def test_granite_multiplies_in_four_places() -> None:
    spec = small(
        "GraniteForCausalLM",
        attention_multiplier=0.0078125,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        logits_scaling=16.0,
    )
    assert (spec.layers[0].scale, spec.embedding_multiplier) == (0.0078125, 12.0)
    assert (spec.residual_multiplier, spec.logit_multiplier) == (0.22, 0.0625)


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_phi3_of_128k_stretches_by_lists(kind: str) -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    spec = small(
        "Phi3ForCausalLM",
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        sliding_window=262144,
        partial_rotary_factor=0.75,
        rope_scaling={"type": kind, **factors},
    )
    rope = spec.ropes[0]
    assert rope is not None and windows(spec) == [None] * 4
    assert (rope.kind, rope.rotary_size, rope.original_max_len) == ("longrope", 12, 4096)
    assert (rope.short_factors, rope.long_factors) == ((1.0,) * 6, (2.0,) * 6)
    assert rope.attention_factor == math.sqrt(1 + math.log(32) / math.log(4096))


def test_phi3_is_fused_in_its_checkpoint_and_described_by_its_rows() -> None:
    qkv = small("Phi3ForCausalLM").linear_specs()[1]
    assert qkv.path == "model.layers.0.self_attn.qkv_proj"
    assert [part.num_rows for part in qkv.parts] == [64, 32, 32]


def test_olmo2_norms_what_leaves_and_all_heads_together() -> None:
    spec = small("Olmo2ForCausalLM")
    assert "input_norm" not in spec.names and "mlp_norm" not in spec.names
    assert (spec.norm_size("q_norm", 0), spec.norm_size("k_norm", 0)) == (64, 32)
    assert small("Qwen3ForCausalLM", head_dim=24).norm_size("q_norm", 0) == 24


def test_experts_of_both_spellings_and_on_some_layers_only() -> None:
    spec = small("MixtralForCausalLM")
    assert spec.experts is not None and spec.expert_layers == {0, 1, 2, 3}
    assert (spec.experts.num_experts, spec.experts.num_active, spec.experts.intermediate_size) == (8, 2, 112)
    assert spec.experts.renormalize
    for key in ("num_experts", "num_local_experts"):
        spec = small("Qwen3MoeForCausalLM", mlp_only_layers=[1], decoder_sparse_step=2, **{key: 16})
        assert spec.experts is not None and spec.expert_layers == {3}
        assert (spec.experts.num_experts, spec.experts.intermediate_size) == (16, 768)
        assert not spec.experts.renormalize


def test_every_linear_is_described_once_and_in_order() -> None:
    specs = small("Qwen3MoeForCausalLM", num_experts=2, num_experts_per_tok=1, mlp_only_layers=[0]).linear_specs()
    kinds = [spec.kind for spec in specs if spec.layer in (-1, 0, 1)]
    dense, sparse = ["qkv", "o", "gate_up", "down"], ["qkv", "o", "router", *["experts"] * 4]
    assert kinds == ["embedding", *dense, *sparse, "head"]
    assert len({spec.path for spec in specs}) == len(specs)
    gate_up, down = specs[8:10]
    assert (gate_up.in_features, gate_up.out_features, gate_up.num_experts) == (64, 2 * 768, 2)
    assert (down.in_features, down.out_features, down.stacked) == (768, 64, ("model.layers.1.mlp.experts.down_proj", 0))


@pytest.mark.parametrize("architecture", [name for name, row in ARCHITECTURES.items() if not row.text_config])
def test_a_switch_that_a_family_does_not_have_is_refused_by_name(architecture: str) -> None:
    row = ARCHITECTURES[architecture]
    for switch in {*SWITCHES} - {*row.defaults} - {*row.fixed}:
        small(architecture, **{switch: SWITCHES[switch]})
        small(architecture, **{switch: None})
        with pytest.raises(ModelError, match=f"{switch} is 3, and this engine runs"):
            small(architecture, **{switch: 3})


@pytest.mark.parametrize(
    ("architecture", "changes", "said"),
    [
        ("MistralForCausalLM", {"attention_bias": True}, "attention_bias is True.*only with False"),
        ("Qwen2ForCausalLM", {"attention_bias": False}, "attention_bias is False.*only with True"),
        ("LlamaForCausalLM", {"sliding_window": 64}, "sliding_window is 64"),
        ("LlamaForCausalLM", {"num_local_experts": 8}, "num_local_experts is 8"),
        (
            "LlamaForCausalLM",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5",
        ),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("Gemma2ForCausalLM", {"hidden_activation": "quick_gelu"}, "activation 'quick_gelu' is unknown"),
        ("Gemma2ForCausalLM", {"layer_types": ["chunked_attention"] * 4}, "layer type 'chunked_attention' is unknown"),
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types holds 1 entries for 4 layers"),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "sliding_attention, but .* is off"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers holds 2 entries for 4 layers"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.7}, "rope cannot rotate 11 elements"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "short_factor holds 1 numbers for the 8 frequencies",
        ),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8}}, "lacks 'long_factor'"),
        ("Qwen2ForCausalLM", {"rope_scaling": {"type": "mrope"}}, "rope scaling 'mrope' is unknown"),
        (
            "Qwen2ForCausalLM",
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}},
            "rope parameter 'truncate' is unknown",
        ),
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "a token cannot go to 9 of 8 experts"),
        ("Gemma3ForConditionalGeneration", {}, "lacks 'text_config'"),
    ],
)
def test_what_is_not_known_is_refused(architecture: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        small(architecture, **changes)
