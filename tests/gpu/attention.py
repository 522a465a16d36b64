"""Our attention against PyTorch's FlashAttention and the score matrix, and paged KV against KV in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from switchgear.core.lab.ceilings import Ceilings
from switchgear.core.records import KVCache, LayerSpec
from switchgear.plugins.flash_attention.tiled import TiledAttention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .figures import Figure
from .hardware import Hardware
from .steps import batch_of

LAYER = LayerSpec(num_heads=32, num_kv_heads=8, head_size=128, scale=128**-0.5)
SMALL_LAYER = LayerSpec(num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)
PROMPTS = (1024, 4096, 8192)
LARGEST_MATRIX = 4096
"""Beyond it the score matrix is not tried."""
SDPA_GOAL, NAIVE_GOAL, READ_GOAL, PAGED_GOAL = 0.9, 5.0, 0.8, 1 / 1.26
"""The last one: vLLM's paged kernel was 20 to 26 % slower than one over KV in a line (2309.06180, section 7.1)."""
BLOCK_SIZES = (16, 32, 64, 128)
SECTION = "attention"


def attention(hardware: Hardware) -> Iterator[Figure]:
    lengths = (24,) if hardware.is_small else PROMPTS
    peaks = []
    for length in lengths:
        ours = prepared(hardware, 1, length, length, 16)
        seconds = hardware.seconds(ours)
        layer = layer_of(hardware)
        flops = 2 * length * (length + 1) * layer.num_heads * layer.head_size
        yield Figure(SECTION, f"prompt of {length}", flops / seconds / 1e12, "TFLOP/s")
        rival = hardware.seconds(flash_of_torch(hardware, length))
        yield Figure(SECTION, f"prompt of {length}", rival * 1e3, "ms", rival / seconds, "torch flash", SDPA_GOAL)
        if length <= LARGEST_MATRIX:
            naive = hardware.seconds(score_matrix(hardware, length), 5)
            goal = NAIVE_GOAL if length == LARGEST_MATRIX else None
            yield Figure(SECTION, f"prompt of {length}", naive * 1e3, "ms", naive / seconds, "score matrix", goal)
        peaks.append(hardware.peak_bytes(ours))
    for length, peak in zip(lengths, peaks, strict=True):
        yield Figure(SECTION, f"memory at {length}", peak / 2**20, "MiB")


def paging(hardware: Hardware, ceilings: Ceilings) -> Iterator[Figure]:
    """Decode of 64 rows with 2,048 tokens each: one layer's KV is far larger than the caches."""
    num_rows, context = (3, 20) if hardware.is_small else (64, 2048)
    layer = layer_of(hardware)
    num_bytes = 2 * num_rows * context * layer.num_kv_heads * layer.head_size * hardware.dtype.itemsize
    in_line = hardware.seconds(prepared(hardware, num_rows, 1, context, context, is_shuffled=False))
    for block_size in (16,) if hardware.is_small else BLOCK_SIZES:
        seconds = hardware.seconds(prepared(hardware, num_rows, 1, context, block_size))
        share, point = num_bytes / seconds / ceilings.bytes_per_s, f"blocks of {block_size}"
        yield Figure("paging", point, num_bytes / seconds / 1e12, "TB/s", share, "read bandwidth", READ_GOAL)
        yield Figure("paging", point, seconds * 1e6, "us", in_line / seconds, "KV in a line", PAGED_GOAL)


def layer_of(hardware: Hardware) -> LayerSpec:
    return SMALL_LAYER if hardware.is_small else LAYER


def prepared(
    hardware: Hardware, num_rows: int, num_queries: int, context: int, block_size: int, *, is_shuffled: bool = True
) -> Callable[[], None]:
    """One layer's attention in one step, planned."""
    layer = layer_of(hardware)
    impl = TiledAttention(layer, hardware.device, "measured alone")
    batch = batch_of(num_rows, num_queries, context, block_size, is_shuffled=is_shuffled)
    num_blocks = int(batch.block_tables[0].max()) + 1
    shape = (num_blocks, layer.num_kv_heads, block_size, layer.head_size)
    cache = KVCache(hardware.random(*shape), hardware.random(*shape))
    q = hardware.random(num_rows * num_queries, layer.num_heads, layer.head_size)
    out, meta = torch.empty_like(q), impl.plan(batch, 0)
    return lambda: impl.forward(q, cache, meta, out)


def flash_of_torch(hardware: Hardware, length: int) -> Callable[[], None]:
    """With K and V repeated for each head beforehand: not every build groups heads itself."""
    layer = layer_of(hardware)
    q, k, v = (hardware.random(1, layer.num_heads, length, layer.head_size) for _ in range(3))

    def run() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=layer.scale)

    return run


def score_matrix(hardware: Hardware, length: int) -> Callable[[], None]:
    """Scores, softmax and product with V as three operations."""
    layer = layer_of(hardware)
    q, k, v = (hardware.random(layer.num_heads, length, layer.head_size) for _ in range(3))
    hidden = torch.ones(length, length, dtype=torch.bool, device=hardware.type).triu(1)

    def run() -> None:
        scores = (q @ k.transpose(1, 2) * layer.scale).masked_fill(hidden, -torch.inf)
        torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v

    return run
