"""Paged against contiguous KV in the same bytes: how many sequences run at once, and what that buys.

The engine with continuous batching and no model serves the lengths of a real chat trace from KV for 16 x 4096 tokens,
with requests waiting all the time; counted are the sequences of each step. With --model-too, SmolLM2 serves the same
lengths divided by --divide, in KV for 16 sequences of the longest, and output tokens a second are compared.

Prediction (PagedAttention, 2309.06180, and arithmetic on the trace): blocks of 16 tokens are 99.35 % full and slots
27.9 %, so about 3.5 times the sequences fit; at least 3 are asked. What that buys in tokens a second depends on how
much of the time goes into prompts, which cost the same on both sides, and on what a wider step costs: a simulator of an
A100 says 1.5.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import measure
import numpy as np
from kv_utilisation import MAX_MODEL_LEN, read_lengths
from measure import Plugins, Report, Target, ratio, spread
from no_model import VOCAB_SIZE, engine_without_model
from switchgear import LLM, SamplingParams

NUM_SLOTS = 16
MAX_NUM_SEQS = 256
NUM_WAITING = 32
"""Requests that wait at every step, so that KV is all that limits who runs."""
PLUGINS: Mapping[str, Plugins] = {
    "contiguous": {"continuous_batching": {}},
    "paged": {"continuous_batching": {}, "paged_kv": {}},
}
SEQUENCES_TARGET = 3.0


class Served(NamedTuple):
    num_rows: float
    """Sequences in a step, on average."""
    num_steps: int
    num_preempted: int


def main() -> int:
    parser = measure.options(__doc__, num_runs=3, has_model=True, has_data=True)
    parser.add_argument("--requests", type=int, default=2000, help="of the trace (%(default)s)")
    parser.add_argument("--model-too", action="store_true", help="serve with the model as well, and time it")
    parser.add_argument("--divide", type=int, default=8, help="lengths by this, for the model (%(default)s)")
    parser.add_argument("--model-requests", type=int, default=192, help="for the model (%(default)s)")
    args = parser.parse_args()
    every = read_lengths(measure.trace(args, "azure_llm_2023_conv.csv"))
    lengths = [(prompt, output) for prompt, output in every if prompt + output <= MAX_MODEL_LEN]

    served = {name: serve(plugins, lengths[: args.requests]) for name, plugins in PLUGINS.items()}
    rows: list[tuple[object, ...]] = [
        (name, f"{arm.num_rows:.1f}", f"{arm.num_steps:,}", arm.num_preempted, "-") for name, arm in served.items()
    ]
    sequences = served["paged"].num_rows / served["contiguous"].num_rows
    target = Target("sequences at once, paged over contiguous", sequences, at_least=SEQUENCES_TARGET)
    plans: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    if args.model_too:
        measure.require_quiet(args)
        speeds, plans = tokens_per_second(args, lengths[: args.model_requests])
        rows += [(f"{name}, SmolLM2", "-", "-", "-", spread(values)) for name, values in speeds.items()]
        gain = ratio(speeds["paged"], speeds["contiguous"])
        notes = (f"output tokens a second, paged over contiguous: {gain}",)
    columns = ("KV", "sequences a step", "steps", "preempted", "output tokens/s")
    return Report("Paged against contiguous KV", columns, rows, [target], plans, notes).show(args)


# -- without a model ------------------------------------------------------------------------------------------------


def serve(plugins: Plugins, lengths: list[tuple[int, int]]) -> Served:
    """Steps until no request is left to wait; what follows would show how the last ones end."""
    engine, executor = engine_without_model(
        plugins,
        kv_tokens=NUM_SLOTS * MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_step_tokens=MAX_MODEL_LEN,
    )
    generator = np.random.default_rng(0)
    arrivals = enumerate(lengths)
    while True:
        num_missing = max(0, NUM_WAITING - len(engine.requests.waiting))
        for index, (num_prompt, num_output) in itertools.islice(arrivals, num_missing):
            prompt = np.array(measure.random_ids(generator, num_prompt, VOCAB_SIZE))
            engine.add(f"{index}", prompt, SamplingParams(max_tokens=num_output, temperature=0))
        if not engine.requests.waiting:
            break
        engine.step()
    assert engine.audit() == []
    return Served(float(np.mean(executor.num_rows)), len(executor.num_rows), engine.driver.num_preempted)


# -- with the model -------------------------------------------------------------------------------------------------


def tokens_per_second(
    args: argparse.Namespace, lengths: list[tuple[int, int]]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Output tokens a second of each arm and run, and each arm's plan."""
    shorter = [(-(-prompt // args.divide), -(-output // args.divide)) for prompt, output in lengths]
    max_model_len = MAX_MODEL_LEN // args.divide + 2
    llms = {
        name: measure.open_llm(
            args,
            plugins,
            kv_tokens=NUM_SLOTS * max_model_len,
            max_num_seqs=MAX_NUM_SEQS,
            max_step_tokens=2048,
            max_model_len=max_model_len,
        )
        for name, plugins in PLUGINS.items()
    }
    generator = np.random.default_rng(0)
    vocab_size = llms["paged"].tokenizer.vocab_size
    prompts = [measure.random_ids(generator, num_prompt, vocab_size) for num_prompt, _ in shorter]
    outputs = [num_output for _, num_output in shorter]
    arms: dict[str, Callable[[int], float]] = {
        name: partial(timed, llm, prompts, outputs) for name, llm in llms.items()
    }
    return measure.in_turn(arms, args.runs), {name: llm.plan.hash for name, llm in llms.items()}


def timed(llm: LLM, prompts: list[list[int]], outputs: list[int], run: int) -> float:
    params = [SamplingParams(max_tokens=length, temperature=0, ignore_eos=True) for length in outputs]
    start = time.perf_counter()
    results = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    assert [len(result.token_ids) for result in results] == outputs
    return sum(outputs) / seconds


if __name__ == "__main__":
    sys.exit(main())
