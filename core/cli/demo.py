"""`switchgear demo`: a real model answers a few prompts, with the times that matter and the plan behind them."""

from __future__ import annotations

import math
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ..errors import RequestError
from ..sampling_params import SamplingParams
from .command import Command
from .options import add_config_options, config_from
from .run import in_template
from .streaming import follow, show_at_once

if TYPE_CHECKING:
    from ..gateway.results import Timing

PROMPTS = (
    "What is the capital of France?",
    "Why is the sky blue? Answer in one sentence.",
    "Name three uses of a paper clip.",
)
PARAMS = SamplingParams(max_tokens=48, temperature=0.0)


def run(arguments: Namespace) -> int:
    config = config_from(arguments)
    print(f"{config.model.name} answers {len(PROMPTS)} prompts greedily, with at most {PARAMS.max_tokens} tokens each;")
    print("it is fetched and converted first if it is not here yet.", flush=True)
    start = time.perf_counter()
    from ..gateway.llm import LLM

    with LLM.from_config(config) as llm:
        print(f"loaded after {time.perf_counter() - start:.1f} s")
        for prompt in PROMPTS:
            print(f"\n> {prompt}", flush=True)
            result = follow(llm.stream(in_template(llm, prompt), PARAMS), show_at_once)
            print()
            if result is None:
                raise KeyboardInterrupt
            if result.error:
                raise RequestError(result.error)
            print(f"[{len(result.token_ids)} tokens, {times(result.timing)}]")
        print(f"\n{llm.plan}")
    return 0


def times(timing: Timing) -> str:
    """Time to the first token, and per token after it where there was one."""
    tpot = "none" if math.isnan(timing.tpot) else f"{timing.tpot * 1e3:.1f} ms"
    return f"TTFT {timing.ttft * 1e3:.0f} ms, TPOT {tpot}"


def add_options(parser: ArgumentParser) -> None:
    add_config_options(parser)


COMMAND = Command("demo", "Let a small model answer a few prompts, and print times and plan.", add_options, run)
