from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from switchgear.core.errors import ModelError
from switchgear.core.model import gguf_file
from switchgear.core.model.gguf_file import GGUFFile
from switchgear.core.testing.gguf_writer import finish
from switchgear.core.testing.tiny_gguf import make_tiny_gguf


def test_metadata_are_python_values(tmp_path: Path) -> None:
    file = GGUFFile(make_tiny_gguf(tmp_path / "tiny.gguf"))
    assert file.architecture == "llama"
    assert file.require("llama.block_count") == 2
    assert file.require("llama.attention.layer_norm_rms_epsilon") == 1e-5
    assert file.require("tokenizer.ggml.tokens")[1] == "<|im_start|>"
    assert file.get("llama.expert_count", 0) == 0
    with pytest.raises(ModelError, match=r"lacks the metadata 'llama\.expert_count'"):
        file.require("llama.expert_count")


@pytest.mark.parametrize("block_elements", [1, 64 * 5, 1 << 20])
@pytest.mark.parametrize("quantization", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_blocks_add_up_to_the_whole_tensor(
    tmp_path: Path, quantization: str, block_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "BLOCK_ELEMENTS", block_elements)
    path = make_tiny_gguf(tmp_path / "tiny.gguf", quantization=quantization)
    file, reader = GGUFFile(path), gguf.GGUFReader(path)
    assert file.tensor_names() == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors[:6]:
        whole = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        blocks = list(file.blocks(tensor.name))
        assert max(block.numel() for block in blocks) <= max(block_elements, whole.shape[-1])
        assert torch.equal(torch.cat(blocks), whole) and whole.shape == file.shape(tensor.name)
        backwards = np.arange(whole.shape[0])[::-1]
        assert torch.equal(torch.cat(list(file.blocks(tensor.name, backwards))), whole.flip(0))


@pytest.mark.parametrize("num_bytes", [0, 3, 20, 400, 9000, -64])
def test_truncated_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ModelError, match=r"tiny\.gguf is truncated or not a GGUF file .*fetch it again"):
        GGUFFile(path)


def test_damaged_text_is_refused_with_its_key(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes().replace(b"smollm", b"smoll\xff", 1))
    with pytest.raises(ModelError, match=r"\(tokenizer\.ggml\.pre is not UTF-8\); fetch it again"):
        GGUFFile(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("This is no model at all. " * 99)
    with pytest.raises(ModelError, match="truncated or not a GGUF file"):
        GGUFFile(tmp_path / "text.gguf")
    with pytest.raises(ModelError, match=r"cannot be opened \(No such file or directory\)"):
        GGUFFile(tmp_path / "absent.gguf")


QUANTIZATIONS = [kind for kind in gguf.quants._type_traits if kind != gguf.GGMLQuantizationType.BF16]
"""All that the `gguf` package can dequantise, a few of which it cannot make: their blocks are random bytes here."""


@pytest.mark.parametrize("kind", QUANTIZATIONS, ids=lambda kind: str(kind.name))
def test_every_quantization_is_read_block_by_block(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "BLOCK_ELEMENTS", 2 * 512)
    row_bytes = gguf.quant_shape_to_byte_shape((512,), kind)[0]
    stored = np.random.default_rng(0).integers(0, 256, (3, 5, row_bytes), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "stack.gguf", "llama")
    writer.add_tensor("stack.weight", stored, raw_dtype=kind)
    finish(writer)
    file = GGUFFile(tmp_path / "stack.gguf")
    with np.errstate(all="ignore"):
        blocks = list(file.blocks("stack.weight"))
        second_expert = torch.cat(list(file.blocks("stack.weight", np.arange(5, 10))))
        expected = torch.from_numpy(gguf.dequantize(stored, kind))
    assert file.shape("stack.weight") == expected.shape == (3, 5, 512)
    assert len(blocks) == 8
    assert torch.equal(torch.cat(blocks).view(torch.int32), expected.view(15, 512).view(torch.int32))
    assert torch.equal(second_expert.view(torch.int32), expected[1].view(torch.int32))


def test_quantization_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    stored = gguf.GGMLQuantizationType.Q8_1
    writer.add_tensor("odd.weight", np.zeros((2, 40), np.uint8), raw_dtype=stored)
    finish(writer)
    with pytest.raises(ModelError, match=r"stores odd\.weight as Q8_1, which cannot be read; get the model in another"):
        list(GGUFFile(tmp_path / "odd.gguf").blocks("odd.weight"))
