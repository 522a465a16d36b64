"""Everything off: the provider that answers a hook when no plugin does. Ordinary plugins, registered with `trylast`.

Static batching, one contiguous KV slot a sequence, eager attention, plain linears, a worker in this process. Torch is
imported when the model is built, as in any plugin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .config import Config
from .hooks import hookimpl
from .interfaces import KVCodec, TensorReader, Worker, WorkerFactory
from .records import (
    Audit,
    Batch,
    Device,
    IntArray,
    KVCache,
    LayerSpec,
    Limits,
    LinearSpec,
    Plan,
    Slots,
    StepOutput,
    StepView,
)
from .registry import Registry

if TYPE_CHECKING:
    import torch

    from .records import KVSpec


class StaticBatching:
    """Request-level batching: a batch is admitted when nothing runs, and runs until all of it has finished."""

    @hookimpl(trylast=True)
    def schedule_step(self) -> StaticBatching:
        return self

    def plan(self, view: StepView) -> Plan:
        count = view.num_running or len(view.rows)
        return Plan(order=view.rows[:count], num_tokens=view.num_pending[:count])


class ContiguousKV:
    """One slot of `max_model_len` tokens a sequence: nothing to look up, and most of it is never used."""

    @hookimpl(trylast=True)
    def allocate_kv(self, spec: KVSpec, block_size: int, num_blocks: int) -> ContiguousSlots:
        return ContiguousSlots(len(spec), block_size, num_blocks)

    def kv_block_size(self, limits: Limits) -> int:
        return limits.max_model_len


class ContiguousSlots:
    """A block is a whole slot, and every row holds exactly one, the same number in each group."""

    def __init__(self, num_groups: int, block_size: int, num_blocks: int) -> None:
        self.num_groups = num_groups
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.free = deque(range(num_blocks))
        self.slot_of: dict[int, int] = {}

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        if num_tokens > self.block_size:
            return None
        if row in self.slot_of:
            return Slots(((),) * self.num_groups)
        if not self.free:
            return None
        self.slot_of[row] = self.free.popleft()
        return Slots(((self.slot_of[row],),) * self.num_groups)

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        """Nothing is published."""

    def release(self, row: int) -> None:
        slot = self.slot_of.pop(row, None)
        if slot is not None:
            self.free.append(slot)

    def num_free(self) -> int:
        return len(self.free)

    def audit(self) -> Audit:
        everything = sorted([*self.free, *self.slot_of.values()])
        problems = () if everything == list(range(self.num_blocks)) else (f"slots lost or held twice: {everything}",)
        return Audit(self.num_blocks, len(self.free), len(self.slot_of), problems=problems)


class LocalExecution:
    """One worker in this process; a step has run when `submit` returns."""

    @hookimpl(trylast=True)
    def execute(self, workers: WorkerFactory) -> LocalExecutor:
        return LocalExecutor(workers())


class LocalExecutor:
    max_in_flight = 1

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.kv_spec = worker.kv_spec
        self.outputs: dict[int, StepOutput] = {}

    def start(self) -> None:
        self.worker.load()

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        self.worker.allocate(num_blocks)

    def submit(self, batch: Batch) -> int:
        self.outputs[batch.step] = self.worker.run(batch)
        return batch.step

    def collect(self, ticket: int) -> StepOutput:
        return self.outputs.pop(ticket)

    def close(self) -> None:
        self.outputs.clear()


class PlainLinears:
    """Weights as the checkpoint has them, in the model's dtype."""

    def __init__(self) -> None:
        self.embeddings: dict[str, torch.Tensor] = {}
        """By path, for the head that shares one."""

    @hookimpl(trylast=True)
    def quantize(self, spec: LinearSpec, device: Device) -> PlainRecipe:
        return PlainRecipe(device.dtype, self.embeddings, device.type)


@dataclass(slots=True)
class PlainRecipe:
    """`[rows, in]` and a product; for the embedding, a row look-up."""

    dtype: str
    embeddings: dict[str, torch.Tensor]
    device: str = "cpu"
    num_bytes: int = 0

    def load(self, reader: TensorReader, spec: LinearSpec) -> tuple[LinearSpec, torch.Tensor, torch.Tensor | None]:
        import torch

        dtype = getattr(torch, self.dtype)
        if spec.tied_to in self.embeddings:
            return spec, self.embeddings[spec.tied_to], None
        weight = reader.fused(spec, "weight", dtype).to(self.device)
        if spec.kind == "embedding":
            self.embeddings[spec.path] = weight
        bias = reader.fused(spec, "bias", dtype).to(self.device) if spec.has_bias else None
        self.num_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        return spec, weight, bias

    def linear(self, x: torch.Tensor, params: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        from .model import ops

        spec, weight, bias = params
        if spec.kind == "embedding":
            looked_up: torch.Tensor = weight[x]
            return looked_up if out is None else out.copy_(looked_up)
        return ops.linear(x, weight, bias, out)

    def report(self) -> Mapping[str, float]:
        return {"bytes": float(self.num_bytes)}


class NoCodec:
    """K and V are stored as computed."""

    @hookimpl(trylast=True)
    def kv_codec(self, device: Device) -> StoredAsComputed:
        return StoredAsComputed(device.dtype)


@dataclass(frozen=True, slots=True)
class StoredAsComputed:
    storage_dtype: str
    name: str = "none"

    def storage_size(self, head_size: int) -> int:
        return head_size

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def decode(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return x.to(dtype)


class EagerAttention:
    """Attention that gathers K and V and materialises the score matrix: the form every other one is checked against."""

    @hookimpl(trylast=True)
    def attention_impl(self, layer: LayerSpec, codec: KVCodec, device: Device) -> GatheredAttention:
        return GatheredAttention(layer, codec, device.type)


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows with the same number of queries, padded to the longest context among them."""

    tokens: torch.Tensor
    """`[B, Q]` indices into the step's tokens."""
    slots: torch.Tensor
    """`[B, L]` where K and V of each context position lie, from the first that a query of the row sees."""
    visible: torch.Tensor
    """`[B, Q, L]`"""


@dataclass(frozen=True, slots=True)
class GatheredAttention:
    layer: LayerSpec
    codec: KVCodec
    device: str = "cpu"
    layout: str = "NSKD"

    def plan(self, batch: Batch, group: int) -> tuple[torch.Tensor, list[Tile]]:
        from .model.placing import to_device

        tiles = [self._tile(batch, group, rows) for rows in self._tiles(batch)]
        return to_device(batch.slots[group], self.device), tiles

    def _tiles(self, batch: Batch) -> list[IntArray]:
        """Row numbers of each tile: equal query lengths, and a bounded score matrix where more than one row is in."""
        query_lens, tiles = batch.query_lens, []
        for length in np.unique(query_lens):
            rows = np.flatnonzero(query_lens == length)
            rows = rows[np.argsort(batch.context_lens[rows], kind="stable")]
            longest = int(batch.context_lens[rows[-1]] - self._first_seen(batch.context_lens[rows[-1:]], length)[0])
            height = max(1, MAX_SCORES // (self.layer.num_heads * int(length) * longest))
            tiles += [rows[start : start + height] for start in range(0, len(rows), height)]
        return tiles

    def _tile(self, batch: Batch, group: int, rows: IntArray) -> Tile:
        from .model.ops import size_above
        from .model.placing import to_device

        context_lens = batch.context_lens[rows]
        num_queries = int(batch.query_lens[rows[0]])
        tokens = batch.query_start[rows][:, None] + np.arange(num_queries)
        # from the first position that a query sees: the blocks before it may be another row's by now
        first = self._first_seen(context_lens, num_queries)
        # of few sizes, as linears are: torch keeps code for each that it meets
        positions = first[:, None] + np.arange(size_above(int((context_lens - first).max())))
        # padding reads the row's own last position: stale memory could hold a NaN, and 0 * NaN is NaN
        inside = np.minimum(positions, context_lens[:, None] - 1)
        blocks = np.take_along_axis(batch.block_tables[group][rows], inside // batch.block_size, axis=1)
        slots = blocks * batch.block_size + inside % batch.block_size
        queries = (context_lens[:, None] - num_queries + np.arange(num_queries))[:, :, None]
        visible = positions[:, None, :] <= queries
        if self.layer.window is not None:
            visible &= positions[:, None, :] > queries - self.layer.window
        return Tile(*(to_device(array, self.device) for array in (tokens, slots, visible)))

    def _first_seen(self, context_lens: IntArray, num_queries: int) -> IntArray:
        """The first position that the last `num_queries` tokens of each context see."""
        window = self.layer.window
        return np.zeros_like(context_lens) if window is None else (context_lens - num_queries - window + 1).clip(min=0)

    def write(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, meta: tuple[torch.Tensor, list[Tile]]) -> None:
        slots, _ = meta
        cache.k.flatten(0, 1)[slots] = self.codec.encode(k)
        cache.v.flatten(0, 1)[slots] = self.codec.encode(v)

    def forward(
        self, q: torch.Tensor, cache: KVCache, meta: tuple[torch.Tensor, list[Tile]], out: torch.Tensor
    ) -> None:
        from .model import ops

        k_slots, v_slots = cache.k.flatten(0, 1), cache.v.flatten(0, 1)
        for tile in meta[1]:
            k = self.codec.decode(k_slots[tile.slots], q.dtype)
            v = self.codec.decode(v_slots[tile.slots], q.dtype)
            out[tile.tokens] = ops.attention(q[tile.tokens], k, v, tile.visible, self.layer.scale, self.layer.soft_cap)


MAX_SCORES = 1 << 25
"""Elements of one tile's score matrix, where it holds more than one row: 128 MB of float32."""

DEFAULTS: tuple[type, ...] = (
    StaticBatching,
    ContiguousKV,
    LocalExecution,
    PlainLinears,
    NoCodec,
    EagerAttention,
)


def make_registry(config: Config, classes: tuple[type, ...] = ()) -> Registry:
    """The plugins of a config over the defaults, newly built: processes and engines share no instance."""
    return Registry(config.plugins, [default() for default in DEFAULTS], classes)
