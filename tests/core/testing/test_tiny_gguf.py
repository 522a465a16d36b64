from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.core.testing.tiny_gguf import make_tiny_gguf


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    first, second = make_tiny_gguf(tmp_path / "first.gguf", seed=4), make_tiny_gguf(tmp_path / "second.gguf", seed=4)
    assert first.read_bytes() == second.read_bytes()


def test_f32_file_holds_the_weights_of_the_tiny_model(tmp_path: Path) -> None:
    weights = load_file(make_tiny_model(tmp_path / "model", seed=2) / "model.safetensors")
    reader = gguf.GGUFReader(make_tiny_gguf(tmp_path / "model.gguf", quantization="F32", seed=2))
    stored = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    assert len(stored) == len(weights)
    down = torch.from_numpy(stored["blk.1.ffn_down.weight"])
    assert torch.equal(down, weights["model.layers.1.mlp.down_proj.weight"])
    query, permuted = weights["model.layers.0.self_attn.q_proj.weight"], torch.from_numpy(stored["blk.0.attn_q.weight"])
    assert torch.equal(permuted[0], query[0])
    assert torch.equal(permuted[1], query[8]), "row 1 of a head of 16 is the partner of row 0"
