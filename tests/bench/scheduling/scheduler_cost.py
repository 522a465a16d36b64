"""Python time to plan a step for many running requests: everything between two steps that decides who runs.

The engine with the recommended plugins and no model decodes for 256 requests. Timed inside its own steps: `plan` (the
view, the policy, the modifiers, the checks) and `grow` (the clamp, and KV for each row).

Target: 1 ms. It is small beside the step that it plans: a decode step of an 8B model for 128 requests reads so much
that an H200 needs 11.5 ms at least.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import sys

import measure
import numpy as np
from measure import Report, Stopwatch, Target, spread
from no_model import VOCAB_SIZE, engine_without_model
from switchgear import SamplingParams
from switchgear.core.engine.engine import Engine
from switchgear.core.recipes import SCHEDULING

TARGET_MS = 1.0
PROMPT_LENGTHS = (200, 300)
STAGES = ("plan", "grow")


def main() -> int:
    parser = measure.options(__doc__, num_runs=5)
    parser.add_argument("--requests", type=int, default=256, help="running requests (%(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of one run (%(default)s)")
    parser.add_argument("--top", type=int, default=15, help="lines of the profile (%(default)s)")
    args = parser.parse_args()
    measure.require_quiet(args)

    engine = decoding_engine(args.requests, (args.runs + 2) * args.steps)
    profile = profiled(engine, args.steps)
    watches = {stage: Stopwatch() for stage in STAGES}
    for stage, watch in watches.items():
        watch.watch(engine, stage)
    rows: list[tuple[object, ...]] = []
    medians = []
    for run in range(args.runs):
        steps = np.array([timed_step(engine, watches) for _ in range(args.steps)]) * 1e3
        medians.append(float(np.median(steps.sum(axis=1))))
        parts = [f"{value:.3f}" for value in np.median(steps, axis=0)]
        rows.append((f"run {run + 1}", *parts, f"{medians[-1]:.3f}", f"{np.quantile(steps.sum(axis=1), 0.99):.3f}"))
    assert len(engine.requests.running) == args.requests
    target = Target(f"ms to plan a step of {args.requests} requests", spread(medians), at_most=TARGET_MS)
    columns = ("ms, median of the steps", *STAGES, "sum", "99th percentile")
    notes = tuple(top_of(profile, args.top))
    return Report("Scheduler cost", columns, rows, [target], notes=notes).show(args)


def decoding_engine(num_requests: int, num_steps: int) -> Engine:
    """Every request has its first token, and none ends within the next `num_steps` steps."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(*PROMPT_LENGTHS, num_requests).tolist()
    max_model_len = PROMPT_LENGTHS[1] + num_requests + num_steps
    engine, _ = engine_without_model(
        SCHEDULING,
        kv_tokens=(max_model_len + 16) * num_requests,
        max_model_len=max_model_len,
        max_num_seqs=num_requests,
        max_step_tokens=2048,
    )
    for index, length in enumerate(lengths):
        prompt = np.array(measure.random_ids(generator, length, VOCAB_SIZE))
        engine.add(f"{index}", prompt, SamplingParams(max_tokens=max_model_len - length, temperature=0))
    while any(not sequence.num_output for sequence in engine.requests):
        engine.step()
    return engine


def timed_step(engine: Engine, watches: dict[str, Stopwatch]) -> list[float]:
    """Seconds in each stage of one step."""
    engine.step()
    return [watch.lap() for watch in watches.values()]


def profiled(engine: Engine, num_steps: int) -> pstats.Stats:
    """The functions under `plan` and `grow`; a profile makes small functions look dearer than they are."""
    profile = cProfile.Profile()
    plan, grow = engine.plan, engine.grow
    for _ in range(num_steps):
        # planning twice is harmless, and the second one is the one that the step runs
        wishes, view = profile.runcall(plan)
        assert wishes is not None and view is not None
        profile.runcall(grow, wishes, view)
        engine.step()
    return pstats.Stats(profile)


def top_of(profile: pstats.Stats, num_lines: int) -> list[str]:
    """The functions that take most by themselves, as the profiler prints them."""
    stream = io.StringIO()
    profile.stream = stream  # type: ignore[attr-defined]
    profile.strip_dirs().sort_stats("tottime").print_stats(num_lines)
    lines = stream.getvalue().splitlines()
    first = next(index for index, line in enumerate(lines) if "tottime" in line)
    return ["profile of these two stages", *lines[first:]]


if __name__ == "__main__":
    sys.exit(main())
