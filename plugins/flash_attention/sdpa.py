"""Attention on the CPU by PyTorch's fused kernel: scores exist a block at a time, whatever the prompt's length.

The kernel takes rectangles: B rows with Q queries and L keys each. A step is cut into as few of them as will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...core.interfaces import KVCodec
from ...core.records import Batch, Device, IntArray, KVCache, LayerSpec, Refusal

if TYPE_CHECKING:
    import torch

MAX_MASK = 1 << 20
"""Elements of the mask of one rectangle with several rows."""
STRETCH = 256
"""Queries of a row that go together; of a longer one each stretch of so many sees the keys up to its end.

PyTorch's kernel computes most of what a causal mask hides, so that shorter stretches save more than their calls cost:
at 1,024 tokens a fifth. All stretches of a step share one mask, which is linear in the longest context.
"""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """One call of the kernel: B rows, Q queries and L keys each."""

    shape: tuple[int, int, int]
    tokens: slice | torch.Tensor
    """`[B * Q]` indices into the step's tokens."""
    slots: slice | torch.Tensor
    """`[B * L]` where K and V of each key lie."""
    mask: torch.Tensor | None = None
    """Added to the scores: `[B, 1, Q, L]` or `[Q, L]`. None hides nothing but what `is_causal` does."""
    is_causal: bool = False
    """Query i sees keys 0 to i."""


Meta = tuple["torch.Tensor", list[Rectangle]]
"""The slots that the step writes, and its rectangles."""


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """`scaled_dot_product_attention` over KV that is gathered, or read in place where it lies in a line."""

    layer: LayerSpec
    codec: KVCodec
    dtype: str
    reason: str
    layout: str = "NSKD"

    def plan(self, batch: Batch, group: int) -> Meta:
        import torch

        everyone = np.arange(len(batch.rows))
        return torch.from_numpy(batch.slots[group]), list(self.rectangles(batch, group, everyone))

    def write(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, meta: Meta) -> None:
        slots, _ = meta
        cache.k.flatten(0, 1)[slots] = self.codec.encode(k)
        cache.v.flatten(0, 1)[slots] = self.codec.encode(v)

    def forward(self, q: torch.Tensor, cache: KVCache, meta: Meta, out: torch.Tensor) -> None:
        from torch.nn.functional import scaled_dot_product_attention

        k_slots, v_slots = cache.k.flatten(0, 1), cache.v.flatten(0, 1)
        for part in meta[1]:
            num_rows, num_queries, num_keys = part.shape
            queries = take(q, part.tokens).unflatten(0, (num_rows, num_queries)).transpose(1, 2)
            if num_queries == 1:
                # the queries that share a KV head stand together, so that K and V are read once
                queries = queries.reshape(num_rows, self.layer.num_kv_heads, -1, self.layer.head_size)
            k = self.codec.decode(take(k_slots, part.slots), q.dtype).unflatten(0, (num_rows, num_keys))
            v = self.codec.decode(take(v_slots, part.slots), q.dtype).unflatten(0, (num_rows, num_keys))
            answers = scaled_dot_product_attention(
                queries,
                k.transpose(1, 2),
                v.transpose(1, 2),
                attn_mask=part.mask,
                is_causal=part.is_causal,
                scale=self.layer.scale,
                enable_gqa=True,
            )
            if num_queries > 1:
                answers = answers.transpose(1, 2)
            out[part.tokens] = answers.reshape(-1, *q.shape[1:])

    # -- cutting a step into rectangles -----------------------------------------------------------------------------

    def rectangles(self, batch: Batch, group: int, rows: IntArray) -> Iterator[Rectangle]:
        """Rows with as many queries as each other go together, and those that need no mask apart from the rest."""
        query_lens, contexts = batch.query_lens, batch.context_lens
        is_new = query_lens == contexts
        if self.layer.window is not None:
            is_new &= contexts <= self.layer.window
        is_long = query_lens > STRETCH
        for length in np.unique(query_lens[rows[~is_long[rows]]]):
            alike = rows[query_lens[rows] == length]
            if is_new[alike].any():
                yield self._new_rows(batch, group, alike[is_new[alike]])
            # rows of like context stand together, for they are padded to the longest
            rest = alike[~is_new[alike]]
            rest = rest[np.argsort(contexts[rest], kind="stable")]
            while len(rest):
                height = max(1, MAX_MASK // int(length * self._num_seen(batch, rest[-1:])[0]))
                yield self._masked_rows(batch, group, rest[-height:])
                rest = rest[:-height]
        long = rows[is_long[rows]].tolist()
        if long:
            yield from self._stretches(batch, group, long)

    def _num_seen(self, batch: Batch, rows: IntArray) -> IntArray:
        """Keys that the queries of each row see together."""
        contexts = batch.context_lens[rows]
        return contexts - first_seen(self.layer, contexts - batch.query_lens[rows])

    def _new_rows(self, batch: Batch, group: int, rows: IntArray) -> Rectangle:
        """Whole prompts of one length."""
        length = int(batch.query_lens[rows[0]])
        positions = np.broadcast_to(np.arange(length), (len(rows), length))
        return Rectangle(
            (len(rows), length, length),
            places(batch.query_start[rows][:, None] + positions),
            places(slots_of(batch, group, rows, positions)),
            is_causal=True,
        )

    def _masked_rows(self, batch: Batch, group: int, rows: IntArray) -> Rectangle:
        """Rows behind what they have in the cache, each padded to the longest."""
        import torch

        contexts, num_queries = batch.context_lens[rows], int(batch.query_lens[rows[0]])
        positions = (contexts - num_queries)[:, None] + np.arange(num_queries)
        # from the first position that a query sees: the blocks before it may be another row's by now
        num_keys = int(self._num_seen(batch, rows).max())
        keys = first_seen(self.layer, positions[:, :1]) + np.arange(num_keys)
        # padding reads the row's own last position: stale memory could hold a NaN, and no mask hides one
        slots = slots_of(batch, group, rows, np.minimum(keys, contexts[:, None] - 1))
        hidden = self._is_hidden(positions[:, :, None], keys[:, None, :])
        return Rectangle(
            (len(rows), num_queries, num_keys),
            places(batch.query_start[rows][:, None] + np.arange(num_queries)),
            places(slots),
            mask=self._mask(torch.from_numpy(hidden))[:, None] if hidden.any() else None,
        )

    def _stretches(self, batch: Batch, group: int, rows: list[int]) -> Iterator[Rectangle]:
        """Long rows, one after another, a few queries at a time."""
        import torch

        window, longest = self.layer.window, int(batch.context_lens[rows].max())
        reach = longest if window is None else min(longest, window - 1)
        # for a stretch that begins at position 0 and keys from -reach on: any other stretch is that one, moved
        band = self._is_hidden(np.arange(STRETCH)[:, None], np.arange(-reach, STRETCH))
        mask = self._mask(torch.from_numpy(band))
        for row in rows:
            context = int(batch.context_lens[row])
            before = context - int(batch.query_lens[row])
            for start in range(before, context, STRETCH):
                end = min(start + STRETCH, context)
                first = int(first_seen(self.layer, np.array(start)))
                token = int(batch.query_start[row]) + start - before
                yield Rectangle(
                    (1, end - start, end - first),
                    slice(token, token + end - start),
                    places(slots_of(batch, group, np.array([row]), np.arange(first, end)[None])),
                    mask=mask[: end - start, reach + first - start : reach + end - start],
                )

    def _is_hidden(self, queries: IntArray, keys: IntArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which positions of keys lie behind a query or before its window; shapes broadcast."""
        hidden = keys > queries
        return hidden if self.layer.window is None else hidden | (keys <= queries - self.layer.window)

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.zeros(hidden.shape, dtype=getattr(torch, self.dtype)).masked_fill_(hidden, -torch.inf)


def first_seen(layer: LayerSpec, positions: IntArray) -> IntArray:
    """The first position that a query at each of these positions sees."""
    return np.zeros_like(positions) if layer.window is None else np.maximum(positions - layer.window + 1, 0)


def slots_of(batch: Batch, group: int, rows: IntArray, positions: IntArray) -> IntArray:
    """`[B, L]` where the tokens at these positions `[B, L]` of the rows lie in the cache."""
    blocks = np.take_along_axis(batch.block_tables[group][rows], positions // batch.block_size, axis=1)
    return blocks * batch.block_size + positions % batch.block_size


def places(numbers: IntArray) -> slice | torch.Tensor:
    """Indices, flattened; as a slice where they lie in a line, so that nothing is copied."""
    import torch

    flat = numbers.ravel()
    if (np.diff(flat) == 1).all():
        return slice(int(flat[0]), int(flat[-1]) + 1)
    return torch.from_numpy(flat)


def take(x: torch.Tensor, where: slice | torch.Tensor) -> torch.Tensor:
    return x[where] if isinstance(where, slice) else x.index_select(0, where)


def refusal(layer: LayerSpec, device: Device) -> Refusal | None:
    """Why PyTorch's fused kernel cannot compute this kind of layer here."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    reasons = []
    if device.type != "cpu":
        reasons.append(f'sdpa is for the CPU, not for {device.type}: set backend = "triton" there')
    if layer.soft_cap is not None:
        reasons.append(f"PyTorch's fused attention cannot cap scores, and this model caps them at {layer.soft_cap:g}")
    if not reasons:
        q = torch.zeros(1, layer.num_heads, 2, layer.head_size, dtype=getattr(torch, device.dtype))
        k = q.new_zeros(1, layer.num_kv_heads, 2, layer.head_size)
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                scaled_dot_product_attention(q, k, k, attn_mask=q.new_zeros(2, 2), enable_gqa=True)
        except RuntimeError:
            shape = f"{layer.num_heads} heads over {layer.num_kv_heads}, {layer.head_size} wide, in {device.dtype}"
            reasons.append(f"PyTorch {torch.__version__} has no fused attention for {shape}")
    return Refusal(tuple(reasons)) if reasons else None
