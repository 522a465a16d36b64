"""Traces as files: how long prompts and outputs were, when they came, and which prompts began alike.

Azure LLM inference CSV (Splitwise, ISCA'24), Mooncake JSONL with a hash for each 512 tokens of a prompt (FAST'25), and
any CSV with columns for the two lengths.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .prompt_files import is_json, json_object, read_text

ARRIVAL = ("TIMESTAMP", "timestamp", "arrival", "arrived_at")
INPUT = ("ContextTokens", "input_len", "input_length", "num_prefill_tokens")
OUTPUT = ("GeneratedTokens", "output_len", "output_length", "num_decode_tokens")
"""Names of a CSV's columns. The first is optional: seconds, or dates with times."""
HASH_BLOCK = 512
"""Tokens of a prompt that one of Mooncake's hashes stands for."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request of a trace."""

    arrival: float
    """Seconds, from any start; 0 where the trace has no times."""
    input_len: int
    output_len: int
    hashes: tuple[int, ...] = ()
    """One for each 512 tokens of the prompt, the last for what is left; equal ones are equal text after equal text."""


@dataclass(frozen=True, slots=True)
class Trace:
    records: tuple[Record, ...]
    has_times: bool


def is_trace(path: Path) -> bool:
    """Whether a file is a trace, as opposed to prompts. Raises ConfigError for one that cannot be read."""
    if not is_json(path):
        return Path(path.name.removesuffix(".gz")).suffix == ".csv"
    line = read_text(path).split("\n", 1)[0]
    return bool(line.strip()) and "input_length" in json_object(line, f"{path}, line 1")


def read_trace(path: Path) -> Trace:
    """Every request in a file, in its order. Raises ConfigError."""
    text = read_text(path)
    if is_json(path):
        lines = [line for line in text.split("\n") if line.strip()]
        records = [mooncake(json_object(line, where), where) for line, where in numbered(path, lines, first=1)]
        trace = Trace(tuple(records), has_times=True)
    else:
        trace = read_csv(path, text)
    if not trace.records:
        raise ConfigError(f"{path} has no requests")
    return trace


def mooncake(entry: Mapping[str, Any], where: str) -> Record:
    try:
        milliseconds, hashes = float(entry["timestamp"]), tuple(map(int, entry.get("hash_ids", ())))
        record = Record(milliseconds / 1000, int(entry["input_length"]), int(entry["output_length"]), hashes)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{where}: this is no request of a trace ({type(error).__name__}: {error})") from None
    num_blocks = math.ceil(record.input_len / HASH_BLOCK)
    if hashes and len(hashes) != num_blocks:
        raise ConfigError(
            f"{where}: {record.input_len} tokens are {num_blocks} blocks of {HASH_BLOCK}, and hash_ids has "
            f"{len(hashes)}"
        )
    return checked(record, where)


def read_csv(path: Path, text: str) -> Trace:
    rows = csv.DictReader(text.splitlines())
    columns = [column_of(rows.fieldnames or (), names) for names in (ARRIVAL, INPUT, OUTPUT)]
    arrival, input_len, output_len = columns
    if input_len is None or output_len is None:
        raise ConfigError(
            f"{path} is no trace: its first line must name a column of prompt lengths ({', '.join(INPUT)}) and one of "
            f"output lengths ({', '.join(OUTPUT)})"
        )
    records = []
    for row, where in numbered(path, list(rows), first=2):
        try:
            time = seconds_of(row[arrival]) if arrival else 0.0
            record = Record(time, int(row[input_len]), int(row[output_len]))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{where}: this is no request of a trace ({error})") from None
        records.append(checked(record, where))
    return Trace(tuple(records), has_times=arrival is not None)


def seconds_of(text: str) -> float:
    """Seconds as such, or of a date with a time, which is UTC where it names no zone."""
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is no time")
    return seconds


def column_of(fields: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in fields), None)


def checked(record: Record, where: str) -> Record:
    if record.input_len < 1 or record.output_len < 1:
        raise ConfigError(f"{where}: a request of {record.input_len} and {record.output_len} tokens has nothing to do")
    return record


def numbered(path: Path, items: Sequence[Any], first: int) -> Iterator[tuple[Any, str]]:
    return ((item, f"{path}, line {number}") for number, item in enumerate(items, first))
