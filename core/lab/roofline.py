"""How near each point comes to what this machine allows, prefill and decode apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..model.spec import ModelSpec
from .ceilings import Bound, Ceilings, far_bytes, matrix_flops_per_s, read_bytes_per_s
from .machine import Machine
from .points import Point
from .raw import RawEngine
from .work import StepShape, Work, step_work, weight_bytes

MATRIX_DTYPES = ("bfloat16", "float32")
"""Measured on every machine, beside the model's own dtype."""

Stage = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the machine did when it was asked for nothing but reading and nothing but products."""

    far_bytes_per_s: float
    """Reading a buffer far larger than the caches."""
    weights_bytes_per_s: float
    """Reading one as large as the model's weights, of which a large cache may keep a part from step to step."""
    flops_per_s: dict[str, float]
    """Of large products, by dtype."""

    def ceilings(self, dtype: str) -> Ceilings:
        """Of a model in this dtype. A narrow one can be computed as float32, so the faster of the two counts."""
        is_narrow = getattr(torch, dtype).itemsize < 4
        rates = [self.flops_per_s[dtype], *([self.flops_per_s["float32"]] if is_narrow else [])]
        return Ceilings(max(self.far_bytes_per_s, self.weights_bytes_per_s), max(rates))

    def best(self, other: Measured) -> Measured:
        """A ceiling is the most that was ever seen."""
        return Measured(
            max(self.far_bytes_per_s, other.far_bytes_per_s),
            max(self.weights_bytes_per_s, other.weights_bytes_per_s),
            {dtype: max(rate, other.flops_per_s[dtype]) for dtype, rate in self.flops_per_s.items()},
        )


@dataclass(frozen=True, slots=True)
class Share:
    """One stage of a point: the least time it could take here, and what it took."""

    point: Point
    stage: Stage
    bound: Bound
    """What the machine's limit is made of."""
    limit_seconds: float
    seconds: float

    @property
    def share(self) -> float:
        return self.limit_seconds / self.seconds

    def table(self) -> dict[str, Any]:
        return {
            "num_requests": self.point.num_requests,
            "input_len": self.point.input_len,
            "output_len": self.point.output_len,
            "stage": self.stage,
            "bound": self.bound,
            "limit_seconds": self.limit_seconds,
            "seconds": self.seconds,
            "share": self.share,
        }


def measure_machine(machine: Machine, spec: ModelSpec, dtype: str) -> Measured:
    """Takes some seconds, and all of the machine. Size and dtype are those of a model."""
    itemsize: int = getattr(torch, dtype).itemsize
    return Measured(
        far_bytes_per_s=read_bytes_per_s(far_bytes(machine.cache_bytes, machine.memory_bytes)),
        weights_bytes_per_s=read_bytes_per_s(weight_bytes(spec, itemsize)),
        flops_per_s={name: matrix_flops_per_s(getattr(torch, name)) for name in dict.fromkeys((dtype, *MATRIX_DTYPES))},
    )


def measure_shares(
    engine: RawEngine, machine: Machine, points: Sequence[Point], num_runs: int
) -> tuple[Measured, list[Share]]:
    """The machine before and after, since its speed moves, and the points between; the best run of each counts.

    Decode is what a point takes longer than its own prompts with one token of output, so that a step in which some
    rows decode while others are still in their prompts is counted once.
    """
    dtype = engine.plan.dtype
    before = measure_machine(machine, engine.spec, dtype)
    seconds = {point: engine.measure(point, num_runs).best for point in stages_of(points)}
    measured = before.best(measure_machine(machine, engine.spec, dtype))
    ceilings, itemsize = measured.ceilings(dtype), getattr(torch, dtype).itemsize
    shares = []
    for point in points:
        prefill = seconds[point.prompts_only]
        shares.append(share_of(point, "prefill", ceilings, prefill_work(engine.spec, itemsize, point), prefill))
        if point.output_len > 1:
            decode = seconds[point] - prefill
            shares.append(share_of(point, "decode", ceilings, decode_work(engine.spec, itemsize, point), decode))
    return measured, shares


def stages_of(points: Sequence[Point]) -> list[Point]:
    """What has to run: each point, and before it the same prompts alone; nothing twice."""
    return list(dict.fromkeys(each for point in points for each in (point.prompts_only, point)))


def prefill_work(spec: ModelSpec, itemsize: int, point: Point) -> list[Work]:
    """The prompts in one step, which reads the weights once."""
    return [step_work(spec, itemsize, StepShape(point.num_requests, point.input_len))]


def decode_work(spec: ModelSpec, itemsize: int, point: Point) -> list[Work]:
    """Every later token in a step for all requests together."""
    lengths = range(point.input_len, point.sequence_len - 1)
    return [step_work(spec, itemsize, StepShape(point.num_requests, 1, length)) for length in lengths]


def share_of(point: Point, stage: Stage, ceilings: Ceilings, steps: Iterable[Work], seconds: float) -> Share:
    work = list(steps)
    total = sum(work, Work(0, 0))
    return Share(point, stage, ceilings.bound(total), sum(map(ceilings.seconds, work)), seconds)
