"""What serving costs: streaming clients of a server against the same engine without one, in turn.

All requests of a run enter at once and are answered by so many tokens each. Raw is `LLM.generate` in this process,
which is idle while the server computes. Both engines have the recommended plugins without the prefix cache.

Prediction: over HTTP at least 90 % of the raw tokens a second, lag of the gateway's event loop under 10 ms at the 99th
percentile.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

import serving
from lean_client import Connection
from many_clients import quantile_of
from switchgear.core.config import build_config
from switchgear.core.lab.points import Point
from switchgear.core.lab.raw import RawEngine

LEAST, MOST_LAG = 0.9, 0.01
GREEDY = {"ignore_eos": True, "temperature": 0}


def main() -> int:
    parser = serving.options(__doc__)
    parser.add_argument("--clients", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--input-len", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--output-len", type=int, default=128, help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=7, help="of each side (%(default)s)")
    args = parser.parse_args()
    point = Point(args.clients, args.input_len, args.output_len)
    config = build_config(off=["prefix_cache"], overrides=[f"model.name={args.model}", *args.set])
    with serving.server(args, ("--off", "prefix_cache")) as server:
        raw = RawEngine(config)
        by_side: dict[str, list[float]] = {"raw": [], "HTTP": []}
        own, cpu = 0.0, [0.0, 0.0]
        for run in range(args.runs + 1):
            raw_seconds = raw.run(point)
            before, own_before = server.cpu_seconds(), time.process_time()
            http_seconds = asyncio.run(serve(server.port, args.model, raw.random_prompts(point), point))
            if run:  # the first one warms up
                by_side["raw"].append(raw_seconds)
                by_side["HTTP"].append(http_seconds)
                own += time.process_time() - own_before
                cpu = [a + b - c for a, b, c in zip(cpu, server.cpu_seconds(), before, strict=True)]
        raw.close()
        lag = quantile_of(server.get("/metrics"), "switchgear_event_loop_lag_seconds", 0.99)
    num_tokens = point.num_requests * point.output_len
    for side, seconds in by_side.items():
        speeds = [num_tokens / each for each in seconds]
        print(f"{side:<26}{statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f}) tokens/s")
    shares = [a / b for a, b in zip(by_side["raw"], by_side["HTTP"], strict=True)]
    share, total = statistics.median(shares), sum(by_side["HTTP"])
    print(f"{'HTTP of raw':<26}{share:.3f} ({min(shares):.3f} to {max(shares):.3f})")
    print(f"{'event-loop lag':<26}99 % under {1e3 * lag:.1f} ms")
    print(
        f"{'CPU seconds of':<26}gateway {cpu[0]:.2f}, engine {sum(cpu[1:]):.2f}, this client {own:.2f}, in {total:.2f}"
    )
    is_good = share >= LEAST and lag <= MOST_LAG
    print("PASS" if is_good else "FAIL")
    return not is_good


async def serve(port: int, model: str, prompts: list[list[int]], point: Point) -> float:
    """Seconds until all are answered."""
    connections = [Connection("127.0.0.1", port) for _ in prompts]
    body = {"model": model, "max_tokens": point.output_len, **GREEDY}
    start = time.perf_counter()
    results = await asyncio.gather(
        *(
            connection.stream("/v1/completions", {**body, "prompt": prompt})
            for connection, prompt in zip(connections, prompts, strict=True)
        )
    )
    seconds = time.perf_counter() - start
    for connection in connections:
        connection.close()
    for result in results:
        if result.error or not result.is_whole or result.finish_reason != "length":
            raise SystemExit(f"a request failed: {result.status} {result.error} {result.finish_reason}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
