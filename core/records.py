"""The values that cross a hook: frozen, typed, and arrays wherever there is one value per row.

Shape legend: `R` rows offered to a policy, `B` rows in the step, `T` tokens in the step, `H` query heads, `K` KV
heads, `D` head size, `E` hidden size, `V` vocabulary, `N` blocks, `S` tokens per block.

A *row* is the integer handle of one sequence, given when the request arrives and never reused while it lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NO_ROWS: IntArray = np.empty(0, dtype=np.int64)
NO_RANGES: IntArray = np.empty((0, 2), dtype=np.int64)


Pooling = Literal["", "mean", "last"]
"""What a request wants instead of text: the mean hidden state of its prompt, or that of its last token."""


# -- what a plugin promises about the output ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equivalence:
    """How far the output may differ from everything-off; the weakest class of a set is the class of the set."""

    kind: Literal["token_equal", "distribution", "lossy"]
    measure: str = ""
    """For `lossy`: what is measured, such as "perplexity difference"."""
    bound: float = 0.0
    """For `lossy`: the largest value of the measure that the plugin promises."""

    @property
    def rank(self) -> int:
        return ("token_equal", "distribution", "lossy").index(self.kind)

    def __str__(self) -> str:
        return f"lossy({self.measure} <= {self.bound:g})" if self.kind == "lossy" else self.kind


TOKEN_EQUAL = Equivalence("token_equal")
DISTRIBUTION = Equivalence("distribution")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A provider's "not here", with every reason it has. Shown to the user, so whole sentences."""

    reasons: tuple[str, ...]


# -- the engine's bounds and the model's shape ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds every arm alike, whatever is switched on."""

    max_num_seqs: int
    max_step_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Device:
    """Where the worker computes."""

    type: str
    dtype: str
    features: tuple[str, ...] = ()
    """CPU flags that kernels ask for, or the CUDA capability."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One kind of attention layer. `attention_impl` is asked once per distinct value, not once per layer."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    """Factor on the scores, usually head_size ** -0.5."""
    window: int | None = None
    """Sliding window in tokens, the query's own included; None sees everything before."""
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(scores / soft_cap)."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose KV lives and dies together, and so shares one block table a row."""

    layers: tuple[int, ...]
    kind: Literal["full", "window", "state"]
    num_heads: int
    head_size: int
    window: int | None = None
    """Tokens that a query sees, its own included; None sees everything before."""
    codec: str = "none"
    bytes_per_token: int = 0
    """Over all layers of the group, K and V, as the codec stores them."""
    num_blocks: int = 0
    """Blocks of the group in the pool, once that was sized: a window group may have fewer than a full one."""

    def num_unseen(self, position: int, block_size: int) -> int:
        """Leading blocks of a row that no query at `position` or behind it sees any more."""
        return 0 if self.window is None else max(0, position - self.window + 1) // block_size


KVSpec = tuple[KVGroup, ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a provider takes beyond its code, asked before the KV pool is sized."""

    bytes: int = 0


# -- requests at the door -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IngressRequest:
    """A request before it has a row. The tenant comes from the credentials, never from the body."""

    id: str
    prompt: str | tuple[int, ...]
    messages: tuple[Mapping[str, object], ...] = ()
    """Chat turns, when the prompt was rendered from them."""
    sampling: Mapping[str, object] = field(default_factory=dict)
    tenant: str = ""
    model: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole answer, free of any wire format; the core renders it whole or streamed."""

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    finish_reasons: tuple[str, ...]
    served_by: str = "engine"


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on to the next stage."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Go on with another request."""

    request: IngressRequest


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer now; the engine never sees the request."""

    completion: Completion


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody is computing this answer: enter again when `key` completes or the timeout passes."""

    key: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse, with an HTTP status and one sentence."""

    status: int
    message: str
    retry_after: float | None = None


IngressAnswer = Continue | Rewrite | Respond | Wait | Reject


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, as `leave` sees it."""

    kind: Literal["finished", "aborted", "rejected", "error"]
    completion: Completion | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool as a router sees it."""

    name: str
    is_local: bool
    num_running: int
    num_waiting: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A router's choice and why."""

    pool: str
    reason: str


# -- scheduling -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KVView:
    """The KV pool in numbers."""

    block_size: int
    num_blocks: int
    """Of each group whose layers see everything, and of the others where they have as many."""
    num_free: int
    """Blocks that `grow` could take now, evictable ones included."""


@dataclass(frozen=True, slots=True)
class StepView:
    """What a policy sees: running rows first, in the order they were admitted, then waiting ones in queue order.

    Held rows and rows that may not run again before their step in flight returns are not in it. Arrays are `[R]` and
    read-only. The only clock is `now`, the only randomness `seed`, so that a policy runs in virtual time as well.
    """

    step: int
    now: float
    """Seconds on the engine's clock."""
    seed: int
    limits: Limits
    kv: KVView
    num_running: int
    """The first `num_running` entries are running (they hold KV); the others wait."""
    rows: IntArray
    arrival: FloatArray
    priority: IntArray
    """Lower runs first."""
    num_prompt: IntArray
    num_tokens: IntArray
    """Tokens known so far: the prompt and what was generated."""
    num_computed: IntArray
    """Tokens whose KV is in the cache: its own or, of a row that waits, what is known to be found there."""
    max_tokens: IntArray
    """Largest number of tokens the row may generate."""
    num_in_flight: IntArray
    """Tokens submitted and not yet collected."""

    @property
    def num_pending(self) -> IntArray:
        """Tokens left to compute before the row can sample: 1 in decode, the whole prompt at first."""
        return self.num_tokens - self.num_computed - self.num_in_flight


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs in this step and for how many tokens. No phases: prefill, chunk and decode are all counts."""

    order: IntArray
    """`[P]` rows in service order; a row that is not in it does not run."""
    num_tokens: IntArray
    """`[P]` known tokens to compute this step; 0 skips the row."""
    num_drafts: IntArray = field(default_factory=lambda: NO_ROWS)
    """`[P]` draft tokens to verify on top, or empty for none. Only the proposer's own plugin may set it."""
    token_budget: int | None = None
    """Largest sum of tokens and drafts in the step; the core takes the smallest that anybody named."""
    victims: IntArray = field(default_factory=lambda: NO_ROWS)
    """Rows to preempt first when KV runs out; without it the last admitted goes."""


# -- KV -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one block before the forward: the write half of copy-on-write."""

    group: int
    source: int
    target: int


NOT_HELD = -1
"""Stands in a hit or a fork for a block of a window group that the row will never read, and so does not hold."""


@dataclass(frozen=True, slots=True)
class Slots:
    """What `grow` changed in a row's block tables, one entry per KV group."""

    blocks: tuple[tuple[int, ...], ...]
    """Per group, the block numbers to append; of a fork, NOT_HELD where the parent holds none."""
    copies: tuple[BlockCopy, ...] = ()
    """Blocks of the row that are shared and will be written: `target` takes the place of `source` in its table."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Blocks found by key, per group, and the tokens they hold (the shortest over the groups)."""

    blocks: tuple[tuple[int, ...], ...]
    """Per group, one entry for each block of the prefix; NOT_HELD before the window of what comes next."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Every block is in exactly one of three states."""

    total: int
    free: int
    held: int
    evictable: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return self.total == self.free + self.held + self.evictable and not self.problems


# -- execution ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work, all a worker needs besides weights and KV. Rows are ragged and flattened.

    Drafts follow a row's known tokens, so a row's last `num_drafts[b]` tokens are drafts.
    """

    step: int
    rows: IntArray
    """`[B]`"""
    token_ids: IntArray
    """`[T]`"""
    positions: IntArray
    """`[T]` position of each token in its sequence."""
    query_start: IntArray
    """`[B + 1]` row b owns tokens query_start[b] to query_start[b + 1]."""
    context_lens: IntArray
    """`[B]` tokens in the row's cache after the step, this step's included."""
    num_drafts: IntArray
    """`[B]`"""
    block_tables: tuple[IntArray, ...]
    """Per group `[B, W]`, padded with 0 beyond what a row holds.

    Before a row's window stands any valid number, whose block may be another row's or hold no numbers at all: nothing
    read there may reach the output, not even times 0.
    """
    slots: tuple[IntArray, ...]
    """Per group `[T]`: block * S + offset, where each token's K and V are written."""
    block_size: int
    copies: tuple[BlockCopy, ...]
    outputs: IntArray
    """Indices into `[T]` whose logits are wanted, ascending."""
    scored: IntArray
    """Indices into `[T]` whose next token's log probability is wanted (`prompt_logprobs`)."""
    targets: IntArray
    """The next token for each entry of `scored`."""
    num_top: int = 0
    """How many alternatives `scored` positions report."""
    pooled: IntArray = field(default_factory=lambda: NO_RANGES)
    """`[P, 2]` ranges of `[T]` whose hidden states are summed: what embeddings are made of."""

    @property
    def query_lens(self) -> IntArray:
        return np.diff(self.query_start)

    @property
    def is_plain_decode(self) -> bool:
        """One token in each row, and nothing asked for but logits: what can be replayed."""
        return len(self.token_ids) == len(self.rows) and not (len(self.scored) or len(self.pooled))


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log probabilities at some positions: of the token that stood there, and of the best alternatives."""

    logprobs: FloatArray
    """`[P]`"""
    ranks: IntArray
    """`[P]` 1 for the most likely token."""
    top_ids: IntArray
    """`[P, num_top]`"""
    top_logprobs: FloatArray
    """`[P, num_top]`"""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What comes back from a step."""

    logits: torch.Tensor
    """`[len(batch.outputs), V]` float32 (float64 if the model is)."""
    scores: TokenScores | None = None
    """For `batch.scored`, reduced chunk by chunk: the whole `[T, V]` never exists."""
    pooled: torch.Tensor | None = None
    """`[P, E]` float32 (float64 if the model is) for `batch.pooled`."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """The K and V tensors of one layer, in the layout that the attention named."""

    k: torch.Tensor
    v: torch.Tensor


# -- linears --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinearPart:
    """One tensor of the checkpoint that makes up a fused linear; its rows, where the checkpoint has the fused path."""

    name: str
    """Checkpoint name without `.weight`."""
    num_rows: int


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One linear module, possibly fused from several tensors of the checkpoint. Weights are `[rows, in_features]`."""

    path: str
    """Fused name, such as `model.layers.0.self_attn.qkv_proj`."""
    kind: Literal["qkv", "o", "gate_up", "up", "down", "head", "embedding", "router", "experts"]
    layer: int
    """-1 for the head and the embedding."""
    in_features: int
    parts: tuple[LinearPart, ...]
    has_bias: bool = False
    shard: tuple[int, int] = (0, 1)
    """(rank, size) of tensor parallelism."""
    num_experts: int = 0
    """For one expert of a layer: how many there are. Its gate and up are one spec, its down another."""
    stacked: tuple[str, int] | None = None
    """(tensor `[experts, rows, in_features]`, index) that some checkpoints hold instead of the parts."""
    tied_to: str | None = None
    """Path of the linear whose weight this one shares: the head of a tied model."""

    @property
    def out_features(self) -> int:
        return sum(part.num_rows for part in self.parts)


# -- speculation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftView:
    """The rows that may draft in this step."""

    step: int
    seed: int
    rows: IntArray
    """`[B]`"""
    tokens: tuple[IntArray, ...]
    """Per row, all its known tokens; the last one has not been computed yet."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed continuations. A proposer can cost speed, never correctness: the core verifies every token."""

    tokens: IntArray
    """`[B, k]`, ragged by `lens`."""
    lens: IntArray
    """`[B]`; 0 drafts nothing."""
    probs: torch.Tensor | None = None
    """`[B, k, V]` the law each token was drawn from; None says the draft is deterministic."""
    parents: IntArray | None = None
    """`[B, k]` for a tree; refused unless the attention says `tree`."""


# -- vocabulary -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each token stands for, for stages that follow an output as text."""

    token_bytes: tuple[bytes, ...]
    """`[V]` the UTF-8 that a token adds, which may be part of a character; empty where an id stands for nothing."""
    special_ids: frozenset[int]
    """Tokens that are signs and not text; their bytes are their names."""


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the event stream that metrics and `observe` sinks are fed from."""

    kind: Literal["queued", "admitted", "preempted", "token", "finished", "aborted", "failed", "step"]
    time: float
    row: int = -1
    values: Mapping[str, float] = field(default_factory=dict)
