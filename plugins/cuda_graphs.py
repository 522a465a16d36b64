"""The decode step as CUDA graphs: recorded once for some numbers of rows, then replayed with other numbers in place.

Buys what the host takes to launch each kernel, which at few rows is longer than the kernels run. Costs the memory of
the graphs, a moment at start to record them, and the rows of padding up to the next recorded number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import numpy as np

from ..core.config import PluginConfig
from ..core.engine.cuda import NoGPU, first_gpu
from ..core.errors import PluginError
from ..core.hooks import hookimpl
from ..core.interfaces import CapturableWorker, Control, EngineHandle, Executor, capturable_worker
from ..core.records import NO_ROWS, TOKEN_EQUAL, Batch, IntArray, Needs, Refusal, StepOutput

if TYPE_CHECKING:
    import torch

NO_ROW = -1
"""Of what fills a step up to a recorded number of rows."""
NUM_WARM_UPS = 2
"""Runs before a recording, in which kernels are compiled and libraries get their working memory."""


class CudaGraphs:
    """Decode steps recorded as CUDA graphs and replayed, so that the host launches one thing instead of hundreds."""

    name = "cuda_graphs"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ("flash_attention",)
    conflicts: tuple[str, ...] = ()
    hook_api = (1, 0)

    class Config(PluginConfig):
        batch_sizes: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
        """Numbers of rows that a graph is recorded for; by default 1, 2, 4, then in eights up to `max_num_seqs`."""
        memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 1 << 29
        """Bytes that the graphs may take, which come off `[engine] kv_bytes`; more is an error."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.executor: GraphedExecutor | None = None

    @staticmethod
    def unavailable() -> str:
        """Why this machine cannot run it; empty if it can."""
        try:
            first_gpu()
        except NoGPU as reason:
            return f"CUDA graphs need a CUDA device: {reason}"
        return ""

    def make_recorder(self) -> Recorder:
        return CudaRecorder()

    @hookimpl
    def execute(self, inner: Executor) -> GraphedExecutor | Refusal:
        worker = capturable_worker(inner)
        if worker is None:
            return Refusal(("CUDA graphs need a worker in this process, and no wrapper of `execute` before them",))
        reasons = (*self._reasons_of(worker.device.type), *worker.uncapturable())
        if reasons:
            return Refusal(reasons)
        most = worker.limits.max_num_seqs
        sizes = tuple(sorted(set(self.config.batch_sizes))) or default_sizes(most)
        if sizes[-1] > most:
            raise PluginError(
                f"[plugins.cuda_graphs] batch_sizes holds {sizes[-1]}, and at most {most} sequences run at once: "
                "leave it out, or raise [engine] max_num_seqs"
            )
        self.executor = GraphedExecutor(inner, worker, self.make_recorder, sizes, self.config.memory_bytes)
        return self.executor

    def _reasons_of(self, device: str) -> tuple[str, ...]:
        if device == "cuda":
            return ()
        return (self.unavailable() or f"CUDA graphs need a CUDA device, and [model] device is {device}",)

    @hookimpl
    def control(self, engine: EngineHandle) -> Control | None:
        return self

    def commands(self) -> Mapping[str, Callable[..., object]]:
        return {}

    def stats(self) -> Mapping[str, float]:
        return self.executor.stats() if self.executor else {}


def default_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24 and on, so that from 64 rows on at most an eighth is padding; the last is `most`."""
    sizes, size = [1, 2, 4], 8
    while size < most:
        sizes.append(size)
        size += max(8, 1 << (size.bit_length() - 4))
    return (*(size for size in sizes if size < most), most)


# -- recording ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recording:
    """What was computed once, and how to compute it again in the same memory."""

    output: torch.Tensor
    replay: Callable[[], object]


class Recorder(Protocol):
    """Records calls. What they read and write keeps its place; a tensor made in a call may be overwritten by others."""

    def record(self, call: Callable[[], torch.Tensor]) -> Recording: ...

    def num_bytes(self) -> int:
        """Memory that all recordings take."""
        ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.free_before: int | None = None
        """Once kernels are loaded, which happens in the first run and would happen without graphs as well."""

    def _free(self) -> int:
        self.cuda.synchronize()
        self.cuda.empty_cache()
        return self.cuda.mem_get_info()[0]

    def record(self, call: Callable[[], torch.Tensor]) -> Recording:
        self.stream.wait_stream(self.cuda.current_stream())
        with self.cuda.stream(self.stream):
            for _ in range(NUM_WARM_UPS):
                call()
        self.cuda.current_stream().wait_stream(self.stream)
        if self.free_before is None:
            self.free_before = self._free()
        graph = self.cuda.CUDAGraph()
        with self.cuda.graph(graph, pool=self.pool, stream=self.stream):
            output = call()
        return Recording(output, graph.replay)

    def num_bytes(self) -> int:
        return max(0, (self.free_before or 0) - self._free())


# -- the executor ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Graph:
    """The step of one number of rows: what it reads, and the recording that reads it."""

    inputs: Any
    recording: Recording


class GraphedExecutor:
    """Replays decode steps of up to the largest recorded number of rows; all others go to the executor inside."""

    def __init__(
        self,
        inner: Executor,
        worker: CapturableWorker,
        make_recorder: Callable[[], Recorder],
        sizes: tuple[int, ...],
        memory_bytes: int,
    ) -> None:
        self.inner = inner
        self.worker = worker
        self.make_recorder = make_recorder
        self.sizes = sizes
        self.memory_bytes = memory_bytes
        self.kv_spec = inner.kv_spec
        self.max_in_flight = inner.max_in_flight
        self.reason = f"decode steps of up to {sizes[-1]} rows in {len(sizes)} graphs, other steps without"
        self.scratch: tuple[int, ...] = ()
        """Per group, the block where rows of padding keep their KV."""
        self.graphs: dict[int, Graph] = {}
        self.graph_bytes = 0
        self.results: dict[int, Callable[[], StepOutput]] = {}
        self.num_captured = self.num_eager = self.num_padded = 0

    def needs(self) -> Needs:
        """The graphs, and one block in each group."""
        block_bytes = self.worker.block_size * sum(group.bytes_per_token for group in self.kv_spec)
        return Needs(self.memory_bytes + block_bytes)

    def start(self) -> None:
        self.inner.start()

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        # one more than allocators know of
        self.scratch = num_blocks
        self.inner.allocate(tuple(count + 1 for count in num_blocks))
        self._record()

    def _record(self) -> None:
        """A graph for each number of rows; the largest first, whose memory the others then use."""
        import torch

        with torch.inference_mode():
            recorder = self.make_recorder()
            for size in reversed(self.sizes):
                inputs = self.worker.prepare(self._longest(size))
                self.graphs[size] = Graph(inputs, recorder.record(partial(self._logits, inputs)))
                self.graph_bytes = recorder.num_bytes()
                if self.graph_bytes > self.memory_bytes:
                    raise PluginError(
                        f"plugin 'cuda_graphs' took {self.graph_bytes} bytes for the graph of {size} rows and those "
                        f"above, and may take {self.memory_bytes}: raise its memory_bytes, or name smaller batch_sizes"
                    )

    def _logits(self, inputs: Any) -> torch.Tensor:
        return self.worker.logits(self.worker.forward(inputs))

    def submit(self, batch: Batch) -> int:
        if self._is_captured(batch):
            self.num_captured += 1
            output = self._replay(batch)
            self.results[batch.step] = lambda: output
        else:
            self.num_eager += 1
            self.results[batch.step] = partial(self.inner.collect, self.inner.submit(batch))
        return batch.step

    def collect(self, ticket: int) -> StepOutput:
        return self.results.pop(ticket)()

    def close(self) -> None:
        self.results.clear()
        self.graphs.clear()
        self.inner.close()

    def stats(self) -> Mapping[str, float]:
        return {
            "captured_steps": self.num_captured,
            "eager_steps": self.num_eager,
            "padded_rows": self.num_padded,
            "graphs": len(self.graphs),
            "graph_bytes": self.graph_bytes,
        }

    def _is_captured(self, batch: Batch) -> bool:
        return batch.is_plain_decode and len(batch.rows) <= self.sizes[-1]

    def _replay(self, batch: Batch) -> StepOutput:
        import torch

        from ..core.model.refill import refill

        num_rows = len(batch.rows)
        size = self.sizes[bisect_left(self.sizes, num_rows)]
        self.num_padded += size - num_rows
        graph = self.graphs[size]
        with torch.inference_mode():
            refill(graph.inputs, self.worker.prepare(self._padded(batch, size)))
            graph.recording.replay()
            logits = graph.recording.output
            # a copy, since the next replay writes into the same place
            if len(batch.outputs) == num_rows:
                return StepOutput(logits[:num_rows].clone())
            return StepOutput(logits[torch.from_numpy(batch.outputs).to(logits.device)])

    def _padded(self, batch: Batch, size: int) -> Batch:
        """The step with rows of one token behind it, all of whose KV is in the scratch blocks."""
        num_padded = size - len(batch.rows)
        if not num_padded:
            return replace(batch, outputs=np.arange(size))

        def filled(array: IntArray, value: int) -> IntArray:
            shape = (num_padded, *array.shape[1:])
            return np.concatenate([array, np.full(shape, value, dtype=array.dtype)])

        return replace(
            batch,
            rows=filled(batch.rows, NO_ROW),
            token_ids=filled(batch.token_ids, 0),
            positions=filled(batch.positions, 0),
            query_start=np.arange(size + 1),
            context_lens=filled(batch.context_lens, 1),
            num_drafts=filled(batch.num_drafts, 0),
            block_tables=tuple(map(filled, batch.block_tables, self.scratch)),
            slots=tuple(filled(slots, block * batch.block_size) for slots, block in self._with_scratch(batch.slots)),
            outputs=np.arange(size),
        )

    def _with_scratch(self, arrays: tuple[IntArray, ...]) -> Iterator[tuple[IntArray, int]]:
        return zip(arrays, self.scratch, strict=True)

    def _longest(self, size: int) -> Batch:
        """A step of so many rows with the longest context that there may be, all of it in the scratch blocks."""
        longest, block_size = self.worker.limits.max_model_len, self.worker.block_size
        width = -(-longest // block_size)
        return Batch(
            step=-1,
            rows=np.full(size, NO_ROW),
            token_ids=np.zeros(size, dtype=np.int64),
            positions=np.full(size, longest - 1),
            query_start=np.arange(size + 1),
            context_lens=np.full(size, longest),
            num_drafts=np.zeros(size, dtype=np.int64),
            block_tables=tuple(np.full((size, width), block) for block in self.scratch),
            slots=tuple(np.full(size, block * block_size) for block in self.scratch),
            block_size=block_size,
            copies=(),
            outputs=np.arange(size),
            scored=NO_ROWS,
            targets=NO_ROWS,
        )
