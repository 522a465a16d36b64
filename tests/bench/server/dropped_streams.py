"""Streams that are opened and left at random: nothing of them may stay behind.

Prediction: after a warm-up the memory of both processes stays within 5 %, the engine's books balance and nobody runs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

import serving
from lean_client import Connection

SMALL_POOL = ("--set", "engine.kv_bytes=200000000")
"""Pages of KV come from the system when first written: these are all in use before anything is compared."""


def main() -> int:
    parser = serving.options(__doc__)
    parser.add_argument("--streams", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--at-once", type=int, default=16, help="(%(default)s)")
    args = parser.parse_args()
    with serving.server(args, SMALL_POOL) as server:
        asyncio.run(drop(server.port, args, args.streams, seed=0))
        before = server.memory()
        asyncio.run(drop(server.port, args, args.streams, seed=1))
        time_to_idle = seconds_until_idle(server)
        after, problems = server.memory(), server.post("/admin/core/audit", {})
        running = server.metric("switchgear_requests_running") + server.metric("switchgear_requests_waiting")
    print(f"{args.streams} streams, {args.at_once} at once")
    print(f"memory of both processes  {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after: {after / before:.3f}")
    print(f"idle after                {time_to_idle:.2f} s")
    print(f"audit                     {problems}")
    is_clean = after < 1.05 * before and not running and not problems
    print("PASS" if is_clean else "FAIL")
    return not is_clean


async def drop(port: int, args: argparse.Namespace, num_streams: int, seed: int) -> None:
    chance = random.Random(seed)
    left = asyncio.Semaphore(args.at_once)

    async def one(prompt: list[int], leave_after: int | None, pause: float) -> None:
        async with left:
            connection = Connection("127.0.0.1", port)
            body = {"model": args.model, "prompt": prompt, "max_tokens": 24, "ignore_eos": True}
            await connection.stream("/v1/completions", body, leave_after=leave_after)
            await asyncio.sleep(pause)
            connection.close()

    tasks = []
    for _ in range(num_streams):
        prompt = [chance.randrange(5, 500) for _ in range(chance.randrange(1, 64))]
        leave_after = chance.choice([0, 0, 1, 2, 5, 12, None])
        tasks.append(one(prompt, leave_after, chance.random() * 0.02))
    await asyncio.gather(*tasks)


def seconds_until_idle(server: serving.Server) -> float:
    start = time.perf_counter()
    while server.metric("switchgear_requests_running") or server.metric("switchgear_requests_waiting"):
        if time.perf_counter() - start > 30:
            break
        time.sleep(0.02)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
