"""Clients that stream one completion after the other for a while: no error, and an event loop that is never late.

Prediction: no error, lag of the gateway's event loop under 10 ms at the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import sys
import time

import serving
from lean_client import Connection, Streamed

SMALL_POOL = ("--set", "engine.kv_bytes=400000000")
"""Pages of KV come from the system when first written: a small pool is soon in use whole."""
GREEDY = {"ignore_eos": True, "temperature": 0}


def main() -> int:
    parser = serving.options(__doc__)
    parser.add_argument("--clients", type=int, default=64, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="(%(default)s)")
    parser.add_argument("--input-len", type=int, default=64, help="(%(default)s)")
    parser.add_argument("--output-len", type=int, default=64, help="(%(default)s)")
    args = parser.parse_args()
    with serving.server(args, SMALL_POOL) as server:
        memory, own = server.memory(), time.process_time()
        start = time.perf_counter()
        results = asyncio.run(load(server.port, args))
        seconds, own = time.perf_counter() - start, time.process_time() - own
        cpu, grown = server.cpu_seconds(), server.memory() / memory
        lag = quantile_of(server.get("/metrics"), "switchgear_event_loop_lag_seconds", 0.99)
        problems = server.post("/admin/core/audit", {})
    whole = [result for result in results if result.is_whole and not result.error]
    errors = [result for result in results if result not in whole]
    num_tokens = sum(len(result.token_times) for result in whole)
    gaps = [1e3 * (b - a) for result in whole for a, b in zip(result.token_times, result.token_times[1:], strict=False)]
    print(f"{args.clients} clients, {seconds:.0f} s: {len(whole)} answers, {len(errors)} errors")
    print(f"pieces of text a second   {num_tokens / seconds:.1f}")
    print(f"TTFT, ms                  median {1e3 * statistics.median(result.ttft for result in whole):.0f}")
    print(f"gap between pieces, ms    median {statistics.median(gaps):.1f}")
    print(f"event-loop lag            99 % under {1e3 * lag:.1f} ms")
    print(f"CPU seconds               gateway {cpu[0]:.1f}, engine {sum(cpu[1:]):.1f}, this client {own:.1f}")
    print(f"memory                    {grown:.3f} of that before")
    print(f"audit                     {problems}")
    for error in errors[:5]:
        print(f"error: {error.status} {error.error}")
    is_good = not errors and lag <= 0.01
    print("PASS" if is_good else "FAIL")
    return not is_good


async def load(port: int, args: argparse.Namespace) -> list[Streamed]:
    end = time.perf_counter() + args.seconds
    results: list[Streamed] = []

    async def client(number: int) -> None:
        chance = random.Random(number)
        connection = Connection("127.0.0.1", port)
        while time.perf_counter() < end:
            prompt = [chance.randrange(5, 500) for _ in range(args.input_len)]
            body = {"model": args.model, "prompt": prompt, "max_tokens": args.output_len, **GREEDY}
            results.append(await connection.stream("/v1/completions", body))
        connection.close()

    await asyncio.gather(*map(client, range(args.clients)))
    return results


def quantile_of(metrics: str, name: str, share: float) -> float:
    """The upper bound of the bucket of a Prometheus histogram that holds this share of what was observed."""
    buckets = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} ([\d.eE+]+)$', metrics, re.MULTILINE)
    total = float(buckets[-1][1])
    return next(float(bound) for bound, count in buckets if float(count) >= share * total)


if __name__ == "__main__":
    sys.exit(main())
