import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model.gguf_layout import layout_of

LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
NAMES = frozenset({"token_embd.weight", "output_norm.weight", *(f"blk.0.{part}.weight" for part in LAYER)})


def test_parts_are_joined_under_the_fused_name() -> None:
    sources = layout_of("llama").sources(NAMES, num_layers=1)
    qkv = sources["model.layers.0.self_attn.qkv_proj.weight"]
    assert qkv == ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight")
    assert sources["model.layers.0.mlp.gate_up_proj.weight"] == ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight")
    assert sorted(part for parts in sources.values() for part in parts) == sorted(NAMES)
    assert "lm_head.weight" not in sources


def test_separate_head_and_biases_are_taken_along() -> None:
    biases = frozenset(f"blk.0.attn_{part}.bias" for part in "qkv")
    sources = layout_of("llama").sources(NAMES | biases | {"output.weight"}, num_layers=1)
    assert sources["lm_head.weight"] == ("output.weight",)
    assert len(sources["model.layers.0.self_attn.qkv_proj.bias"]) == 3


def test_tensor_without_a_place_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_gate_exps\.weight', which a plain llama model does not have"):
        layout_of("llama").sources(NAMES | {"blk.0.ffn_gate_exps.weight"}, num_layers=1)


def test_missing_part_is_refused() -> None:
    with pytest.raises(ModelError, match=r"lacks the tensor 'blk\.0\.attn_k\.weight'"):
        layout_of("llama").sources(NAMES - {"blk.0.attn_k.weight"}, num_layers=1)


def test_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="architecture 'mamba' is not supported; known: llama"):
        layout_of("mamba")
