from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from switchgear.core.model.gguf_config import generation_config, model_config
from switchgear.core.model.gguf_file import GGUFFile
from switchgear.core.model.gguf_layout import layout_of
from switchgear.core.testing.gguf_writer import finish

TOKENS = ["<eos>", "<bos>", "<end_of_turn>", "<|eot_id|>", "a"]


def _gemma(path: Path, architecture: str, num_layers: int = 12, window: int | None = 512, **extra: Any) -> GGUFFile:
    """A file without layers, with what a converter writes for a Gemma and whatever `extra` names."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(num_layers)
    writer.add_context_length(1024)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_key_length(32)
    writer.add_layer_norm_rms_eps(1e-6)
    if window is not None:
        writer.add_sliding_window(window)
    if "sliding_window_pattern" in extra:
        writer.add_sliding_window_pattern(extra["sliding_window_pattern"])
    if "chat_template" in extra:
        writer.add_chat_template(extra["chat_template"])
    if "eot" in extra:
        writer.add_eot_token_id(extra["eot"])
    writer.add_token_list(TOKENS)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_tensor("token_embd.weight", np.zeros((5, 64), np.float32))
    finish(writer)
    return GGUFFile(path)


def _config(file: GGUFFile) -> dict[str, Any]:
    return model_config(file, layout_of(file), "float32")


def test_gemma3_has_a_global_layer_in_six(tmp_path: Path) -> None:
    config = _config(_gemma(tmp_path / "g.gguf", "gemma3"))
    local, whole = "sliding_attention", "full_attention"
    assert config["layer_types"] == [local, local, local, local, local, whole] * 2
    assert config["model_type"] == "gemma3_text" and config["sliding_window"] == 512
    assert config["rope_local_base_freq"] == 10000.0 and config["final_logit_softcapping"] is None
    assert config["tie_word_embeddings"] is True


def test_gemma2_alternates_and_has_its_usual_caps(tmp_path: Path) -> None:
    config = _config(_gemma(tmp_path / "g.gguf", "gemma2", window=None))
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 6
    assert config["sliding_window"] == 4096
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)


@pytest.mark.parametrize("pattern", [3, [True, True, False] * 4])
def test_pattern_of_the_file_comes_first(tmp_path: Path, pattern: int | list[bool]) -> None:
    config = _config(_gemma(tmp_path / "g.gguf", "gemma3", sliding_window_pattern=pattern))
    assert config["layer_types"] == ["sliding_attention", "sliding_attention", "full_attention"] * 4


def test_gemma3_without_a_window_has_global_layers_only(tmp_path: Path) -> None:
    config = _config(_gemma(tmp_path / "g.gguf", "gemma3", window=None))
    assert config["layer_types"] == ["full_attention"] * 12 and config["sliding_window"] is None


@pytest.mark.parametrize(("architecture", "num_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_models_scale_by_hidden_size(tmp_path: Path, architecture: str, num_layers: int) -> None:
    assert _config(_gemma(tmp_path / "a.gguf", architecture, num_layers))["query_pre_attn_scalar"] == 64 // 4
    assert _config(_gemma(tmp_path / "b.gguf", architecture))["query_pre_attn_scalar"] == 32


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, 0),
        ({"eot": 3}, [0, 3]),
        ({"chat_template": "{{ message }}<end_of_turn>"}, [0, 2]),
        ({"chat_template": "{{ message }}<|im_end|>"}, 0),
        ({"chat_template": "{{ message }}<|eot_id|>", "eot": 3}, [0, 3]),
    ],
)
def test_ends_of_turns_end_a_generation(tmp_path: Path, extra: dict[str, Any], expected: int | list[int]) -> None:
    file = _gemma(tmp_path / "g.gguf", "gemma3", **extra)
    assert _config(file)["eos_token_id"] == expected
    assert generation_config(file) == {"bos_token_id": 1, "eos_token_id": expected, "pad_token_id": None}
