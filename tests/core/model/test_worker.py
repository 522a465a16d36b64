"""What a worker makes of a model before and while it loads: KV groups and norms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from switchgear import LLM
from switchgear.core.errors import ModelError
from switchgear.core.testing.tiny import make_tiny_model


def test_layers_that_see_the_same_share_block_tables(tmp_path: Path) -> None:
    path = make_tiny_model(
        tmp_path / "model", family="gemma3", num_hidden_layers=5, sliding_window_pattern=3, sliding_window=8
    )
    with LLM(str(path), dtype="float32", plugins={}) as llm:
        executor: Any = llm._engine.executor
        groups = executor.kv_spec
    assert [(group.layers, group.kind, group.window) for group in groups] == [
        ((0, 1, 3, 4), "window", 8),
        ((2,), "full", None),
    ]
    assert [group.bytes_per_token for group in groups] == [4 * 2 * 2 * 16 * 4, 2 * 2 * 16 * 4]


def test_norms_stored_less_one_are_kept_wide(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "model", family="gemma2", dtype="bfloat16")
    stored = load_file(path / "model.safetensors")["model.norm.weight"]
    with LLM(str(path), dtype="bfloat16", plugins={}) as llm:
        executor: Any = llm._engine.executor
        assert torch.equal(executor.worker.decoder.final_norm, stored.float() + 1)


def test_a_norm_of_another_size_is_refused(tmp_path: Path) -> None:
    """Qwen 3 has one weight for each element of a head, OLMo 2 one for each element of all heads."""
    path = make_tiny_model(tmp_path / "model", family="qwen3")
    weights = load_file(path / "model.safetensors")
    weights["model.layers.1.self_attn.q_norm.weight"] = torch.ones(64)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.q_norm\.weight is \[64\] where .* means \[16\]"):
        LLM(str(path), dtype="float32", plugins={})
