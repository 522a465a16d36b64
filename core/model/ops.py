"""Plain PyTorch references: what everything-off runs, and what every kernel is tested against.

Shapes: `T` tokens, `H` query heads, `K` KV heads, `D` head size, `E` hidden size, `F` feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from ..interfaces import Linear

TopK = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""As `top_k`."""


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out[t] = weight * h[t] / sqrt(mean(h[t]^2) + eps) with h = x + residual; returns (out, h). x `[T, E]`.

    The statistics are taken in float32 at least, as the checkpoints were trained. A weight that is wider than x
    multiplies before the one rounding to x's dtype, a weight of x's dtype after it: families differ in this.
    """
    h = x if residual is None else x + residual
    wide = h.to(torch.promote_types(h.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * normed.to(weight.dtype)).to(h.dtype), h


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of each head: x `[T, heads, D]`; cos and sin `[T, R / 2]`, R <= D leading elements rotate."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """`rope` of q and k, whose result for q is returned, and `write_kv` of the rotated k and v."""
    write_kv(rope(k, cos, sin), v, k_cache, v_cache, slots)
    return rope(q, cos, sin)


def act_mul(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up for gate_up `[T, 2F]` (gate first): `[T, F]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate, activation) * up


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    match activation:
        case "silu":
            return functional.silu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "relu":
            return functional.relu(x)
    raise AssertionError(f"the architecture table names no activation {activation!r}")


def experts(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    gate_up: Sequence[Linear],
    down: Sequence[Linear],
    num_active: int,
    renormalize: bool,
    activation: str,
) -> torch.Tensor:
    """out[t] = sum over the experts e of token t of weight[t, e] * down[e](act_mul(gate_up[e](x[t]))). x `[T, E]`.

    router_logits `[T, N]` for N experts; gate_up and down hold one linear for each. Weights and sum are in float32 at
    least; the sum runs in the order of the experts, whatever else is in the batch.
    """
    weights, chosen = route(router_logits, num_active, renormalize)
    out = weights.new_zeros(x.shape)
    for expert in chosen.unique().tolist():
        tokens, ranks = torch.where(chosen == expert)
        y = down[expert](act_mul(gate_up[expert](x[tokens]), activation))
        out[tokens] += y * weights[tokens, ranks].unsqueeze(-1)
    return out.to(x.dtype)


def route(router_logits: torch.Tensor, num_active: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, experts) of each token, `[T, num_active]`: the largest probabilities of softmax(router_logits)."""
    wide = router_logits.to(torch.promote_types(router_logits.dtype, torch.float32))
    weights, chosen = torch.softmax(wide, dim=-1).topk(num_active, dim=-1)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, chosen


def capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """cap * tanh(x / cap), which stays between -cap and cap; None caps nothing."""
    return x if cap is None else cap * torch.tanh(x / cap)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention with the score matrix in memory: softmax(scale * q k^T) v.

    q `[B, Q, H, D]`, k and v `[B, L, K, D]`, visible `[B, Q, L]` bool; returns `[B, Q, H, D]`. H is a multiple of K.
    A query that sees nothing gets zeros.
    """
    num_requests, num_queries, num_heads, head_size = q.shape
    num_kv_heads = k.shape[2]
    # [B, K, group * Q, D]: the queries that share a KV head stand together, so K and V are not repeated
    grouped = q.view(num_requests, num_queries, num_kv_heads, -1, head_size).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(num_requests, num_kv_heads, -1, head_size)
    scores = capped(torch.matmul(grouped, k.permute(0, 2, 3, 1)) * scale, soft_cap)
    scores = scores.view(num_requests, num_kv_heads, -1, num_queries, k.shape[1])
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    # softmax over nothing is 0 / 0: such a query gets zeros, while a NaN in the scores stays one
    weights = torch.softmax(scores, dim=-1).masked_fill(~visible.any(-1)[:, None, None, :, None], 0.0)
    weights = weights.to(v.dtype).view(num_requests, num_kv_heads, -1, k.shape[1])
    out = torch.matmul(weights, v.permute(0, 2, 1, 3)).view(num_requests, num_kv_heads, -1, num_queries, head_size)
    return out.permute(0, 3, 1, 2, 4).reshape(num_requests, num_queries, num_heads, head_size)


def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store k and v `[T, K, D]` at slots `[T]` of caches `[N, K, S, D]`: slot i is place i % S of block i // S."""
    num_slots = k_cache.shape[2]
    k_cache[slots // num_slots, :, slots % num_slots] = k
    v_cache[slots // num_slots, :, slots % num_slots] = v


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x `[T, in]` times weight `[rows, in]` transposed, plus bias: `[T, rows]`."""
    y = functional.linear(rounded_up(x), weight, bias)[: len(x)]
    return y if out is None else out.copy_(y)


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Place of the largest number of each row of x `[L, V]`, the first one of equals: `[L]` int64.

    What is no number counts as larger than any.
    """
    return x.argmax(-1)


def top_k(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest numbers of each row of x `[L, V]`, largest first, and their places: `[L, k]`, the latter int64.

    x is float32, float64 or int64, and 1 <= k <= V. What is no number counts as larger than any. Which of equals are
    taken and in which order is open: a stable sort, which would settle it, takes 15 times as long as this and more.
    """
    values, places = x.topk(k, dim=-1)
    return values, places


def rounded_up(x: torch.Tensor) -> torch.Tensor:
    """x with rows of zeros up to the next of few sizes, where torch keeps something for every size it meets.

    In bfloat16 on a CPU it compiles code for every number of rows and never lets go of it, 0.4 MB and more a weight
    shape: gigabytes over the steps of a server. Eight sizes an octave are few, and at most an eighth of the work.
    """
    num_rows = len(x)
    if x.dtype is not torch.bfloat16 or x.device.type != "cpu":
        return x
    return functional.pad(x, (0, 0, 0, size_above(num_rows) - num_rows))


def size_above(num_rows: int) -> int:
    """The least of 1 to 16, 18, 20, ..., 32, 36, ... that is no smaller: a multiple of a power of two."""
    step = 1 << max(0, (num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step
