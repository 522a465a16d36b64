"""Workloads that are made: fixed lengths, shared prefixes and conversations of random tokens, and prompts of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import ConfigError
from .arrivals import AT_ONCE, Arrivals
from .keys import key_of
from .prompt_files import read_prompts
from .workload import ALONE, Ask, Segment, Workload

About = Mapping[str, str | int | float]
WARM_UP_TEXTS = ("One, two, three,", "Warm water and cold")


def fixed(
    num_requests: int,
    input_len: int,
    output_len: int,
    *,
    seed: int = 0,
    arrivals: Arrivals = AT_ONCE,
    ignore_eos: bool = True,
) -> Workload:
    """Requests of one length that have nothing in common. Raises ConfigError."""
    check_counts(num_requests=num_requests, input_len=input_len, output_len=output_len)
    asks = [
        Ask(0.0, output_len, (Segment(key_of(seed, "own", number), input_len),), ignore_eos=ignore_eos)
        for number in range(num_requests)
    ]
    about = {"num_requests": num_requests, "input_len": input_len, "output_len": output_len}
    return made("fixed", asks, seed, arrivals, about)


def shared_prefix(
    num_requests: int,
    prefix_len: int,
    input_len: int,
    output_len: int,
    *,
    num_prefixes: int = 1,
    seed: int = 0,
    arrivals: Arrivals = AT_ONCE,
    ignore_eos: bool = True,
) -> Workload:
    """Requests that begin with one of `num_prefixes` prefixes, taken in turn, before `input_len` tokens of their own.

    Raises ConfigError.
    """
    check_counts(
        num_requests=num_requests,
        prefix_len=prefix_len,
        input_len=input_len,
        output_len=output_len,
        num_prefixes=num_prefixes,
    )
    prefixes = [Segment(key_of(seed, "prefix", number), prefix_len) for number in range(num_prefixes)]
    asks = []
    for number in range(num_requests):
        own = Segment(key_of(seed, "own", number), input_len)
        asks.append(Ask(0.0, output_len, (prefixes[number % num_prefixes], own), ignore_eos=ignore_eos))
    about = {
        "num_requests": num_requests,
        "prefix_len": prefix_len,
        "num_prefixes": num_prefixes,
        "input_len": input_len,
        "output_len": output_len,
    }
    return made("shared-prefix", asks, seed, arrivals, about)


def conversations(
    num_conversations: int,
    num_turns: int,
    input_len: int,
    output_len: int,
    *,
    prefix_len: int = 0,
    seed: int = 0,
    arrivals: Arrivals = AT_ONCE,
    ignore_eos: bool = True,
) -> Workload:
    """Conversations of `num_turns` turns: each sends all that was said and `input_len` tokens more.

    prefix_len: tokens that all of them begin with, as of a system prompt. Raises ConfigError.
    """
    check_counts(num_conversations=num_conversations, num_turns=num_turns, input_len=input_len, output_len=output_len)
    if prefix_len < 0:
        raise ConfigError(f"prefix_len is {prefix_len}: it must be 0 or more")
    system = (Segment(key_of(seed, "prefix", 0), prefix_len),) if prefix_len else ()
    asks = []
    for number in range(num_conversations):
        for turn in range(num_turns):
            own = Segment(key_of(seed, "turn", number, turn), input_len)
            segments = (own,) if turn else (*system, own)
            asks.append(Ask(0.0, output_len, segments, conversation=number, ignore_eos=ignore_eos))
    about = {
        "num_conversations": num_conversations,
        "num_turns": num_turns,
        "prefix_len": prefix_len,
        "input_len": input_len,
        "output_len": output_len,
    }
    return made("conversations", asks, seed, arrivals, about)


def from_prompts(
    path: Path,
    output_len: int,
    *,
    num_requests: int | None = None,
    chat: bool = False,
    seed: int = 0,
    arrivals: Arrivals = AT_ONCE,
    ignore_eos: bool = True,
) -> Workload:
    """The prompts of a file, see `prompt_files`; those with several turns are conversations.

    num_requests: take so many, drawn by the seed, in the order of the file; None takes all. chat: send prompts of one
    turn through the model's chat template too. Raises ConfigError.
    """
    check_counts(output_len=output_len)
    prompts = read_prompts(path)
    chosen = choose(len(prompts), num_requests, seed, f"{path} has {len(prompts)} prompts")
    asks = []
    for number in chosen:
        turns = prompts[number]
        conversation = number if chat or len(turns) > 1 else ALONE
        asks += [Ask(0.0, output_len, text=turn, conversation=conversation, ignore_eos=ignore_eos) for turn in turns]
    about: About = {"file": path.name, "num_requests": len(chosen), "output_len": output_len}
    return made(path.name, asks, seed, arrivals, about)


def warm_up_workload(max_model_len: int, *, has_text: bool = False, ignore_eos: bool = True) -> Workload:
    """Two requests of 32 + 8 tokens, less where the engine takes less, whose tokens no other workload has.

    has_text: two short texts instead, for a server that reads no token ids.
    """
    output_len = min(8, max_model_len - 1)
    segments = [Segment(key_of("warm-up", number), min(32, max_model_len - output_len)) for number in range(2)]
    asks = [Ask(0.0, output_len, (segment,), ignore_eos=ignore_eos) for segment in segments]
    if has_text:
        asks = [Ask(0.0, output_len, text=text, ignore_eos=ignore_eos) for text in WARM_UP_TEXTS]
    return Workload("warm-up", tuple(asks))


# -- parts ----------------------------------------------------------------------------------------------------------


def made(name: str, asks: Sequence[Ask], seed: int, arrivals: Arrivals, about: About) -> Workload:
    check_counts(seed=seed, least=0)
    return arrivals.of(Workload(name, tuple(asks), seed=seed, about={"workload": name, "seed": seed, **about}))


def check_counts(*, least: int = 1, **counts: int) -> None:
    for name, count in counts.items():
        if count < least:
            raise ConfigError(f"{name} is {count}: it must be at least {least}")


def choose(count: int, wanted: int | None, seed: int, has: str) -> list[int]:
    """`wanted` of the numbers below `count`, in order. Raises ConfigError: nothing is asked twice, since a cache that
    has seen a prompt would answer for the engine."""
    if wanted is None:
        return list(range(count))
    check_counts(num_requests=wanted)
    if wanted > count:
        raise ConfigError(f"{has}, fewer than the {wanted} requests that were asked for")
    drawn = np.random.default_rng([seed, 0xC4005E]).choice(count, wanted, replace=False)
    return sorted(drawn.tolist())
