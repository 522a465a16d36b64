from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from switchgear.core.model.safetensors_writer import ALIGNMENT, DTYPE_CODES, StreamedTensor, write_safetensors


def _streamed(name: str, tensor: torch.Tensor, rows: int) -> StreamedTensor:
    def blocks() -> Iterator[torch.Tensor]:
        yield from tensor.split(rows)

    return StreamedTensor(name, tuple(tensor.shape), blocks)


@pytest.mark.parametrize("dtype", sorted(DTYPE_CODES))
def test_the_library_reads_back_what_was_streamed(tmp_path: Path, dtype: str) -> None:
    tensors = {"matrix": torch.randn(7, 5), "vector": torch.randn(3), "scalar_row": torch.randn(1, 1)}
    path = tmp_path / "model.safetensors"
    written: list[int] = []
    write_safetensors(path, dtype, [_streamed(name, tensor, 2) for name, tensor in tensors.items()], written.append)
    loaded = load_file(path)
    torch_dtype = getattr(torch, dtype)
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor.to(torch_dtype)) for name, tensor in tensors.items())
    assert sum(written) == sum(tensor.numel() for tensor in tensors.values()) * torch_dtype.itemsize


@pytest.mark.parametrize("name_length", [1, 7, 63, 64, 65])
def test_data_starts_on_a_cache_line(tmp_path: Path, name_length: int) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, "float32", [_streamed("n" * name_length, torch.ones(4), 4)], lambda _: None)
    header_length = int.from_bytes(path.read_bytes()[:8], "little")
    assert (8 + header_length) % ALIGNMENT == 0
    assert path.stat().st_size == 8 + header_length + 16


def test_blocks_that_do_not_fill_the_shape_are_our_own_mistake(tmp_path: Path) -> None:
    short = StreamedTensor("short", (4,), lambda: iter([torch.ones(3)]))
    with pytest.raises(AssertionError, match="do not add up"):
        write_safetensors(tmp_path / "model.safetensors", "float32", [short], lambda _: None)
