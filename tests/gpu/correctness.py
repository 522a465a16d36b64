"""Every Triton kernel against its reference on the device, and steps of a graph against the same ones launched."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from switchgear.core.model import ops
from switchgear.kernels import triton

from ..kernels.triton.cases import CASES
from .figures import Figure
from .hardware import Hardware
from .random_llama import BLOCK_SIZE, assembled
from .steps import batch_of

FILES = sorted(path.stem for path in Path(triton.__path__[0]).glob("*.py") if not path.name.startswith("_"))
SLACK = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""What is allowed on top of twice the reference's own error, for results of size 1."""
SECTION = "correctness"


def correctness(hardware: Hardware) -> Iterator[Figure]:
    yield from kernels(hardware)
    yield from replays(hardware)


def kernels(hardware: Hardware) -> Iterator[Figure]:
    """Of each file the largest error, in parts of what is allowed."""
    for file in FILES:
        reference = getattr(importlib.import_module(f"switchgear.kernels.triton.{file}"), "REFERENCE", "")
        if file not in CASES or not callable(getattr(ops, reference, None)):
            yield Figure(SECTION, f"{file} has no cases or no reference", 0, "", is_wrong=True)
            continue
        for dtype in (torch.float32,) if hardware.is_small else SLACK:
            worst, where = 0.0, ""
            # each case is a kernel to compile, which takes longer than to run it: all of them in one precision
            count = None if dtype == torch.bfloat16 else 2
            for case in islice(CASES[file](dtype, hardware.type), count):
                off = error_of(case, dtype)
                if not off <= worst:
                    worst, where = off, f" ({case.name})"
            point = f"{file}, {dtype}".replace("torch.", "") + (where if not worst <= 1 else "")
            yield Figure(SECTION, point, worst, "of the allowed error", is_wrong=not worst <= 1)


def error_of(case: Any, dtype: torch.dtype) -> float:
    """The largest error of a case, in parts of what is allowed; not a number if a result is none."""
    worst = 0.0
    for given, naive, exact in zip(case.kernel(), case.naive(), case.exact(), strict=True):
        if given.dtype != naive.dtype or given.shape != naive.shape:
            return float("nan")
        off, naive_off = ((x.double() - exact.double()).abs().max().item() for x in (given, naive))
        part = off / (2 * naive_off + SLACK[dtype])
        worst = part if not part <= worst else worst
    return worst


def replays(hardware: Hardware) -> Iterator[Figure]:
    """Logits of decode steps, replayed with padding and for several contexts, against the same step launched."""
    small = Hardware(hardware.device, is_small=True)
    parts = assembled(small, (1, 3), max_model_len=64, num_kv_tokens=256, max_num_seqs=3)
    parts.engine.start()
    executor: Any = parts.engine.executor
    worst = 0.0
    for step, (num_rows, context) in enumerate([(2, 9), (3, 50), (1, 64)]):
        batch = batch_of(num_rows, 1, context, BLOCK_SIZE, step=step)
        launched = executor.worker.run(batch).logits
        replayed = executor.collect(executor.submit(batch)).logits
        off = (replayed - launched).abs().max().item() / launched.abs().max().item()
        worst = off if not off <= worst else worst
    if executor.stats()["captured_steps"] != 3:
        yield Figure(SECTION, "steps that should have been replayed were not", 0, "", is_wrong=True)
    # the same kernels, but for the number of parts of a context and the rows beside
    allowed = 2e-2 if hardware.dtype == torch.bfloat16 else 1e-4
    yield Figure(
        SECTION, "decode steps replayed", worst / allowed, "of the allowed error", is_wrong=not worst <= allowed
    )
    parts.engine.close()
