"""Every Triton kernel, as its launcher launches it, compiled for GPUs that are not here. Run by `test_compiled.py`.

In a process of its own: it takes the place of Triton's driver, and nothing compiles where the interpreter is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from switchgear.core.records import LayerSpec
from switchgear.kernels.triton.flash_prefill import default_tiles
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ...plugins.ragged import Row, make_step
from .cases import CASES, decoded, prefilled

SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10}
"""Bytes that a program may use, by architecture."""
LAYERS = {
    "Llama 3": LayerSpec(32, 8, 128, 128**-0.5),
    "SmolLM2": LayerSpec(9, 3, 64, 0.125),
    "Gemma 2": LayerSpec(8, 4, 256, 0.0625, window=4096, soft_cap=50.0),
    "80 elements": LayerSpec(4, 4, 80, 0.1),
}
ROWS: list[Row] = [(3, 3), (1, 9)]


class AbsentGPU:
    """Says what is compiled for; there is nothing to launch on."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The kernels that were launched, compiled and not run."""
    kernels: list[Any] = []

    def compiling(function: Any, grid: object) -> Callable[..., None]:
        return lambda *given, **named: kernels.append(function.run(*given, grid=grid, warmup=True, **named))

    monkeypatch.setattr(JITFunction, "__getitem__", compiling)
    monkeypatch.setattr(driver, "_active", None)
    yield kernels


def launch(file: str, dtype: torch.dtype, kind: str) -> None:
    if not file.startswith("flash"):
        for case in CASES[file](dtype):
            case.kernel()
        return
    layer = LAYERS[kind]
    step = make_step(layer, ROWS, block_size=16, dtype=str(dtype).removeprefix("torch."))
    if file == "flash_prefill":
        prefilled(step, default_tiles(layer.head_size, dtype))
    else:
        decoded(step, num_splits=8, tile_k=None)


def combinations() -> Iterator[Any]:
    """The quick ones: one precision, one shape, the newer GPU."""
    for file in CASES:
        for architecture in (90, 80):
            for dtype, kind in flash_shapes() if file.startswith("flash") else other_shapes():
                is_quick = (architecture, dtype, kind) == (90, torch.bfloat16, next(iter(LAYERS)))
                name = f"{file}-sm_{architecture}-{dtype}-{kind}".replace("torch.", "").replace(" ", "_")
                marks = () if is_quick else pytest.mark.slow
                yield pytest.param(file, architecture, dtype, kind, id=name, marks=marks)


def flash_shapes() -> Iterator[tuple[torch.dtype, str]]:
    """Every shape in the precision that is served in; the others where they take most memory."""
    yield from ((torch.bfloat16, kind) for kind in LAYERS)
    yield from ((dtype, "Gemma 2") for dtype in (torch.float16, torch.float32, torch.float64))


def other_shapes() -> Iterator[tuple[torch.dtype, str]]:
    yield from ((dtype, next(iter(LAYERS))) for dtype in (torch.bfloat16, torch.float16, torch.float32))


@pytest.mark.parametrize(("file", "architecture", "dtype", "kind"), list(combinations()))
def test_a_kernel_compiles(file: str, architecture: int, dtype: torch.dtype, kind: str, compiled: list[Any]) -> None:
    driver.set_active(AbsentGPU(architecture))
    launch(file, dtype, kind)
    assert compiled
    for kernel in compiled:
        assert kernel.metadata.target.arch == architecture and kernel.asm["cubin"]
        assert kernel.metadata.shared <= SHARED_MEMORY[architecture]
