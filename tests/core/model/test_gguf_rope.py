from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model.gguf_file import GGUFFile
from switchgear.core.model.gguf_rope import rope_keys
from switchgear.core.testing.gguf_writer import finish
from switchgear.core.testing.tiny_gguf import make_tiny_gguf


def _with_divisors(path: Path, divisors: Sequence[float]) -> GGUFFile:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_rope_freq_base(500000.0)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    finish(writer)
    return GGUFFile(path)


def test_plain_rope_has_the_usual_base(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "plain.gguf", "llama")
    finish(writer)
    assert rope_keys(GGUFFile(tmp_path / "plain.gguf"), 16) == {"rope_theta": 10000.0, "rope_scaling": None}


def test_yarn_keeps_every_key_that_the_file_has(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "yarn.gguf", "qwen2")
    writer.add_rope_freq_base(1e6)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32768)
    writer.add_rope_scaling_yarn_beta_fast(24.0)
    finish(writer)
    assert rope_keys(GGUFFile(tmp_path / "yarn.gguf"), 64)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 24.0,
    }


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_is_recognised_by_its_divisors(tmp_path: Path, factor: float) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    path = make_tiny_gguf(tmp_path / "llama3.gguf", rope_theta=500000.0, head_dim=64, rope_scaling=scaling)
    assert rope_keys(GGUFFile(path), 64) == {"rope_theta": 500000.0, "rope_scaling": scaling}


def test_other_divisors_are_refused(tmp_path: Path) -> None:
    file = _with_divisors(tmp_path / "odd.gguf", np.linspace(1.0, 8.0, 32).tolist())
    with pytest.raises(ModelError, match=r"odd\.gguf divides its rotary frequencies in another way than Llama 3"):
        rope_keys(file, 64)
