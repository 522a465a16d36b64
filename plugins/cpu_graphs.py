"""The decode step on a CPU, recorded once for each number of rows and then replayed in one native call.

Buys what Python takes to call each kernel and the threads to start for it: at few rows a third of the step. Costs two
steps of twice the time for each number of rows that comes often, and a little memory.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from ..core.config import PluginConfig
from ..core.errors import PluginError
from ..core.hooks import hookimpl
from ..core.interfaces import CapturableWorker, Control, EngineHandle, Executor, capturable_worker
from ..core.records import NO_ROWS, TOKEN_EQUAL, Batch, IntArray, Refusal, StepOutput

if TYPE_CHECKING:
    import torch

    from ..kernels.cpu.recorder import Recording
    from ..kernels.cpu.working_memory import Pieces

LEAST_WIDTH = 64
"""Blocks of the narrowest recorded block table; each next one is twice as wide."""
NOT_SEEN = (
    "something in the step is neither a native kernel nor an operation of PyTorch, or goes by numbers of the host, so "
    "that replayed steps compute other logits"
)


class CPUGraphs:
    """Decode steps recorded once and replayed in one native call, without the Python between their kernels."""

    name = "cpu_graphs"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ("flash_attention",)
    conflicts: tuple[str, ...] = ()
    hook_api = (1, 0)

    class Config(PluginConfig):
        record_after: Annotated[int, msgspec.Meta(ge=0)] = 16
        """Steps of as many rows that run before one is recorded, since recording costs what so many replays save."""
        max_graphs: Annotated[int, msgspec.Meta(ge=1)] = 256
        """Recorded steps that are kept, each for a number of rows and width of tables; the longest unused one goes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.executor: RecordedExecutor | None = None

    @staticmethod
    def unavailable() -> str:
        """Why this machine cannot run it, with the remedy; empty if it can."""
        from ..kernels.cpu.library import lack

        return lack()

    @hookimpl
    def execute(self, inner: Executor) -> RecordedExecutor | Refusal:
        worker = capturable_worker(inner)
        if worker is None:
            return Refusal(("recorded steps need a worker in this process, and no wrapper of `execute` before them",))
        of_device = f"native kernels are recorded, and those are for the CPU, not for {worker.device.type}"
        reasons = (
            *filter(None, (self.unavailable(),)),
            *((of_device,) if worker.device.type != "cpu" else ()),
            *worker.uncapturable(),
        )
        if reasons:
            return Refusal(reasons)
        self.executor = RecordedExecutor(inner, worker, self.config)
        return self.executor

    @hookimpl
    def control(self, engine: EngineHandle) -> Control | None:
        return self

    def commands(self) -> Mapping[str, Callable[..., object]]:
        return {}

    def stats(self) -> Mapping[str, float]:
        return self.executor.stats() if self.executor else {}


@dataclass(slots=True)
class Graph:
    """A recorded step: the tensors that it reads, and how to compute it from them again."""

    inputs: Any
    recording: Recording
    num_replays: int = 0

    @property
    def is_due(self) -> bool:
        """Whether this replay is computed anew as well: the first, the second, the fourth and so on."""
        return self.num_replays & (self.num_replays - 1) == 0


class RecordedExecutor:
    """Replays decode steps of numbers of rows that come often; all others go to the executor inside."""

    def __init__(self, inner: Executor, worker: CapturableWorker, config: CPUGraphs.Config) -> None:
        self.inner = inner
        self.worker = worker
        self.config = config
        self.kv_spec = inner.kv_spec
        self.max_in_flight = inner.max_in_flight
        often = f"once it came {config.record_after} times" if config.record_after else "from its second time on"
        self.reason = f"decode steps, each number of rows {often}; other steps without"
        self.max_width = -(-worker.limits.max_model_len // worker.block_size)
        self.pieces: Pieces | None = None
        self.graphs: dict[tuple[int, ...], Graph] = {}
        """By `key_of` their steps; what was used last stands last."""
        self.num_seen: Counter[tuple[int, ...]] = Counter()
        """Steps that ran as they are, of those that have no graph."""
        self.results: dict[int, Callable[[], StepOutput]] = {}
        self.num_replayed = self.num_recorded = self.num_eager = 0
        self.is_off = False
        """After a replay that gave something else than the step itself."""

    def start(self) -> None:
        self.inner.start()

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        from ..kernels.cpu.memory import Arena
        from ..kernels.cpu.working_memory import Pieces

        self.inner.allocate(num_blocks)
        self.pieces = Pieces(Arena())
        self.graphs.clear()  # of KV that was there before
        self._try()

    def _try(self) -> None:
        """Record a step and check others by it, in KV that nobody has yet, so that what cannot work is told now."""
        from ..kernels.cpu.recorder import NotRecordable

        batches = [self._widened(self._token_at(position)) for position in range(min(3, self.worker.block_size))]
        # what kernels and plugins make when they first run is not of the recording
        self.inner.collect(self.inner.submit(batches[0]))
        try:
            for batch in (*batches, *batches):
                self._decode(batch, key_of(batch))
        except NotRecordable as reason:
            raise PluginError(f"plugin 'cpu_graphs' cannot record a step: {reason}; switch it off") from reason
        if self.is_off:
            raise PluginError(f"plugin 'cpu_graphs' cannot replay a step: {NOT_SEEN}; switch it off")
        for graph in self.graphs.values():
            graph.num_replays = 0
        self.num_replayed = 0

    def _token_at(self, position: int) -> Batch:
        """A step of one row with a token at a position of the first block."""
        nothing, groups = np.zeros(1, dtype=np.int64), len(self.kv_spec)
        position = min(position, self.worker.limits.max_model_len - 1)
        return Batch(
            step=-1,
            rows=nothing,
            token_ids=nothing,
            positions=nothing + position,
            query_start=np.arange(2),
            context_lens=nothing + position + 1,
            num_drafts=nothing,
            block_tables=(nothing[None],) * groups,
            slots=(nothing + position,) * groups,
            block_size=self.worker.block_size,
            copies=(),
            outputs=nothing,
            scored=NO_ROWS,
            targets=NO_ROWS,
        )

    def submit(self, batch: Batch) -> int:
        logits = self._replayed(batch) if batch.is_plain_decode and not self.is_off else None
        if logits is not None:
            self.results[batch.step] = partial(StepOutput, self._outputs(batch, logits))
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
            "replayed_steps": self.num_replayed,
            "recorded_steps": self.num_recorded,
            "eager_steps": self.num_eager,
            "graphs": len(self.graphs),
            "working_bytes": self.pieces.num_bytes if self.pieces else 0,
            "is_off": self.is_off,
        }

    def _outputs(self, batch: Batch, logits: torch.Tensor) -> torch.Tensor:
        import torch

        return logits if len(batch.outputs) == len(logits) else logits[torch.from_numpy(batch.outputs)]

    def _replayed(self, batch: Batch) -> torch.Tensor | None:
        """Logits of every row; None for a step that is not worth recording yet, or turns out to be none that can be."""
        batch = self._widened(batch)
        key = key_of(batch)
        is_new = key not in self.graphs
        if is_new and self.num_seen[key] < self.config.record_after:
            self.num_seen[key] += 1
            return None
        try:
            return self._decode(batch, key)
        except Exception as reason:
            if not is_new:
                raise
            # what fails without a recording as well is raised by the step itself
            self._turn_off(f"{type(reason).__name__}: {reason}")
            return None

    def _turn_off(self, reason: str) -> None:
        logging.getLogger(__name__).error("cpu_graphs replays no more steps: %s", reason)
        self.is_off = True

    def _decode(self, batch: Batch, key: tuple[int, ...]) -> torch.Tensor:
        """Logits of every row, from a step whose tables have one of few widths, and its `key_of`."""
        import torch

        from ..core.model.refill import refill

        with torch.inference_mode():
            step = self.worker.prepare(batch)
            graph = self.graphs.pop(key, None)
            if graph is None:
                graph, logits = self._record(batch, step)
            else:
                refill(graph.inputs, step)
                if graph.num_replays == 0 and self.pieces is not None:
                    self.pieces.spoil()
                logits = graph.recording.replay()
                self.num_replayed += 1
                graph.num_replays += 1
                if graph.is_due:
                    logits = self._checked(step, logits)
            self.graphs[key] = graph
            return logits

    def _widened(self, batch: Batch) -> Batch:
        return replace(batch, block_tables=tuple(widened(table, self.max_width) for table in batch.block_tables))

    def _record(self, batch: Batch, step: Any) -> tuple[Graph, torch.Tensor]:
        from ..core.model.refill import refill
        from ..kernels.cpu.recorder import record

        assert self.pieces is not None, "allocate comes before submit"
        if len(self.graphs) >= self.config.max_graphs:
            dropped = next(iter(self.graphs))
            del self.graphs[dropped], self.num_seen[dropped]
        # of its own, since what a step brings is the scheduler's; what is chosen by a context serves any shorter one
        inputs = copy.deepcopy(self.worker.prepare(self._longest(batch)))
        refill(inputs, step)
        recording, logits = record(partial(self._logits, inputs), self.pieces)
        self.num_recorded += 1
        return Graph(inputs, recording), logits

    def _longest(self, batch: Batch) -> Batch:
        """The step with the longest contexts that its tables have room for."""
        width = min(table.shape[1] for table in batch.block_tables)
        context_lens = np.full_like(batch.context_lens, min(width * batch.block_size, self.worker.limits.max_model_len))
        return replace(batch, positions=context_lens - 1, context_lens=context_lens, copies=())

    def _logits(self, inputs: Any) -> torch.Tensor:
        return self.worker.logits(self.worker.forward(inputs))

    def _checked(self, step: Any, replayed: torch.Tensor) -> torch.Tensor:
        """The logits of a step that was replayed, by computing it anew; they are the same to the last bit."""
        import torch

        logits = self._logits(step)
        if not torch.equal(logits.view(torch.uint8), replayed.view(torch.uint8)):
            self._turn_off(NOT_SEEN)
        return logits


def key_of(batch: Batch) -> tuple[int, ...]:
    """What the shapes of a decode step's tensors follow from: rows, threads that share its work, widths of tables."""
    import torch

    return len(batch.rows), torch.get_num_threads(), *(table.shape[1] for table in batch.block_tables)


def widened(table: IntArray, max_width: int) -> IntArray:
    """A block table in one of few widths; what stands right of it is read by nobody."""
    num_rows, width = table.shape
    wide = min(max(LEAST_WIDTH, 1 << (width - 1).bit_length()), max_width)
    if wide <= width:
        return np.ascontiguousarray(table)
    result = np.zeros((num_rows, wide), dtype=table.dtype)
    result[:, :width] = table
    return result
