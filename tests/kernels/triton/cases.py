"""For every kernel file the shapes it is tried on: a call, and the call of its reference that must give the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from switchgear.core.model import ops
from switchgear.core.records import LayerSpec
from switchgear.kernels.triton.act_mul import act_mul
from switchgear.kernels.triton.argmax import argmax
from switchgear.kernels.triton.flash_decode import flash_decode
from switchgear.kernels.triton.flash_prefill import flash_prefill, queries_per_tile
from switchgear.kernels.triton.kv_write import write_kv
from switchgear.kernels.triton.rms_norm import rms_norm
from switchgear.kernels.triton.rope import rope
from switchgear.kernels.triton.rope_and_cache import rope_and_cache

from ...plugins.ragged import Row, Step, make_step

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One shape in one precision."""

    name: str
    kernel: Callable[[], Outputs]
    naive: Callable[[], Outputs]
    """The reference in the same precision."""
    exact: Callable[[], Outputs]
    """The reference in float64."""


def case(name: str, kernel: Callable[..., Outputs], reference: Callable[..., Outputs], *arguments: object) -> Case:
    """Kernel and reference take the same arguments; tensors of numbers are widened for the exact one."""
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in arguments]
    return Case(name, partial(kernel, *arguments), partial(reference, *arguments), partial(reference, *wide))


def alone(function: Callable[..., torch.Tensor]) -> Callable[..., Outputs]:
    """The single result of a function as the only one of several."""
    return lambda *given: (function(*given),)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


# -- attention ------------------------------------------------------------------------------------------------------

LAYERS = {
    "groups of 3": LayerSpec(6, 2, 64, 0.125),
    "one kv head for 5, 80 elements": LayerSpec(5, 1, 80, 0.1),
    "window and soft cap": LayerSpec(4, 2, 13, 0.3, window=9, soft_cap=8.0),
    "window that begins within a block": LayerSpec(2, 2, 20, 0.2, window=21),
    "256 elements": LayerSpec(2, 1, 256, 0.0625, soft_cap=50.0),
}
PROMPTS: list[Row] = [(13, 13), (9, 27), (1, 1), (10, 11)]
DECODES: list[Row] = [(1, 37), (3, 20), (1, 1), (2, 2)]


def paged(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """The caches as the kernels have them, `[N, K, S, D]`, with the step's own K and V in them."""
    k, v = (x.transpose(1, 2).contiguous() for x in (step.cache.k, step.cache.v))
    ops.write_kv(step.k, step.v, k, v, torch.from_numpy(step.batch.slots[0]).to(k.device))
    return k, v


def on_device(step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    arrays = (step.batch.query_start, step.batch.context_lens, step.batch.block_tables[0])
    return tuple(torch.from_numpy(array).int().to(step.q.device) for array in arrays)  # type: ignore[return-value]


def prefilled(step: Step, tiles: tuple[int, int, int] = (16, 16, 4)) -> torch.Tensor:
    layer, out = step.layer, torch.full_like(step.q, torch.nan)
    height = queries_per_tile(layer.num_heads // layer.num_kv_heads, tiles[0])
    lens = step.batch.query_lens.tolist()
    starts = [(row, start) for row, length in enumerate(lens) for start in range(0, length, height)]
    rows, firsts = torch.tensor(starts, dtype=torch.int32, device=step.q.device).T.contiguous()
    flash_prefill(
        step.q,
        *paged(step),
        rows,
        firsts,
        *on_device(step),
        out,
        layer.scale,
        layer.window,
        layer.soft_cap,
        tiles,
    )
    return out


def decoded(step: Step, num_splits: int = 3, tile_k: int | None = 16) -> torch.Tensor:
    layer, out = step.layer, torch.full_like(step.q, torch.nan)
    rows = torch.arange(len(step.batch.rows), dtype=torch.int32, device=step.q.device)
    most = int(step.batch.query_lens.max())
    flash_decode(
        step.q,
        *paged(step),
        rows,
        *on_device(step),
        out,
        layer.scale,
        layer.window,
        layer.soft_cap,
        most,
        num_splits,
        tile_k,
    )
    return out


def attention_case(name: str, step: Step, kernel: Callable[[Step], torch.Tensor]) -> Case:
    """The reference reads the rows through `EagerAttention`, which is `ops.attention` and a gathering."""
    dtype = str(step.q.dtype).removeprefix("torch.")
    return Case(name, lambda: (kernel(step),), lambda: (step.run(step.eager(dtype)),), lambda: (step.exact(),))


def attention(
    rows: list[Row], kernel: Callable[[Step], torch.Tensor], dtype: torch.dtype, device: str = "cpu"
) -> Iterator[Case]:
    name = str(dtype).removeprefix("torch.")
    for seed, (kind, layer) in enumerate(LAYERS.items()):
        for block_size in (5, 16) if seed == 0 else (16,):
            step = make_step(layer, rows, block_size=block_size, dtype=name, seed=seed, device=device)
            yield attention_case(f"{kind}, blocks of {block_size}", step, kernel)


# -- the rest -------------------------------------------------------------------------------------------------------


def kv_writes(dtype: torch.dtype, device: str = "cpu") -> Iterator[Case]:
    def written(write: Callable[..., None], *arguments: torch.Tensor) -> Outputs:
        k, v, slots = arguments
        caches = tuple(k.new_zeros(7, k.shape[1], 4, k.shape[2]) for _ in range(2))
        write(k, v, *caches, slots)
        return caches

    for heads, size in ((3, 64), (1, 13)):
        k = draw(5, heads, size, dtype=dtype, device=device)
        v = draw(5, 2 * heads, size, dtype=dtype, device=device)[:, heads:]
        slots = torch.tensor([27, 0, 5, 6, 13], dtype=torch.int32, device=device)
        yield case(f"{heads} x {size}", partial(written, write_kv), partial(written, ops.write_kv), k, v, slots)


def rms_norms(dtype: torch.dtype, device: str = "cpu") -> Iterator[Case]:
    wide = torch.promote_types(dtype, torch.float32)
    for size in (576, 20):
        x = draw(3, size + 4, dtype=dtype, device=device)[:, :size]
        weight = draw(size, dtype=dtype, seed=1, device=device)
        residual = draw(3, size, dtype=dtype, seed=2, device=device)
        yield case(f"{size}", rms_norm, ops.rms_norm, x, weight, 1e-5)
        yield case(f"{size} and a residual", rms_norm, ops.rms_norm, x, weight, 1e-5, residual)
    yield case("a wider weight", rms_norm, ops.rms_norm, x, weight.to(wide), 1e-2, residual)
    yield case("zeros", rms_norm, ops.rms_norm, torch.zeros_like(x), weight, 1e-5)


def ropes(dtype: torch.dtype, device: str = "cpu") -> Iterator[Case]:
    for heads, size, half in ((3, 64, 32), (1, 80, 16), (2, 10, 5)):
        x = draw(4, heads + 2, size, dtype=dtype, device=device)[:, 1 : heads + 1]
        angles = torch.arange(4)[:, None] * 0.7 ** torch.arange(half)
        tables = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
        yield case(f"{heads} x {size}, {2 * half} turn", alone(rope), alone(ops.rope), x, *tables)


def storing_ropes(dtype: torch.dtype, device: str = "cpu") -> Iterator[Case]:
    def stored(turn: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> Outputs:
        q, k, v, cos, sin, slots = arguments
        caches = tuple(k.new_zeros(7, k.shape[1], 4, k.shape[2]) for _ in range(2))
        return turn(q, k, v, cos, sin, *caches, slots), *caches

    for size, half in ((64, 32), (80, 16), (10, 5)):
        qkv = draw(5, 9, size, dtype=dtype, device=device)
        angles = torch.arange(5)[:, None] * 0.7 ** torch.arange(half)
        tables = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
        slots = torch.tensor([27, 0, 5, 6, 13], device=device)
        both = partial(stored, rope_and_cache), partial(stored, ops.rope_and_cache)
        yield case(f"{size}, {2 * half} turn", *both, *qkv.split([5, 2, 2], 1), *tables, slots)


def argmaxes(dtype: torch.dtype, device: str = "cpu") -> Iterator[Case]:
    for size in (1, 1000, 4096, 9001):
        x = draw(3, size + 2, dtype=dtype, device=device)[:, 1 : size + 1]
        for name, given in (("", x), (" with equals", x.round()), (" with NaN", x.masked_fill(x > 2, torch.nan))):
            yield case(f"{size}{name}", alone(argmax), alone(ops.argmax), given)
    yield case("nothing is likely", alone(argmax), alone(ops.argmax), torch.full_like(x, -torch.inf))


def activations(dtype: torch.dtype, device: str = "cpu") -> Iterator[Case]:
    for activation in ("silu", "gelu", "gelu_tanh", "relu"):
        gate_up = draw(3, 2 * 1100 + 6, dtype=dtype, device=device)[:, :2200] * 4
        yield case(activation, alone(act_mul), alone(ops.act_mul), gate_up, activation)


CASES: Mapping[str, Callable[..., Iterator[Case]]] = {
    "flash_prefill": partial(attention, PROMPTS, prefilled),
    "flash_decode": partial(attention, DECODES, decoded),
    "kv_write": kv_writes,
    "rms_norm": rms_norms,
    "rope": ropes,
    "rope_and_cache": storing_ropes,
    "argmax": argmaxes,
    "act_mul": activations,
}
"""By the kernel's file, each called with a precision and a device."""
