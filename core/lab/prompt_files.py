"""Prompts of a file, one a line: text, or JSON as MT-bench, GSM8K, Arena-Hard and HumanEval have it."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from ..errors import ConfigError

FIELDS = ("turns", "question", "prompt", "text")
"""Of a JSON line, what is asked; `turns` is a list of texts, one for each turn of a conversation."""


def read_prompts(path: Path) -> list[tuple[str, ...]]:
    """The turns of each prompt, in the order of the file. Empty lines are left out. Raises ConfigError."""
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    if not lines:
        raise ConfigError(f"{path} has no prompts")
    if is_json(path):
        return [turns_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    return [(line.strip(),) for line in lines]


def turns_of(line: str, where: str) -> tuple[str, ...]:
    entry = json_object(line, where)
    field = next((field for field in FIELDS if field in entry), None)
    if field is None:
        raise ConfigError(f"{where}: there is no prompt, which is a field {', '.join(FIELDS[:-1])} or {FIELDS[-1]}")
    turns = entry[field] if field == "turns" else [entry[field]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ConfigError(f"{where}: {field!r} must be {'a list of texts' if field == 'turns' else 'a text'}")
    return tuple(turns)


# -- for every reader of lines --------------------------------------------------------------------------------------


def is_json(path: Path) -> bool:
    return Path(path.name.removesuffix(".gz")).suffix in (".jsonl", ".json")


def read_text(path: Path) -> str:
    """A whole file, unpacked if its name ends in .gz. Raises ConfigError."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def json_object(line: str, where: str) -> dict[str, Any]:
    """Raises ConfigError for a line that is none."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: this is no JSON ({error})") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: this is no JSON object")
    return entry
