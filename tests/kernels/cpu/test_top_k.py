"""The k largest, place by place: of equals the first, what is no number before all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from switchgear.kernels.cpu import top_k as launcher
from switchgear.kernels.cpu.elements import NUMBERS
from switchgear.kernels.cpu.library import Library
from switchgear.kernels.cpu.top_k import LARGEST_HEAP, top_k

NAN, INFINITY = torch.nan, torch.inf
KINDS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as drawn": lambda x: x,
    "few values": lambda x: (x / 50).round(),
    "all equal": torch.ones_like,
    "zeros of either sign": lambda x: x * 0,
    "ascending": lambda x: x.sort(-1).values,
    "descending": lambda x: x.sort(-1, descending=True).values,
    "the largest at the end": lambda x: torch.where(torch.arange(x.shape[1]) < 0.9 * x.shape[1], x, x + 1000),
}
NOT_FINITE: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "some no numbers": lambda x: x.masked_fill(x > 150, NAN),
    "many no numbers": lambda x: x.masked_fill(x < 50, NAN),
    "no numbers": lambda x: torch.full_like(x, NAN),
    "infinite": lambda x: x.masked_fill(x < 100, -INFINITY).masked_fill(x > 200, INFINITY),
    "no numbers or nothing": lambda x: torch.where(x > 0, NAN, -INFINITY),
}


def stably_sorted(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = x.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], places[:, :k]


def drawn(num_rows: int, size: int, seed: int = 0) -> torch.Tensor:
    """Float64 around 0, of hundreds, in rows that do not follow each other."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, size + 3, generator=generator, dtype=torch.float64)[:, 1 : size + 1] * 100


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("size", [1, 7, 16, 17, 130, 1000, 6000])
def test_it_is_a_stable_sort(
    size: int, dtype: torch.dtype, num_threads: int, limited: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "native", lambda: limited)
    x = drawn(5, size)
    kinds = {**KINDS, **NOT_FINITE} if dtype.is_floating_point else KINDS
    for name, kind in kinds.items():
        given = kind(x).to(dtype)
        for k in sorted({min(k, size) for k in (1, 2, 5, 20, 63, 64, 129, 512, 1400, LARGEST_HEAP)}):
            for wanted, one in zip(stably_sorted(given, k), top_k(given, k), strict=True):
                torch.testing.assert_close(one, wanted, rtol=0, atol=0, equal_nan=True, msg=f"{name}, k = {k}")


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_more_than_a_heap_of_them_are_right_too(dtype: torch.dtype, library: Library) -> None:
    x = drawn(3, 9000).to(dtype)
    for k in (LARGEST_HEAP + 1, 9000):
        values, places = top_k(x, k)
        assert torch.equal(values, stably_sorted(x, k)[0]) and torch.equal(x.gather(-1, places), values)
        assert places.sort(-1).values.diff(dim=-1).all()


def test_integers_at_both_ends_are_told_apart(library: Library) -> None:
    least, most = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    x = torch.full((2, 4000), least).index_fill_(1, torch.tensor([3, 3999]), most)
    x[1, 5:900] = 2**62 - torch.arange(895)  # a double would hold many of these as one
    for k in (1, 3, 100, 800):
        for wanted, one in zip(stably_sorted(x, k), top_k(x, k), strict=True):
            assert torch.equal(one, wanted)


def test_no_rows_are_none(library: Library) -> None:
    values, places = top_k(torch.empty(0, 9), 2)
    assert values.shape == places.shape == (0, 2)


@pytest.mark.parametrize("k", [-1, 0, 10])
def test_more_than_there_are_or_none_is_a_mistake(k: int, library: Library) -> None:
    with pytest.raises(AssertionError):
        top_k(torch.zeros(2, 9), k)


def test_it_takes_dense_rows_of_numbers_that_it_knows(library: Library) -> None:
    for x in (torch.zeros(2, 9, dtype=torch.bfloat16), torch.zeros(2, 9, dtype=torch.int32), torch.zeros(9, 2).T):
        with pytest.raises(AssertionError):
            top_k(x, 1)
