"""How much of the KV that an allocator holds back is ever filled, over the lengths of a real chat trace.

The allocators of the engine are driven through every decode step of every request whose prompt and output fit into 4096
tokens: tokens stored over tokens reserved, summed over steps. A row's blocks are its own, so the sum does not depend on
who runs beside it, and the requests run one after another. Nothing is timed: the figures repeat exactly.

Prediction, by arithmetic on the trace: one slot of 4096 tokens a sequence 27.9 %; blocks of 16 tokens 99.35 %. The
paper measured 20.4 % and 96.3 % (PagedAttention, 2309.06180, figure 2) on other lengths.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import measure
from measure import Report, Target
from switchgear.core.defaults import ContiguousSlots
from switchgear.core.interfaces import KVAllocator
from switchgear.plugins.paged_kv import BlockPool

MAX_MODEL_LEN = 4096
PREDICTED = {1: 100.0, 8: 99.69, 16: 99.35, 32: 98.66, 64: 97.31, 128: 94.72, 256: 90.24}
"""Percent by block size."""
PREDICTED_CONTIGUOUS = 27.9
TOLERANCE = 0.5
"""Percentage points."""


def main() -> int:
    parser = measure.options(__doc__, has_data=True)
    parser.add_argument("--every", type=int, default=1, help="take every so many requests (%(default)s)")
    args = parser.parse_args()
    every = read_lengths(measure.trace(args, "azure_llm_2023_conv.csv"))
    lengths = [(prompt, output) for prompt, output in every if prompt + output <= MAX_MODEL_LEN]
    num_dropped, lengths = len(every) - len(lengths), lengths[:: args.every]

    rows: list[tuple[object, ...]] = []
    differences = []
    for name, block_size, allocator, predicted in arms():
        percent = 100 * utilisation(allocator, block_size, lengths)
        rows.append((name, f"{percent:.2f}", f"{predicted:.2f}"))
        differences.append(abs(percent - predicted))
    target = Target("largest difference from the prediction, percentage points", max(differences), at_most=TOLERANCE)
    note = (
        f"{len(lengths)} requests; {num_dropped} of {len(every)} have more than {MAX_MODEL_LEN} tokens and are left out"
    )
    return Report("KV utilisation", ("allocator", "percent", "predicted"), rows, [target], notes=(note,)).show(args)


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request, in order of arrival."""
    with path.open(encoding="utf-8", newline="") as lines:
        return [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(lines)]


def arms() -> list[tuple[str, int, KVAllocator, float]]:
    """Name, tokens a block, allocator with room for one sequence of any length, predicted percent."""
    contiguous = ContiguousSlots(1, MAX_MODEL_LEN, 1)
    paged = [
        (f"blocks of {size}", size, BlockPool(size, [-(-MAX_MODEL_LEN // size)]), predicted)
        for size, predicted in PREDICTED.items()
    ]
    return [("contiguous", MAX_MODEL_LEN, contiguous, PREDICTED_CONTIGUOUS), *paged]


def utilisation(allocator: KVAllocator, block_size: int, lengths: list[tuple[int, int]]) -> float:
    """Tokens stored over tokens reserved, summed over the decode steps of all requests."""
    total = allocator.num_free()
    num_stored = num_reserved = 0
    for row, (num_prompt, num_output) in enumerate(lengths):
        first, end = num_prompt, num_prompt + num_output
        while first < end:
            assert allocator.grow(row, first) is not None
            # the next token that can need another block comes after the one that holds the last
            until = min(end, -(-first // block_size) * block_size + 1)
            num_steps = until - first
            num_stored += num_steps * (first + until - 1) // 2
            num_reserved += num_steps * (total - allocator.num_free()) * block_size
            first = until
        allocator.release(row)
    assert allocator.audit().is_clean and allocator.num_free() == total
    return num_stored / num_reserved


if __name__ == "__main__":
    sys.exit(main())
