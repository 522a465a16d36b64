from pathlib import Path

import gguf
import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model.gguf_file import GGUFFile
from switchgear.core.model.gguf_layout import LAYOUTS, Part, layout_of
from switchgear.core.testing.gguf_writer import finish

LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
NAMES = frozenset({"token_embd.weight", "output_norm.weight", *(f"blk.0.{part}.weight" for part in LAYER)})


def _file(path: Path, architecture: str, num_experts: int = 0) -> GGUFFile:
    writer = gguf.GGUFWriter(path, architecture)
    if num_experts:
        writer.add_expert_count(num_experts)
    finish(writer)
    return GGUFFile(path)


def test_parts_are_joined_under_the_fused_name() -> None:
    sources = LAYOUTS["llama"].sources(NAMES, num_layers=1)
    qkv = sources["model.layers.0.self_attn.qkv_proj.weight"]
    assert qkv == (Part("blk.0.attn_q.weight"), Part("blk.0.attn_k.weight"), Part("blk.0.attn_v.weight"))
    assert sources["model.layers.0.mlp.gate_up_proj.weight"] == (
        Part("blk.0.ffn_gate.weight"),
        Part("blk.0.ffn_up.weight"),
    )
    assert sorted(part.tensor for parts in sources.values() for part in parts) == sorted(NAMES)
    assert "lm_head.weight" not in sources


def test_gate_and_up_alternate_from_expert_to_expert() -> None:
    dense = ("ffn_gate", "ffn_up", "ffn_down")
    names = {f"blk.0.{part}.weight" for part in (*LAYER, "ffn_gate_inp", *(f"{part}_exps" for part in dense))}
    names |= {"token_embd.weight", "output_norm.weight"}
    names -= {f"blk.0.{part}.weight" for part in dense}
    sources = LAYOUTS["llama with experts"].sources(frozenset(names), num_layers=1, num_experts=2)
    gate, up = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"
    assert sources["model.layers.0.mlp.experts.gate_up_proj"] == (
        Part(gate, 0),
        Part(up, 0),
        Part(gate, 1),
        Part(up, 1),
    )


def test_separate_head_and_biases_are_taken_along() -> None:
    biases = frozenset(f"blk.0.attn_{part}.bias" for part in "qkv")
    sources = LAYOUTS["llama"].sources(NAMES | biases | {"output.weight"}, num_layers=1)
    assert sources["lm_head.weight"] == (Part("output.weight"),)
    assert len(sources["model.layers.0.self_attn.qkv_proj.bias"]) == 3


def test_tensor_without_a_place_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_gate_exps\.weight', which a plain llama model does not have"):
        LAYOUTS["llama"].sources(NAMES | {"blk.0.ffn_gate_exps.weight"}, num_layers=1)


def test_missing_part_is_refused() -> None:
    with pytest.raises(ModelError, match=r"lacks the tensor 'blk\.0\.attn_k\.weight'"):
        LAYOUTS["llama"].sources(NAMES - {"blk.0.attn_k.weight"}, num_layers=1)


def test_experts_make_a_llama_a_mixtral(tmp_path: Path) -> None:
    assert layout_of(_file(tmp_path / "dense.gguf", "llama")).class_name == "LlamaForCausalLM"
    assert layout_of(_file(tmp_path / "sparse.gguf", "llama", num_experts=8)).class_name == "MixtralForCausalLM"


def test_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    known = "llama, qwen2, qwen3, qwen3moe, gemma2, gemma3"
    with pytest.raises(ModelError, match=rf"architecture 'mamba' is not supported; known: {known} \(other"):
        layout_of(_file(tmp_path / "mamba.gguf", "mamba"))
