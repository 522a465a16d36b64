"""From `switchgear serve` to the first answered token, with the weights at hand: how long, and where it goes.

Prediction: under 8 seconds.
"""

from __future__ import annotations

import statistics
import sys
import time

import serving

TARGET = 8.0


def main() -> int:
    parser = serving.options(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="(%(default)s)")
    args = parser.parse_args()
    ready, answered, phases = [], [], []
    for _ in range(args.runs):
        with serving.server(args) as server:
            ready.append(time.perf_counter() - server.launched)
            body = {"model": args.model, "prompt": "The", "max_tokens": 1, "temperature": 0}
            assert server.post("/v1/completions", body)["choices"]
            answered.append(time.perf_counter() - server.launched)
            phases.append(server.metrics("switchgear_engine_startup_seconds"))
    print(f"ready after           {spread(ready)} s")
    print(f"first token after     {spread(answered)} s")
    print("the engine's process, seconds from its launch:")
    for phase in phases[0]:
        print(f"  {phase:<20}{spread([seconds[phase] for seconds in phases])}")
    is_good = statistics.median(answered) < TARGET
    print("PASS" if is_good else "FAIL", f"first token: {statistics.median(answered):.2f} s, target {TARGET:g}")
    return not is_good


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
