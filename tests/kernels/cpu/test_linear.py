"""What holds of a packed linear beyond its numbers: who reads and writes where, and what a row depends on."""

from __future__ import annotations

import pytest
import torch
from switchgear.kernels.cpu.elements import ELEMENTS
from switchgear.kernels.cpu.library import Library
from switchgear.kernels.cpu.linear import linear, pack

LEVELS = ["avx2", "avx512", "avx512_bf16"]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_a_row_is_the_same_whatever_else_is_in_the_batch(
    level: str, dtype: torch.dtype, library: Library, num_threads: int
) -> None:
    weight, x = random(100, 1700, dtype=dtype), random(40, 1700, dtype=dtype)
    packed = pack(weight, random(100, dtype=dtype), library=library.limited_to(level))
    together = linear(x, packed)
    for row in range(len(x)):
        assert torch.equal(linear(x[row : row + 1], packed)[0], together[row])
    for start, end in ((0, 9), (3, 20), (11, 40)):
        assert torch.equal(linear(x[start:end], packed), together[start:end])


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_it_writes_into_out_and_nowhere_else(dtype: torch.dtype, library: Library, num_threads: int) -> None:
    weight = random(50, 33, dtype=dtype)
    packed = pack(weight)
    for num_rows in (0, 1, 5, 8, 19, 40):
        x = random(num_rows, 33, dtype=dtype)
        around = torch.full((num_rows + 2, 60), 7.0, dtype=dtype)
        out = around[1:-1, 3:53]
        assert linear(x, packed, out) is out
        assert torch.equal(out, linear(x, packed))
        out.fill_(7.0)
        assert bool((around == 7.0).all())


@pytest.mark.slow
def test_emulated_tiles_write_nowhere_else(emulated: Library) -> None:
    packed = pack(random(50, 33, dtype=torch.bfloat16), library=emulated)
    for num_rows in (9, 16, 17, 40):
        around = torch.full((num_rows + 2, 60), 7.0, dtype=torch.bfloat16)
        linear(random(num_rows, 33, dtype=torch.bfloat16), packed, around[1:-1, 3:53])
        around[1:-1, 3:53].fill_(7.0)
        assert bool((around == 7.0).all())


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_it_reads_unaligned_memory_and_rows_apart(dtype: torch.dtype, library: Library) -> None:
    weight, x = random(40, 72, dtype=dtype), random(6, 72, dtype=dtype)
    expected = linear(x[:, 1:70].contiguous(), pack(weight[:, 3:].contiguous()))
    assert torch.equal(linear(x[:, 1:70], pack(weight[:, 3:])), expected)


def test_the_packed_form_takes_no_more_than_its_padding(library: Library) -> None:
    weight = random(960, 576, dtype=torch.bfloat16)
    assert pack(weight).num_bytes == weight.nbytes
    odd = pack(random(1, 1, dtype=torch.bfloat16), random(1, dtype=torch.bfloat16))
    assert odd.num_bytes == 16 * 32 * 2 + 16 * 4


def test_the_weight_may_go_once_it_is_packed(library: Library) -> None:
    weight, x = random(64, 64, dtype=torch.bfloat16), random(3, 64, dtype=torch.bfloat16)
    packed = pack(weight)
    before = linear(x, packed)
    weight.zero_()
    assert torch.equal(linear(x, packed), before)
