"""All linears of a small model, one after the other, from packed weights against PyTorch, by number of rows.

More weights than any cache holds, so that each pass reads them from memory, as a decode step does. Both arms and a
plain read of as many bytes run in turn; the least time of each counts. On one thread the thread's own time is taken,
which a busy machine does not change much; on more, time on the clock, which wants a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from switchgear.kernels.cpu.library import native
from switchgear.kernels.cpu.linear import PackedLinear, linear, pack
from switchgear.kernels.cpu.memory import Arena, chunk

LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Outputs and inputs of the linears of one layer of SmolLM2-135M."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 64, 544], help="(%(default)s)")
    parser.add_argument("--layers", type=int, default=15, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    rows = [{"rows": count, **row} for count, row in measure(args, clock).items()]
    if args.json:
        print(json.dumps({"level": native().level_name, "threads": args.threads, "dtype": args.dtype, "points": rows}))
        return
    print(f"{native().level_name}, {args.threads} threads, {args.dtype}, {args.layers} layers, milliseconds")
    print("| rows | PyTorch | packed | ratio | share of a plain read | GFLOP/s |\n|---|---|---|---|---|---|")
    for row in rows:
        print("| {rows} | {torch:.2f} | {packed:.2f} | {ratio:.2f} | {share:.0%} | {gflops:.0f} |".format(**row))


def measure(args: argparse.Namespace, clock: Callable[[], float]) -> dict[int, Mapping[str, float]]:
    """By number of rows."""
    dtype, arena = getattr(torch, args.dtype), Arena()
    weights = [torch.randn(shape).to(dtype) for shape in LAYER * args.layers]
    packed = [pack(weight, arena=arena) for weight in weights]
    num_elements = sum(weight.numel() for weight in weights)
    bytes_to_read = chunk(num_elements * dtype.itemsize).fill_(1).view(torch.int64)
    found: dict[int, Mapping[str, float]] = {}
    for num_rows in args.rows:
        inputs = {size: torch.randn(num_rows, size).to(dtype) for _, size in LAYER}
        arms: dict[str, Callable[[], object]] = {
            "torch": partial(multiply_plain, inputs, weights),
            "packed": partial(multiply_packed, inputs, packed),
            "read": bytes_to_read.sum,
        }
        times = least_times(arms, args.runs, clock)
        found[num_rows] = {
            **times,
            "ratio": times["torch"] / times["packed"],
            "share": times["read"] / times["packed"],
            "gflops": 2e-6 * num_rows * num_elements / times["packed"],
        }
    return found


def multiply_plain(inputs: Mapping[int, torch.Tensor], weights: Sequence[torch.Tensor]) -> None:
    for weight in weights:
        torch.nn.functional.linear(inputs[weight.shape[1]], weight)


def multiply_packed(inputs: Mapping[int, torch.Tensor], weights: Sequence[PackedLinear]) -> None:
    for weight in weights:
        linear(inputs[weight.num_inputs], weight)


def least_times(
    arms: Mapping[str, Callable[[], object]], num_runs: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Milliseconds of each arm's quickest run. They run in turn, so that nothing of one is left in a cache."""
    least = dict.fromkeys(arms, float("inf"))
    with torch.inference_mode():
        for _ in range(num_runs):
            for name, arm in arms.items():
                start = clock()
                arm()
                least[name] = min(least[name], 1e3 * (clock() - start))
    return least


if __name__ == "__main__":
    main()
