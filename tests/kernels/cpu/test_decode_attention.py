"""What holds of attention over paged KV beyond its error: cuts, order, large scores, rows that see nothing, memory."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from switchgear.core.model import ops
from switchgear.kernels.cpu import decode_attention, write_kv
from switchgear.kernels.cpu.elements import ELEMENTS
from switchgear.kernels.cpu.library import Library

from .paged_attention import attend_paged, draw

SCALE = 0.125


def rows(num_keys: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four rows of one query each: six heads over two."""
    q = draw(4, 1, 6, 64, dtype=dtype)
    return q, draw(4, num_keys, 2, 64, dtype=dtype, seed=1), draw(4, num_keys, 2, 64, dtype=dtype, seed=2)


@pytest.fixture(autouse=True)
def _limited(limited: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_attention, "native", lambda: limited)
    monkeypatch.setattr(write_kv, "native", lambda: limited)


def test_the_sizes_of_blocks_and_parts_change_nothing(num_threads: int) -> None:
    q, k, v = rows(150)
    visible = torch.ones(4, 1, 150, dtype=torch.bool)
    exact = ops.attention(q, k, v, visible, SCALE)
    for block_size, part in product((1, 16, 200), (1, 7, 32, 33, 150)):
        given = attend_paged(q, k, v, visible, SCALE, None, block_size, part)
        torch.testing.assert_close(given, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_who_else_is_there_and_in_which_order_changes_not_a_bit(dtype: torch.dtype, num_threads: int) -> None:
    q, k, v = rows(70, dtype)
    visible = torch.arange(70) < torch.tensor([70, 3, 40, 64])[:, None, None]
    whole = attend_paged(q, k, v, visible, SCALE, None)
    for order in ([2], [3, 1], [3, 2, 1, 0]):
        assert torch.equal(attend_paged(q[order], k[order], v[order], visible[order], SCALE, None), whole[order])


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("soft_cap", [None, 30.0])
def test_scores_in_the_ten_thousands_are_no_trouble(dtype: torch.dtype, soft_cap: float | None) -> None:
    q, k, v = rows(90, dtype)
    visible = torch.ones(4, 1, 90, dtype=torch.bool)
    for by in (1e4, -1e4):
        exact = ops.attention(q.double() * by, k.double(), v.double(), visible, SCALE, soft_cap)
        given = attend_paged(q * by, k, v, visible, SCALE, soft_cap)
        naive = ops.attention(q * by, k, v, visible, SCALE, soft_cap)
        assert given.isfinite().all()
        assert (given - exact).abs().max() <= 2 * (naive - exact).abs().max() + 1e-5


def test_adding_a_constant_to_all_scores_changes_nothing() -> None:
    """A further element, 1 in each key, adds what the query has there."""
    q, k, v = rows(90)
    visible = torch.ones(4, 1, 90, dtype=torch.bool)
    k[..., 0] = 1.0
    before = attend_paged(q, k, v, visible, SCALE, None)
    q[..., 0] += 800.0
    torch.testing.assert_close(attend_paged(q, k, v, visible, SCALE, None), before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_a_query_that_sees_nothing_gets_zeros(dtype: torch.dtype) -> None:
    q, k, v = rows(40, dtype)
    visible = torch.ones(4, 1, 40, dtype=torch.bool)
    visible[1] = False
    given = attend_paged(q, k, v, visible, SCALE, None)
    assert not given[1].any() and given.isfinite().all()
    others = [0, 2, 3]
    assert torch.equal(given[others], attend_paged(q[others], k[others], v[others], visible[others], SCALE, None))


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_a_part_without_keys_weighs_nothing(dtype: torch.dtype) -> None:
    q, k, v = rows(16, dtype)
    found = []
    for tasks in ([(0, 0, 0, 16)], [(0, 0, 16, 16), (0, 0, 0, 16), (0, 0, 16, 16)]):
        out = torch.full((1, 6, 64), torch.nan, dtype=dtype)
        decode_attention.decode_attention(
            q[0],
            k[:1].contiguous(),
            v[:1].contiguous(),
            torch.zeros(1, 1, dtype=torch.int64),
            torch.tensor(tasks),
            torch.tensor([(0, 0, len(tasks))]),
            decode_attention.new_states(len(tasks), 6, 64, dtype),
            out,
            SCALE,
            None,
        )
        found.append(out)
    assert torch.equal(*found) and found[0].isfinite().all()


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("place", [3, 50])
def test_what_is_no_number_stays_none(dtype: torch.dtype, place: int) -> None:
    q, k, v = rows(70, dtype)
    visible = torch.ones(4, 1, 70, dtype=torch.bool)
    q[0, 0, 5, 7] = k[1, place, 0, 9] = v[2, place, 1, 11] = torch.nan
    given = attend_paged(q, k, v, visible, SCALE, None)
    assert torch.equal(given.isnan(), ops.attention(q, k, v, visible, SCALE).isnan())


def test_it_writes_only_the_tokens_that_it_was_given() -> None:
    """Long rows of the same step are another's."""
    q, k, v = rows(16)
    out = torch.full((4, 6, 64), 7.0, dtype=torch.float64)
    tasks = torch.tensor([(2, 0, 0, 16)])
    states = decode_attention.new_states(1, 6, 64, torch.float64)
    table, merges = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([(2, 0, 1)])
    caches = k[:1].contiguous(), v[:1].contiguous()
    decode_attention.decode_attention(q[:, 0], *caches, table, tasks, merges, states, out, SCALE, None)
    assert (out[[0, 1, 3]] == 7.0).all() and not (out[2] == 7.0).any()


def test_working_memory_grows_with_the_parts_and_not_with_the_context() -> None:
    """Per part and head: a query and a sum, padded to 16, the largest score and the sum of weights."""
    for num_parts, dtype, item_size in ((1, torch.bfloat16, 4), (2, torch.float32, 4), (6, torch.float64, 8)):
        assert decode_attention.new_states(num_parts, 6, 60, dtype).nbytes == num_parts * 6 * (2 * 64 + 2) * item_size
