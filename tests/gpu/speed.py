"""How near the device's limits: what it can do at all, then decode and prefill of a model of Llama-3.1-8B's shape.

The floors are those of `core/lab/work.py`: the bytes that a step must read and the products that it must compute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from switchgear.core.lab.ceilings import Ceilings
from switchgear.core.lab.work import StepShape, step_work
from switchgear.core.model.spec import ModelSpec
from switchgear.core.records import Batch
from switchgear.core.sampling_params import SamplingParams

from .figures import Figure
from .hardware import Hardware
from .random_llama import BLOCK_SIZE, assembled, llama_spec
from .steps import batch_of

DECODES = ((1, 1024), (8, 1024), (32, 1024), (64, 2048))
"""Rows, and tokens in the context of each."""
PREFILLS = (512, 1024, 2048, 4096, 8192)
SMALL_DECODES, SMALL_PREFILLS = ((1, 20), (2, 20)), (5,)
DECODE_GOAL, PREFILL_GOAL = 0.8, 0.6
FLOOR = "floor"


# -- what the device can do -----------------------------------------------------------------------------------------


def measured_ceilings(hardware: Hardware) -> Ceilings:
    """Reading a buffer far larger than the caches, and large products in the model's precision; the best of each."""
    shapes = ((64, 64, 64),) if hardware.is_small else ((8192, 8192, 8192), (4096, 14336, 4096), (8192, 4096, 28672))
    return Ceilings(read_bytes_per_s(hardware), max(product_flops_per_s(hardware, *shape) for shape in shapes))


def read_bytes_per_s(hardware: Hardware) -> float:
    buffer = hardware.random(1 << 14, 1 << 6) if hardware.is_small else hardware.random(1 << 20, 1 << 12)
    vector, whole = hardware.random(buffer.shape[1]), buffer.view(torch.int32)
    readers: tuple[Callable[[], object], ...] = (
        lambda: torch.linalg.vector_norm(buffer),
        lambda: torch.mv(buffer, vector),
        lambda: whole.amax(),
        lambda: buffer.sum(),
    )
    return buffer.nbytes / min(map(hardware.seconds, readers))


def product_flops_per_s(hardware: Hardware, num_rows: int, num_inputs: int, num_outputs: int) -> float:
    left, right = hardware.random(num_rows, num_inputs), hardware.random(num_outputs, num_inputs)
    seconds = hardware.seconds(lambda: torch.nn.functional.linear(left, right))
    return 2 * num_rows * num_inputs * num_outputs / seconds


def ceilings(found: Ceilings) -> Iterator[Figure]:
    yield Figure("ceilings", "read bandwidth", found.bytes_per_s / 1e12, "TB/s")
    yield Figure("ceilings", "product", found.flops_per_s / 1e12, "TFLOP/s")


# -- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """A running engine, and what its steps could take at least."""

    hardware: Hardware
    spec: ModelSpec
    engine: Any
    ceilings: Ceilings

    @property
    def executor(self) -> Any:
        return self.engine.executor

    def floor(self, num_rows: int, num_new: int, num_before: int) -> float:
        """Seconds."""
        shape = StepShape(num_rows, num_new, num_before)
        return self.ceilings.seconds(step_work(self.spec, self.hardware.dtype.itemsize, shape))

    def run(self, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = self.executor.collect(self.executor.submit(batch)).logits
        return logits


def start_model(hardware: Hardware, ceilings: Ceilings) -> Model:
    """The KV holds the largest decode point."""
    decodes, prefills = points_of(hardware)
    num_kv_tokens = max(num_rows * (context + BLOCK_SIZE) for num_rows, context in decodes)
    sizes = tuple(num_rows for num_rows, _ in decodes)
    longest = max(*prefills, *(context for _, context in decodes)) + 4 * BLOCK_SIZE
    parts = assembled(hardware, sizes, longest, max(num_kv_tokens, longest))
    parts.engine.start()
    return Model(hardware, llama_spec(hardware), parts.engine, ceilings)


def points_of(hardware: Hardware) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    return (SMALL_DECODES, SMALL_PREFILLS) if hardware.is_small else (DECODES, PREFILLS)


def decode(model: Model) -> Iterator[Figure]:
    """The whole step as the host waits for it, the replay alone, and the same step launched kernel by kernel."""
    hardware, executor = model.hardware, model.executor
    for num_rows, context in points_of(hardware)[0]:
        batch, point = batch_of(num_rows, 1, context, BLOCK_SIZE), f"{num_rows} x {context}"
        floor = model.floor(num_rows, 1, context - 1)
        before = executor.stats()["captured_steps"]
        waits = [hardware.seconds_waited(partial(model.run, batch)) for _ in range(1 if hardware.is_small else 40)]
        assert executor.stats()["captured_steps"] == before + len(waits), "a decode step was not replayed"
        seconds = float(np.median(waits))
        yield Figure("decode", point, seconds * 1e3, "ms a step", floor / seconds, FLOOR, DECODE_GOAL)
        yield Figure("decode", point, num_rows / seconds, "tokens/s")
        graph = executor.graphs[min(size for size in executor.sizes if size >= num_rows)]
        replay = hardware.seconds(graph.recording.replay)
        yield Figure("decode", f"{point}, the replay alone", replay * 1e3, "ms", floor / replay, FLOOR)
        launched = hardware.seconds(partial(executor.worker.run, batch), 5)
        yield Figure("decode", f"{point}, without a graph", launched * 1e3, "ms", floor / launched, FLOOR)


def prefill(model: Model) -> Iterator[Figure]:
    for length in points_of(model.hardware)[1]:
        batch = batch_of(1, length, length, BLOCK_SIZE)
        seconds = model.hardware.seconds(partial(model.run, batch), 5)
        floor = model.floor(1, length, 0)
        yield Figure("prefill", str(length), seconds * 1e3, "ms", floor / seconds, FLOOR, PREFILL_GOAL)
        yield Figure("prefill", str(length), length / seconds, "tokens/s")


def whole_engine(model: Model) -> Iterator[Figure]:
    """Scheduling and sampling included: requests through the engine, by the steps in which all of them decode."""
    hardware, engine = model.hardware, model.engine
    num_steps, prompt_len = (2, 3) if hardware.is_small else (48, 1000)
    params = SamplingParams(max_tokens=num_steps + 2, temperature=0, ignore_eos=True)
    for num_rows in (points_of(hardware)[0][0][0], points_of(hardware)[0][-1][0]):
        prompts = np.random.default_rng(num_rows).integers(0, model.spec.vocab_size, (num_rows, prompt_len))
        for index, prompt in enumerate(prompts):
            engine.add(f"request {index}", prompt, params)
        waits = []
        while engine.has_work:
            rows, tokens = engine.step_rows, engine.step_tokens
            start = time.perf_counter()
            emissions = engine.step()
            seconds = time.perf_counter() - start
            assert not any(emission.error for emission in emissions), emissions
            if engine.step_rows - rows == engine.step_tokens - tokens == num_rows:
                waits.append(seconds)
        floor, seconds = model.floor(num_rows, 1, prompt_len + num_steps // 2), float(np.median(waits))
        yield Figure("engine", f"{num_rows} x {prompt_len}", num_rows / seconds, "tokens/s", floor / seconds, FLOOR)
