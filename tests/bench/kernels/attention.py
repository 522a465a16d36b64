"""One attention layer of SmolLM2-135M over paged KV, eager and by `flash_attention`: time, and memory at the peak.

Both arms run in turn on the same step; the least time of each counts. On one thread the thread's own time is taken,
which a busy machine does not change much. Memory is what a step takes beside what was there before it (Linux), and its
growth is by what twice the prompt multiplies it: 2 is linear, 4 quadratic.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from switchgear.core.defaults import GatheredAttention, StoredAsComputed
from switchgear.core.records import NO_ROWS, Batch, Device, KVCache, LayerSpec, Refusal
from switchgear.plugins.flash_attention import FlashAttention

LAYER = LayerSpec(num_heads=9, num_kv_heads=3, head_size=64, scale=0.125)
BLOCK_SIZE = 16
POINTS = {
    "prompt of 512": (1, 512, 512),
    "prompt of 1,024": (1, 1024, 1024),
    "prompt of 2,048": (1, 2048, 2048),
    "prompt of 4,096": (1, 4096, 4096),
    "512 behind 3,584": (1, 512, 4096),
    "16 prompts of 128": (16, 128, 128),
    "decode 1 x 2,048": (1, 1, 2048),
    "decode 16 x 256": (16, 1, 256),
    "decode 16 x 2,048": (16, 1, 2048),
}
"""Rows, queries of each, and tokens in its cache."""
DOUBLED = (("prompt of 1,024", "prompt of 2,048"), ("prompt of 2,048", "prompt of 4,096"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="(%(default)s)")
    parser.add_argument("--backend", default="auto", choices=("auto", "native", "sdpa"), help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    flash = flash_attention(args.backend, args.dtype)
    found = list(measured(args, flash))
    growths = growths_of({point["point"]: point for point in found})
    if args.json:
        what = {"threads": args.threads, "dtype": args.dtype, "flash": flash.reason}
        print(json.dumps({**what, "points": found, "growths": growths}))
        return
    print(f"{args.threads} threads, {args.dtype}, milliseconds and megabytes; flash: {flash.reason}")
    print("| point | eager ms | flash ms | ratio | eager MB | flash MB |\n|---|---|---|---|---|---|")
    for point in found:
        print("| {point} | {eager:.2f} | {flash:.2f} | {ratio:.1f} | {eager_mb:.1f} | {flash_mb:.1f} |".format(**point))
    for growth in growths:
        print("memory, {from} to {to}: eager {eager:.1f} times, flash {flash:.1f} times".format(**growth))


def flash_attention(backend: Any, dtype: str) -> Any:
    """The plugin's answer for the layer."""
    codec: Any = StoredAsComputed(dtype)
    plugin = FlashAttention(FlashAttention.Config(backend=backend))
    answer = plugin.attention_impl(LAYER, codec, Device("cpu", dtype))
    if isinstance(answer, Refusal):
        raise SystemExit(f"flash_attention refuses: {'; '.join(answer.reasons)}")
    return answer


def growths_of(points: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What twice the prompt does to the memory at the peak."""
    return [
        {"from": one, "to": other}
        | {name: points[other][f"{name}_mb"] / max(points[one][f"{name}_mb"], 0.1) for name in ("eager", "flash")}
        for one, other in DOUBLED
    ]


def measured(args: argparse.Namespace, flash: Any) -> Iterator[dict[str, Any]]:
    codec: Any = StoredAsComputed(args.dtype)
    impls: dict[str, Any] = {"eager": GatheredAttention(LAYER, codec), "flash": flash}
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    for point, (num_rows, num_queries, context) in POINTS.items():
        batch, cache = paged(num_rows, num_queries, context, getattr(torch, args.dtype))
        q = torch.randn(num_rows * num_queries, LAYER.num_heads, LAYER.head_size).to(cache.k.dtype)
        out = torch.empty_like(q)
        least = dict.fromkeys(impls, float("inf"))
        peaks = dict.fromkeys(impls, 0.0)
        for _ in range(args.runs):
            for name, impl in impls.items():
                seconds, peak = once(partial(attend, impl, batch, cache, q, out), clock)
                least[name], peaks[name] = min(least[name], 1e3 * seconds), max(peaks[name], peak)
        megabytes = {f"{name}_mb": peak for name, peak in peaks.items()}
        yield {"point": point, **least, **megabytes, "ratio": least["eager"] / least["flash"]}


def attend(impl: Any, batch: Batch, cache: KVCache, q: torch.Tensor, out: torch.Tensor) -> None:
    impl.forward(q, cache, impl.plan(batch, 0), out)


def once(run: Callable[[], None], clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds, and megabytes at the peak beside those before."""
    # what was freed and kept would hide what is taken next
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before, start = kilobytes("VmRSS"), clock()
    run()
    return clock() - start, (kilobytes("VmHWM") - before) / 1e3


def kilobytes(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


def paged(num_rows: int, num_queries: int, context: int, dtype: torch.dtype) -> tuple[Batch, KVCache]:
    """Rows of equal lengths whose blocks lie anywhere."""
    generator = np.random.default_rng(0)
    table = generator.permutation(num_rows * context // BLOCK_SIZE).reshape(num_rows, -1)
    positions = np.tile(np.arange(context - num_queries, context), num_rows)
    row_of = np.repeat(np.arange(num_rows), num_queries)
    batch = Batch(
        step=0,
        rows=np.arange(num_rows),
        token_ids=np.zeros(len(positions), dtype=np.int64),
        positions=positions,
        query_start=np.arange(num_rows + 1) * num_queries,
        context_lens=np.full(num_rows, context),
        num_drafts=np.zeros(num_rows, dtype=np.int64),
        block_tables=(table,),
        slots=(table[row_of, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,),
        block_size=BLOCK_SIZE,
        copies=(),
        outputs=NO_ROWS,
        scored=NO_ROWS,
        targets=NO_ROWS,
    )
    shape = (table.size, BLOCK_SIZE, LAYER.num_kv_heads, LAYER.head_size)
    return batch, KVCache(torch.randn(shape).to(dtype), torch.randn(shape).to(dtype))


if __name__ == "__main__":
    main()
