"""Decode steps with and without `cpu_graphs`: milliseconds a step of the whole engine, by number of rows, in turn.

Both engines are in this process and take turns at every point; each run decodes the same number of tokens behind short
prompts. Medians, and the ratio with its spread over the runs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from contextlib import ExitStack
from typing import Any

from switchgear import LLM, SamplingParams

BESIDE: dict[str, dict[str, Any]] = {
    name: {} for name in ("continuous_batching", "paged_kv", "chunked_prefill", "flash_attention", "native_cpu")
}
ROWS = (1, 2, 4, 8, 16, 32, 64)
PROMPT_LEN = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="(%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="(%(default)s)")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="decoded in a run (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    args = parser.parse_args()
    with ExitStack() as stack:
        eager, recorded = (
            stack.enter_context(LLM(args.model, dtype=args.dtype, plugins=plugins))
            for plugins in (BESIDE, {**BESIDE, "cpu_graphs": {}})
        )
        if not args.json:
            print("milliseconds a step\n| rows | eager | recorded | ratio | from, to |\n|---|---|---|---|---|")
        for num_rows in args.rows:
            for llm in (eager, recorded):  # what is recorded is recorded here
                seconds(llm, num_rows, args.tokens)
            runs = [
                (seconds(eager, num_rows, args.tokens), seconds(recorded, num_rows, args.tokens))
                for _ in range(args.runs)
            ]
            point = point_of(num_rows, runs, args.tokens)
            if args.json:
                print(json.dumps(point), flush=True)
            else:
                line = "| {rows} | {eager:.2f} | {recorded:.2f} | {ratio:.2f} | {least:.2f}, {most:.2f} |"
                print(line.format(**point), flush=True)


def seconds(llm: LLM, num_rows: int, num_tokens: int) -> float:
    """From the first token that all have to the last, which leaves the prompts out."""
    draw = random.Random(num_rows)
    prompts = [[draw.randrange(1000, 40000) for _ in range(PROMPT_LEN)] for _ in range(num_rows)]
    started = time.perf_counter()
    results = llm.generate(prompts, SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True))
    return time.perf_counter() - started - max(result.timing.ttft or 0.0 for result in results)


def point_of(num_rows: int, runs: list[tuple[float, float]], num_tokens: int) -> dict[str, float]:
    ratios = sorted(eager / recorded for eager, recorded in runs)
    eager, recorded = (1000 * statistics.median(side) / (num_tokens - 1) for side in zip(*runs, strict=True))
    ratio = statistics.median(ratios)
    return {
        "rows": num_rows,
        "eager": eager,
        "recorded": recorded,
        "ratio": ratio,
        "least": ratios[0],
        "most": ratios[-1],
    }


if __name__ == "__main__":
    main()
