"""Every Triton kernel in Triton's interpreter, against its reference. Run by `test_interpreted.py`.

In a process of its own: whether Triton compiles or interprets is settled when it is first imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear.core.model import ops
from switchgear.core.records import LayerSpec
from switchgear.kernels import triton

from ...plugins.ragged import make_step
from . import patched_once  # noqa: F401
from .cases import CASES, DECODES, LAYERS, PROMPTS, decoded, prefilled

FILES = sorted(path.stem for path in Path(triton.__path__[0]).glob("*.py") if not path.name.startswith("_"))
SLACK = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3}
"""What is allowed on top, for results of size 1. There is no bfloat16: the interpreter's product of it is wrong."""


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_names_a_reference_and_has_cases(file: str) -> None:
    module = importlib.import_module(f"switchgear.kernels.triton.{file}")
    assert callable(getattr(ops, module.REFERENCE)), "REFERENCE is a function of core/model/ops.py"
    assert file in CASES, "give it shapes in cases.py"


def slow_but(quick: Collection[str], names: Iterable[str]) -> list[Any]:
    """The interpreter takes milliseconds a program: one of a kind is quick enough."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.slow), torch.float32, torch.float16])
@pytest.mark.parametrize("file", CASES)
def test_a_kernel_is_at_most_twice_as_far_off_as_its_reference(file: str, dtype: torch.dtype) -> None:
    for case in CASES[file](dtype):
        for given, naive, exact in zip(case.kernel(), case.naive(), case.exact(), strict=True):
            assert given.dtype == naive.dtype and given.shape == naive.shape, case.name
            off, naive_off = (given - exact).abs().max(), (naive - exact).abs().max()
            assert off <= 2 * naive_off + SLACK[dtype], (case.name, off, naive_off)


@pytest.mark.parametrize("kind", slow_but(["window and soft cap"], LAYERS))
def test_the_sizes_of_tiles_and_parts_change_nothing(kind: str) -> None:
    step = make_step(LAYERS[kind], PROMPTS, block_size=8)
    exact = step.exact()
    for tiles in ((16, 64, 4), (64, 32, 4)):
        torch.testing.assert_close(prefilled(step, tiles), exact, rtol=1e-12, atol=1e-12)
    step = make_step(LAYERS[kind], DECODES, block_size=8)
    exact = step.exact()
    for num_splits, tile_k in ((1, 32), (7, 16)):
        torch.testing.assert_close(decoded(step, num_splits, tile_k), exact, rtol=1e-12, atol=1e-12)


def test_who_else_is_in_the_step_and_in_which_order_changes_not_a_bit() -> None:
    for rows, run in ((PROMPTS, prefilled), (DECODES, decoded)):
        step = make_step(LAYERS["groups of 3"], rows, dtype="float32")
        whole = run(step)
        for order in ([2, 0], [3, 2, 1, 0]):
            some, tokens = step.of(order)
            assert torch.equal(run(some), whole[tokens])


@pytest.mark.parametrize("dtype", slow_but(["float16"], ["float32", "float16"]))
def test_scores_in_the_ten_thousands_are_no_trouble(dtype: str) -> None:
    for layer in (LayerSpec(6, 2, 16, 0.25), LayerSpec(4, 2, 16, 0.25, soft_cap=30.0)):
        for rows, run in ((PROMPTS, prefilled), (DECODES, decoded)):
            step = make_step(layer, rows, dtype=dtype, by=1e4)
            off = (run(step) - step.exact()).abs().max()
            assert off <= (1e-3 if dtype == "float32" else 4e-3)


def test_a_row_that_sees_nothing_gets_zeros() -> None:
    """The engine has none; a batch that is padded for a CUDA graph does."""
    step = make_step(LAYERS["groups of 3"], [(1, 9), (1, 1)])
    step.batch.context_lens[1] = 0
    out = decoded(step)
    assert not out[1].any() and not out[0].isnan().any()
    torch.testing.assert_close(out[:1], step.of([0])[0].exact(), rtol=1e-12, atol=1e-12)


def test_working_memory_grows_with_the_queries_and_not_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    new_empty = torch.Tensor.new_empty

    def counted(x: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        made = new_empty(x, *arguments, **named)  # type: ignore[call-overload]
        taken.append(made.nbytes)
        return made  # type: ignore[no-any-return]

    monkeypatch.setattr(torch.Tensor, "new_empty", counted)

    def total(rows: list[tuple[int, int]]) -> int:
        step = make_step(LayerSpec(2, 1, 16, 0.25), rows, block_size=16)
        taken.clear()
        decoded(step)
        return sum(taken)

    one = total([(1, 40)])
    assert one == 2 * 3 * (16 + 1) * 8
    assert total([(1, 80)]) == one and total([(1, 40)] * 2) == 2 * one
