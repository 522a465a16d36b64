"""Workloads of recorded traffic: lengths and times of a trace, scaled, with random tokens that share what it shares."""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import ConfigError
from .arrivals import AT_ONCE, Arrivals
from .keys import key_of
from .trace_files import HASH_BLOCK, Record, read_trace
from .workload import Ask, Segment, Workload
from .workloads import About, check_counts


def from_trace(
    path: Path,
    *,
    num_requests: int | None = None,
    time_scale: float = 1.0,
    length_scale: float = 1.0,
    max_len: int | None = None,
    seed: int = 0,
    arrivals: Arrivals | None = None,
    ignore_eos: bool = True,
) -> Workload:
    """The requests of a trace, from its beginning.

    num_requests: the first so many of those that are not too long; None takes all. time_scale, length_scale: factors
    for times and lengths, so that 0.5 is twice the load or half the length. max_len: leave out requests of more tokens
    than that, prompt and output after scaling; `about` says how many. arrivals: instead of the trace's own times.

    Raises ConfigError for a file that is no trace, and for one with fewer requests than were asked for.
    """
    for name, factor in (("time_scale", time_scale), ("length_scale", length_scale)):
        if not 0 < factor < math.inf:
            raise ConfigError(f"{name} is {factor:g}: it must be more than 0")
    check_counts(seed=seed, least=0)
    if num_requests is not None:
        check_counts(num_requests=num_requests)
    trace = read_trace(path)
    fitting = [
        (record.arrival, number)
        for number, record in enumerate(trace.records)
        if max_len is None or scaled_len(record, length_scale) <= max_len
    ]
    numbers = [number for _, number in sorted(fitting)[:num_requests]]
    if not numbers or (num_requests is not None and len(numbers) < num_requests):
        rest = "" if max_len is None else f" of at most {max_len} tokens"
        raise ConfigError(f"{path} has {len(numbers)} requests{rest}, fewer than the {num_requests or 1} asked for")
    start = trace.records[numbers[0]].arrival
    asks = []
    for number in numbers:
        record = trace.records[number]
        arrival, output_len = (record.arrival - start) * time_scale, scaled(record.output_len, length_scale)
        asks.append(Ask(arrival, output_len, segments_of(record, length_scale, seed, number), ignore_eos=ignore_eos))
    about: About = {
        "workload": path.name,
        "seed": seed,
        "num_requests": len(asks),
        "time_scale": time_scale,
        "length_scale": length_scale,
    }
    if max_len is not None:
        about = {**about, "max_len": max_len, "num_left_out": len(trace.records) - len(fitting)}
    workload = Workload(path.name, tuple(asks), seed=seed, about=about)
    return workload if arrivals is None and trace.has_times else (arrivals or AT_ONCE).of(workload)


def segments_of(record: Record, factor: float, seed: int, number: int) -> tuple[Segment, ...]:
    """The prompt of the trace's request `number`; without hashes its tokens are its own."""
    if not record.hashes:
        return (Segment(key_of(seed, "trace", number), scaled(record.input_len, factor)),)
    keys = [key_of(seed, "hash", each) for each in record.hashes]
    return tuple(map(Segment, keys, block_lens(record, factor)))


def block_lens(record: Record, factor: float) -> list[int]:
    """Tokens of what each hash stands for, scaled: whole blocks stay equal, so that what was shared still is."""
    num_whole = len(record.hashes) - 1
    return [scaled(HASH_BLOCK, factor)] * num_whole + [scaled(record.input_len - HASH_BLOCK * num_whole, factor)]


def scaled_len(record: Record, factor: float) -> int:
    """Tokens of prompt and output."""
    prompt_len = sum(block_lens(record, factor)) if record.hashes else scaled(record.input_len, factor)
    return prompt_len + scaled(record.output_len, factor)


def scaled(length: int, factor: float) -> int:
    return max(1, round(length * factor))
