"""What holds of attention of many queries beyond its error: cuts, order, large scores, what is no number, memory."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from switchgear.core.model import ops
from switchgear.kernels.cpu import prefill_attention
from switchgear.kernels.cpu.elements import ELEMENTS
from switchgear.kernels.cpu.library import Library

from .paged_attention import attend_prefill, causal, draw

SCALE = 0.125


def rows(num_queries: int, num_keys: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Two rows: six heads over two."""
    q = draw(2, num_queries, 6, 64, dtype=dtype)
    return q, draw(2, num_keys, 2, 64, dtype=dtype, seed=1), draw(2, num_keys, 2, 64, dtype=dtype, seed=2)


@pytest.fixture(autouse=True)
def _limited(limited: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_attention, "native", lambda: limited)


def test_the_sizes_of_blocks_and_stretches_change_nothing(num_threads: int) -> None:
    q, k, v = rows(90, 150)
    for window in (None, 20):
        visible = causal(90, 150, window)
        exact = ops.attention(q, k, v, visible, SCALE)
        for block_size, height in product((1, 16, 200), (1, 7, 64, None)):
            given = attend_prefill(q, k, v, visible, SCALE, None, block_size, height)
            torch.testing.assert_close(given, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_who_else_is_there_and_in_which_order_changes_not_a_bit(dtype: torch.dtype, num_threads: int) -> None:
    q, k, v = rows(70, 130, dtype)
    visible = causal(70, 130, None)
    whole = attend_prefill(q, k, v, visible, SCALE, None)
    turned = attend_prefill(q.flip(0), k.flip(0), v.flip(0), visible, SCALE, None)
    assert torch.equal(turned.flip(0), whole)
    assert torch.equal(attend_prefill(q[:1], k[:1], v[:1], visible[:1], SCALE, None), whole[:1])


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("soft_cap", [None, 30.0])
def test_scores_in_the_ten_thousands_are_no_trouble(dtype: torch.dtype, soft_cap: float | None) -> None:
    q, k, v = rows(40, 90, dtype)
    visible = causal(40, 90, None)
    for by in (1e4, -1e4):
        exact = ops.attention(q.double() * by, k.double(), v.double(), visible, SCALE, soft_cap)
        given = attend_prefill(q * by, k, v, visible, SCALE, soft_cap)
        naive = ops.attention(q * by, k, v, visible, SCALE, soft_cap)
        assert given.isfinite().all()
        # where two scores are all but equal one of two values is taken, and the naive form takes their mean
        assert (given - exact).abs().max() <= 2.01 * (naive - exact).abs().max() + 1e-5


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_what_is_no_number_stays_none_and_where_it_is(dtype: torch.dtype) -> None:
    q, k, v = rows(20, 20, dtype)
    q[1, 7, 2, 5] = torch.nan
    given = attend_prefill(q, k, v, causal(20, 20, None), SCALE, None)
    assert given[1, 7, 2].isnan().all() and int(given.isnan().sum()) == 64


def test_it_writes_only_the_tokens_that_it_was_given() -> None:
    """Single queries of the same step are another's."""
    q, k, v = rows(12, 12)
    out = torch.full((24, 6, 64), 7.0, dtype=torch.float64)
    table = torch.zeros(1, 1, dtype=torch.int64)
    caches = k[:1].contiguous(), v[:1].contiguous()
    tiles, queries = torch.tensor([(0, 0, 12)]), torch.tensor([(12, 0, 12, 0, 0)])
    prefill_attention.prefill_attention(
        q.flatten(0, 1).contiguous(), *caches, table, tiles, queries, out, SCALE, None, None
    )
    assert (out[:12] == 7.0).all() and not (out[12:] == 7.0).any()
