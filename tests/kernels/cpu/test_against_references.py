"""Every kernel against its reference: an error at most twice the plain one's, both measured in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear.core.model import ops
from switchgear.kernels.cpu.elements import ELEMENTS
from switchgear.kernels.cpu.library import Library
from switchgear.kernels.cpu.linear import linear, pack

from .paged_attention import attend_paged, attend_prefill, attention_cases, prefill_cases

FOLDER = Path(__file__).resolve().parents[3] / "kernels" / "cpu"
NO_KERNELS = {
    "__init__",
    "build",
    "build_step",
    "elements",
    "library",
    "memory",
    "program",
    "recorder",
    "working_memory",
}
KERNELS = {
    path.stem: import_module(f"switchgear.kernels.cpu.{path.stem}")
    for path in sorted(FOLDER.glob("*.py"))
    if path.stem not in NO_KERNELS
}
LAST_DIGITS = {torch.bfloat16: 0, torch.float32: 2, torch.float64: 64}
"""Units in the last place of the largest result that are always allowed: the plain operation is exact now and then, and
in float64 it is itself what is measured against."""
NUM_ROWS = (1, 2, 3, 7, 8, 9, 16, 17, 33, 64)

Arguments = tuple[Any, ...]


def rms_norm_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    for num_rows, size in product((*NUM_ROWS, 300), (1, 7, 64, 577)):
        wide = random(num_rows, size + 3)
        for weight in (random(size), random(size).to(torch.promote_types(dtype, torch.float32))):
            yield random(num_rows, size), weight, 1e-5, None
            yield wide[:, 1 : size + 1], weight, 1e-6, random(num_rows, size)


def rope_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    for num_tokens, size, half in product((*NUM_ROWS, 200), (16, 64, 80), (8, 5)):
        qkv = random(num_tokens, 7, size)
        angles = torch.rand(num_tokens, half, generator=torch.Generator().manual_seed(0)) * 100
        for x in (qkv[:, :3], qkv[:, 3:5]):
            yield x, angles.cos().to(dtype), angles.sin().to(dtype)


def act_mul_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    for num_rows, size, activation in product((*NUM_ROWS, 200), (1, 31, 256), ("silu", "gelu", "gelu_tanh", "relu")):
        yield random(num_rows, 2 * size), activation
        yield random(num_rows, 2 * size) * 5, activation


def linear_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    sizes = ((1, 1), (16, 33), (48, 64), (50, 31), (100, 576), (97, 1537), (600, 48))
    for num_rows, (num_outputs, num_inputs) in product((*NUM_ROWS, 130), sizes):
        yield random(num_rows, num_inputs), random(num_outputs, num_inputs), random(num_outputs)
    yield random(9, 65)[:, 1:], random(33, 66)[:, 2:], None


def write_kv_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    for num_tokens, (num_heads, size) in product((*NUM_ROWS, 300), ((1, 13), (3, 64))):
        slots = torch.randperm(5 * 80, generator=torch.Generator().manual_seed(num_tokens))[:num_tokens]
        caches = random(80, 5, num_heads, size), random(80, 5, num_heads, size)
        yield (
            random(num_tokens, num_heads, size),
            random(num_tokens, 2 * num_heads, size)[:, num_heads:],
            *caches,
            slots,
        )


def rope_and_cache_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    for num_tokens, (size, half) in product((*NUM_ROWS, 200), ((13, 5), (64, 32), (80, 32))):
        q, k, v = torch.split(random(num_tokens, 13, size), [9, 2, 2], dim=1)
        angles = torch.rand(num_tokens, half, generator=torch.Generator().manual_seed(0)) * 100
        slots = torch.randperm(5 * 80, generator=torch.Generator().manual_seed(num_tokens))[:num_tokens]
        caches = random(80, 5, 2, size), random(80, 5, 2, size)
        yield q, k, v, angles.cos().to(dtype), angles.sin().to(dtype), *caches, slots


def argmax_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    for num_rows, size in product(NUM_ROWS, (1, 15, 16, 1023, 1024, 3001)):
        # of a narrow type many are equal; logits come as float32 at least
        x = random(num_rows, size + 3).to(torch.promote_types(dtype, torch.float32))
        yield (x[:, 1 : size + 1],)
        yield (x[:, :size].masked_fill(x[:, :size] > -1, -torch.inf),)
        yield (x[:, :size].masked_fill(x[:, :size] > 2, torch.nan),)


def top_k_cases(dtype: torch.dtype, random: Callable[..., torch.Tensor]) -> Iterator[Arguments]:
    for num_rows, size in product((1, 3, 17), (1, 7, 16, 17, 1000, 49152)):
        x = random(num_rows, size + 3).to(torch.promote_types(dtype, torch.float32))
        for k in sorted({min(k, size) for k in (1, 5, 20, 512, size)}):
            yield x[:, 1 : size + 1], k


CASES = {
    "rms_norm": rms_norm_cases,
    "rope": rope_cases,
    "act_mul": act_mul_cases,
    "linear": linear_cases,
    "decode_attention": attention_cases,
    "prefill_attention": prefill_cases,
    "write_kv": write_kv_cases,
    "rope_and_cache": rope_and_cache_cases,
    "argmax": argmax_cases,
    "top_k": top_k_cases,
}


def written(write: Callable[..., Any], *, heads_first: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A writer of KV as a function of what was there before: caches `[N, S, K, D]` to what they hold afterwards.

    heads_first: it writes caches `[N, K, S, D]`, as the references do.
    """

    def run(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *values, k_cache, v_cache, slots = arguments
        caches = k_cache.clone(), v_cache.clone()
        given = [cache.transpose(1, 2) for cache in caches] if heads_first else caches
        result = write(*values, *given, slots)
        return caches if result is None else (result, *caches)

    return run


def looked_up(top_k: Callable[..., Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Its values, and what stands at its places: which of equals it takes is open."""

    def run(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        values, places = top_k(x, k)
        return values, x.gather(-1, places)

    return run


KERNEL_CALLS: Mapping[str, Callable[..., Any]] = {
    "decode_attention": attend_paged,
    "prefill_attention": attend_prefill,
    "write_kv": written(KERNELS["write_kv"].write_kv),
    "rope_and_cache": written(KERNELS["rope_and_cache"].rope_and_cache),
    "top_k": looked_up(KERNELS["top_k"].top_k),
}
REFERENCE_CALLS: Mapping[str, Callable[..., Any]] = {
    "write_kv": written(ops.write_kv, heads_first=True),
    "rope_and_cache": written(ops.rope_and_cache, heads_first=True),
    "top_k": looked_up(ops.top_k),
}
"""How kernel and reference are called with the same arguments, where that is not just so."""


def packed_linear(library: Library) -> Callable[..., torch.Tensor]:
    return lambda x, weight, bias: linear(x, pack(weight, bias, library=library))


def in_float64(arguments: Arguments) -> Arguments:
    return tuple(
        each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in arguments
    )


def outputs_of(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def check(kernel: Callable[..., Any], name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    reference = REFERENCE_CALLS.get(name, getattr(ops, KERNELS[name].REFERENCE))
    for arguments in CASES[name](dtype, random):
        exact = outputs_of(reference(*in_float64(arguments)))
        plain, given = outputs_of(reference(*arguments)), outputs_of(kernel(*arguments))
        for wanted, one, other in zip(exact, plain, given, strict=True):
            assert other.dtype == one.dtype and other.shape == one.shape
            error, allowed = (float((each.double() - wanted).abs().max()) for each in (other, one))
            shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in arguments]
            always = LAST_DIGITS[dtype] * torch.finfo(dtype).eps * float(wanted.abs().max())
            assert error <= 2 * allowed + always, f"{name} {dtype} of {shapes}: {error:.3g}, plain {allowed:.3g}"


def test_every_kernel_names_its_reference_and_is_tried() -> None:
    assert set(KERNELS) == set(CASES) and len(KERNELS) >= 8
    for name, module in KERNELS.items():
        assert callable(getattr(ops, module.REFERENCE)), f"{name} has no reference"
        assert callable(getattr(module, name)), f"{name}.py has no launcher of its name"


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("name", sorted(set(CASES) - {"linear"}))
def test_a_kernel_errs_no_more_than_twice_its_reference(
    name: str, dtype: torch.dtype, num_threads: int, limited: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KERNELS[name], "native", lambda: limited)
    check(KERNEL_CALLS.get(name, getattr(KERNELS[name], name)), name, dtype)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("level", ["avx2", "avx512", "avx512_bf16", "amx_bf16"])
def test_a_linear_errs_no_more_than_twice_its_reference(
    level: str, dtype: torch.dtype, num_threads: int, library: Library
) -> None:
    limited = library.limited_to(level)
    if limited.level_name != level:
        pytest.skip(f"this processor has no {level}")
    check(packed_linear(limited), "linear", dtype)


@pytest.mark.slow
def test_a_linear_on_emulated_tiles_errs_no_more_than_twice_its_reference(emulated: Library) -> None:
    check(packed_linear(emulated), "linear", torch.bfloat16)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_an_activation_stays_finite_far_out(activation: str, dtype: torch.dtype, library: Library) -> None:
    gate = torch.tensor([[-1e4, -300.0, -88.0, -0.0, 0.0, 88.0, 300.0, 1e4, -20.0, 20.0]], dtype=dtype)
    gate_up = torch.cat([gate, torch.ones_like(gate)], dim=1)
    exact = ops.act_mul(gate_up.double(), activation)
    given = KERNELS["act_mul"].act_mul(gate_up, activation)
    torch.testing.assert_close(given.double(), exact, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_what_is_no_number_stays_none(dtype: torch.dtype, library: Library) -> None:
    x = torch.ones(3, 40, dtype=dtype)
    x[1, 7] = torch.nan
    weight = torch.ones(20, 40, dtype=dtype)
    results = [linear(x, pack(weight)), KERNELS["rms_norm"].rms_norm(x, weight[0], 1e-5)[0]]
    results += [KERNELS["act_mul"].act_mul(x, activation) for activation in ("silu", "gelu", "gelu_tanh", "relu")]
    results.append(KERNELS["rope"].rope(x.view(3, 2, 20), weight[:3, :10].contiguous(), weight[:3, :10].contiguous()))
    for result in results:
        assert result[1].isnan().any()
        assert result[0].isfinite().all() and result[2].isfinite().all()
