"""What a hook returns: one protocol for each, with its hot methods and what is safe when.

`hooks.py` says when each is asked for and who may answer; this file says what the answer can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, runtime_checkable

from .records import (
    Audit,
    BoolArray,
    Decision,
    Device,
    Draft,
    DraftView,
    Event,
    Hit,
    IngressAnswer,
    IngressRequest,
    IntArray,
    KVCache,
    KVSpec,
    Limits,
    LinearSpec,
    Needs,
    Outcome,
    Plan,
    PoolView,
    Slots,
    StepOutput,
    StepView,
)
from .sampling_params import Structure

if TYPE_CHECKING:
    import torch

    from .records import Batch


# -- gateway process ------------------------------------------------------------------------------------------------


@runtime_checkable
class IngressStage(Protocol):
    """One stage of the chain every request passes. `leave` runs exactly once for each request that entered."""

    async def enter(self, request: IngressRequest) -> IngressAnswer: ...

    def leave(self, request: IngressRequest, outcome: Outcome) -> None: ...


@runtime_checkable
class Router(Protocol):
    """Picks a pool. `pick` is pure given what `observe` told it, and never polls."""

    def pick(self, request: IngressRequest, pools: tuple[PoolView, ...]) -> Decision | None: ...

    def observe(self, event: Event) -> None: ...


# -- engine process: scheduling -------------------------------------------------------------------------------------


@runtime_checkable
class Policy(Protocol):
    """Decides who may run, and in which order.

    Offer everybody who may, with whole pending counts: modifiers choose among them, and the core fits what is left to
    slots, budget and KV.
    """

    def plan(self, view: StepView) -> Plan: ...


@runtime_checkable
class Modifier(Protocol):
    """Reorders or lowers a plan; what it adds or raises is clamped away."""

    def revise(self, plan: Plan, view: StepView) -> Plan: ...


# -- engine process: KV ---------------------------------------------------------------------------------------------


@runtime_checkable
class KVAllocator(Protocol):
    """Owns which row holds which block. Block numbers are per group and count from 0.

    The core calls it from one thread. It never preempts: the core picks the victim and releases it.
    """

    def grow(self, row: int, num_tokens: int) -> Slots | None:
        """Make room for `num_tokens` tokens in all, all or nothing; None means no room and changes nothing.

        Repeating a call is harmless. A block that is shared and will be written is listed in `copies`.
        """
        ...

    def commit(self, row: int, num_tokens: int, keys: tuple[bytes, ...]) -> None:
        """The row's first `num_tokens` tokens are computed and accepted.

        `keys` holds one key for each full block among them, or nothing where no provider asked for keys.
        """
        ...

    def release(self, row: int) -> None:
        """Give back all the row holds. Releasing an unknown row does nothing."""
        ...

    def num_free(self) -> int:
        """Blocks that `grow` could take now, evictable ones included: in each group that has as many as any other.

        A window group with fewer was sized to what rows can hold in it, and is not counted.
        """
        ...

    def audit(self) -> Audit: ...


@runtime_checkable
class SharedBlocks(Protocol):
    """What an allocator adds whose blocks may belong to more than one row. Without it, the core recomputes."""

    def adopt(self, row: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Make blocks of a `Hit` the first blocks of a row that holds none; NOT_HELD keeps the place of one."""
        ...

    def fork(self, parent: int, row: int, num_tokens: int) -> Slots | None:
        """Let `row` share what the parent holds of its first `num_tokens` tokens, NOT_HELD where that is nothing.

        The parent still holds all that the next query of `row` sees. None: cannot, the core recomputes the tokens.
        """
        ...

    def pin(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Per group, keep blocks from being reused while somebody outside reads them."""
        ...

    def unpin(self, blocks: tuple[tuple[int, ...], ...]) -> None: ...


@runtime_checkable
class TrimmedBlocks(Protocol):
    """What an allocator adds that takes blocks back from a row that goes on. Without it, rows keep all they have."""

    def trim(self, row: int, num_blocks: tuple[int, ...]) -> None:
        """Per group, take back the row's first `num_blocks` blocks: none of its queries sees them again.

        Called after `commit`, for groups with a window. The places stay: tables keep their length, and a count
        includes what was taken back before, so it never falls.
        """
        ...


@runtime_checkable
class PrefixMatcher(Protocol):
    """What an allocator wrapper adds to be asked for prefix hits; its presence makes the core compute keys."""

    key_scope: Literal["tenant", "shared"]
    """Whether the tenant is in the keys, so that tenants never hit each other's blocks."""

    def match(self, keys: tuple[bytes, ...]) -> Hit:
        """The longest run of leading blocks that every group can serve. A probe: it takes nothing.

        A window group serves a run if it has the blocks that the query behind it sees: from
        `group.num_unseen(run * block_size, block_size)` on. For those before, the hit says NOT_HELD.
        """
        ...


@runtime_checkable
class KVTransfer(Protocol):
    """Optional: KV that leaves and enters the pool (disaggregated prefill and decode)."""

    def export(self, row: int) -> object: ...

    def import_(self, row: int, handle: object) -> Slots | None: ...


# -- worker process -------------------------------------------------------------------------------------------------


class AttentionImpl(Protocol):
    """Attention over cached KV for one kind of layer. Everything that changes per step goes through `meta`.

    One whose decode steps can be recorded and replayed (`cuda_graphs`, `cpu_graphs`) says `is_capturable = True`. Then
    `meta` is made of tensors, dataclasses, tuples, lists and mappings. Of rows with one query each, the shapes of its
    tensors follow from the number of rows and the width of the block tables; its other values, made for the longest
    context, serve any other.
    """

    layout: str
    """Order of the cache's axes: a permutation of "NSKD"."""

    def plan(self, batch: Batch, group: int) -> Any:
        """Once per step: whatever `write` and `forward` need of the batch, on the device."""
        ...

    def write(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, meta: Any) -> None:
        """Store K and V `[T, K, D]` of this step. Per layer: no host sync, no Python state."""
        ...

    def forward(self, q: torch.Tensor, cache: KVCache, meta: Any, out: torch.Tensor) -> None:
        """Fill `out` `[T, H, D]` from q `[T, H, D]`. Per layer: no host sync, no Python state."""
        ...


class RopeAndCache(Protocol):
    """A fused `ops.rope_and_cache`, used for layers whose attention names one of its layouts and KV without codec."""

    layouts: tuple[str, ...]
    """Orders of the caches' axes that it writes: permutations of "NSKD"."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class StoringRope:
    """A `RopeAndCache` made of a kernel and the layouts that it writes."""

    kernel: Callable[..., torch.Tensor]
    layouts: tuple[str, ...]

    def __call__(self, *arguments: torch.Tensor) -> torch.Tensor:
        return self.kernel(*arguments)


class KVCodec(Protocol):
    """How K and V are stored. Scales travel inside the stored vector, so that a block is whole by itself."""

    name: str
    storage_dtype: str
    """A torch dtype's name, such as "int8"."""

    def storage_size(self, head_size: int) -> int:
        """Elements of `storage_dtype` that one head's vector takes."""
        ...

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., D]` to `[..., storage_size(D)]`."""
        ...

    def decode(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor: ...


class TensorReader(Protocol):
    """Reads a checkpoint's tensors without copying where the file allows it."""

    def names(self) -> frozenset[str]: ...

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored, backed by the file's memory map: never write to it."""
        ...

    def fused(self, spec: LinearSpec, suffix: str, dtype: torch.dtype) -> torch.Tensor:
        """The spec's `suffix` ("weight", "bias"), its parts joined in order, in `dtype`."""
        ...


class LinearRecipe(Protocol):
    """How one linear is stored and multiplied."""

    def load(self, reader: TensorReader, spec: LinearSpec) -> Any:
        """The parameters, in whatever form `linear` wants them."""
        ...

    def linear(self, x: torch.Tensor, params: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """x `[T, in]` to `[T, out]`, into `out` if given."""
        ...

    def report(self) -> Mapping[str, float]:
        """Bytes, bits and error of what was loaded, for the plan and the benchmarks."""
        ...


Linear = Callable[["torch.Tensor"], "torch.Tensor"]
"""A loaded linear as the decoder calls it: `[T, in]` to `[T, out]`."""


class Worker(Protocol):
    """Holds one shard of the weights and its KV tensors, and runs steps; plans nothing."""

    kv_spec: KVSpec
    """The groups of layers as this shard holds them."""

    def load(self) -> None: ...

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        """Make the KV tensors, of so many blocks in each group."""
        ...

    def run(self, batch: Batch) -> StepOutput: ...


@runtime_checkable
class CapturableWorker(Worker, Protocol):
    """What a worker adds whose step has two halves: numbers go to the device, and then all is computed there."""

    device: Device
    limits: Limits
    block_size: int

    def uncapturable(self) -> tuple[str, ...]:
        """Why the forward of a decode step cannot be recorded; empty if it can."""
        ...

    def prepare(self, batch: Batch) -> Any:
        """Block copies, and all that `forward` reads: tensors, in forms that `AttentionImpl` names."""
        ...

    def forward(self, step: Any) -> torch.Tensor:
        """Hidden states `[T, E]`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[P, E]` to `[P, V]`, in float32 at least."""
        ...


class WorkerFactory(Protocol):
    """Makes the worker for one shard, in the process that will run it."""

    def __call__(self, shard: tuple[int, int] = (0, 1)) -> Worker: ...


@runtime_checkable
class Executor(Protocol):
    """Runs batches. `collect` returns steps in the order of `submit`."""

    kv_spec: KVSpec
    """What a block holds, in the process with the largest share of it."""
    max_in_flight: int
    """Steps that may be submitted before the first is collected: 1 local, 2 overlapped, p for a pipeline."""

    def start(self) -> None:
        """Load what is to be run."""
        ...

    def allocate(self, num_blocks: tuple[int, ...]) -> None:
        """Make the KV tensors, of so many blocks in each group; once, after `start`."""
        ...

    def submit(self, batch: Batch) -> int: ...

    def collect(self, ticket: int) -> StepOutput: ...

    def close(self) -> None: ...


# -- engine process: tokens -----------------------------------------------------------------------------------------


@runtime_checkable
class Proposer(Protocol):
    """Drafts tokens. The core masks, verifies and counts them."""

    def propose(self, view: DraftView, num_drafts: IntArray) -> Draft:
        """At most `num_drafts[b]` tokens for each row; none is fine."""
        ...

    def commit(self, rows: IntArray, num_accepted: IntArray) -> None:
        """How many drafts of each row were accepted: move own state there."""
        ...

    def drop(self, rows: IntArray) -> None:
        """The rows finished, were aborted or preempted."""
        ...


@runtime_checkable
class LogitsStage(Protocol):
    """Masks logits before sampling and verification: grammars, bans."""

    def mask(self, rows: IntArray, drafts: tuple[IntArray, ...], offsets: IntArray) -> BoolArray | None:
        """`[L, V]` allowed tokens, or None to allow all.

        Entry i stands for row `rows[i]` after the first `offsets[i]` tokens of its draft `drafts[i]`.
        """
        ...

    def advance(self, row: int, tokens: tuple[int, ...]) -> None:
        """The row took these tokens."""
        ...

    def drop(self, rows: IntArray) -> None: ...


@runtime_checkable
class StructureStage(LogitsStage, Protocol):
    """What a logits stage adds that holds outputs to a structure. The first in config order gets them all."""

    def check_structure(self, structure: Structure) -> None:
        """Raise ValueError, one sentence that names the part, for what this stage cannot hold an output to."""
        ...

    def begin(self, row: int, structure: Structure) -> None:
        """A new row is to keep to a structure that was checked; until `drop`, also across preemptions."""
        ...


# -- every process --------------------------------------------------------------------------------------------------


class EngineHandle(Protocol):
    """What a command may do to the engine, between two steps."""

    def preempt_all(self) -> int:
        """Take all KV from every running row; they start again in the same order. Returns how many there were."""
        ...


@runtime_checkable
class Control(Protocol):
    """Named commands and counters of a plugin."""

    def commands(self) -> Mapping[str, Callable[..., object]]: ...

    def stats(self) -> Mapping[str, float]: ...


@runtime_checkable
class EventSink(Protocol):
    """Receives the event stream, off the hot path."""

    def on_events(self, events: tuple[Event, ...]) -> None: ...


@runtime_checkable
class HasNeeds(Protocol):
    """Any provider may say what it takes before the KV pool is sized."""

    def needs(self) -> Needs: ...


@runtime_checkable
class HasReason(Protocol):
    """Any answer may say what it is and why, such as which of its kernels it runs: a phrase for the plan."""

    reason: str


# -- which optional half an answer has ------------------------------------------------------------------------------
# by attribute, since from Python 3.12 on isinstance with a protocol looks past a wrapper's __getattr__


def shares_blocks(allocator: object) -> TypeGuard[SharedBlocks]:
    """Whether blocks of this allocator may belong to more than one row."""
    return all(hasattr(allocator, method) for method in ("adopt", "fork", "pin", "unpin"))


def trims_blocks(allocator: object) -> TypeGuard[TrimmedBlocks]:
    """Whether this allocator takes blocks back from rows that go on."""
    return hasattr(allocator, "trim")


def matches_prefixes(allocator: object) -> TypeGuard[PrefixMatcher]:
    """Whether this allocator finds cached prefixes."""
    return hasattr(allocator, "match")


def takes_structures(stage: object) -> TypeGuard[StructureStage]:
    """Whether this logits stage holds outputs to a structure."""
    return all(hasattr(stage, method) for method in ("check_structure", "begin"))


def stores_kv(executor: object) -> bool:
    """Whether an executor reads and writes KV; one that only counts it says `stores_kv = False`, and gets no tables."""
    return bool(getattr(executor, "stores_kv", True))


def capturable_worker(executor: object) -> CapturableWorker | None:
    """The worker whose steps this executor runs itself, if they have two halves.

    A wrapper that passes on what it lacks has none: it would be left out of the steps that are replayed.
    """
    worker: CapturableWorker | None = getattr(executor, "__dict__", {}).get("worker")
    return worker if hasattr(worker, "uncapturable") else None


def is_capturable(provider: object) -> bool:
    """Whether an attention, or what a plugin put around a linear, can be recorded and replayed."""
    return bool(getattr(provider, "is_capturable", False))
