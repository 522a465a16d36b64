"""The results of an ablation as they come: append-only JSON lines, so that a killed run loses one line at most."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError

FORMAT = 1
KINDS = ("header", "arm", "run", "equality", "void", "end")

Row = dict[str, Any]

MAY_CHANGE = ("budget_s", "precision", "command", "started", "format", "kind")
"""What of a header says nothing about the measurements: a run may go on with more time than it was given at first."""


def read_rows(path: Path) -> list[Row]:
    """Every whole line. One that was torn by a kill can only be the last, and is left out.

    Raises ConfigError for a file that cannot be read or that is no result file.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read results {path}: {error.strerror}") from error
    rows = parse_rows(text, path)
    if not rows or rows[0]["kind"] != "header":
        raise ConfigError(f"{path} does not begin with the header of an ablation: it is no result file")
    if rows[0].get("format") != FORMAT:
        raise ConfigError(f"{path} is of format {rows[0].get('format')!r}, this version reads format {FORMAT}")
    return rows


def parse_rows(text: bytes, path: Path) -> list[Row]:
    lines = text.split(b"\n")
    # what stands behind the last line break was not written to its end
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            is_row = isinstance(row, dict) and row.get("kind") in KINDS
        except ValueError:
            is_row = False
        if not is_row:
            raise ConfigError(f"line {number} of {path} is no row of an ablation: the file was changed or is another")
        rows.append(row)
    return rows


def check_header(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError, which names the first difference, if a file holds measurements of something else."""
    for key in dict.fromkeys([*wanted, *found]):
        if key not in MAY_CHANGE and found.get(key) != wanted.get(key):
            there, here = (shown(header.get(key)) for header in (found, wanted))
            raise ConfigError(
                f"{path} cannot be continued: its {key} is {there}, this run's is {here}; give the options that it "
                "was made with, or another --out"
            )


def shown(value: object, limit: int = 120) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


class ResultsFile:
    """Open for appending; every row is on the disk before the next run starts. Raises ConfigError where it cannot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = open(path, "ab+")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise ConfigError(f"cannot write results to {path}: {error.strerror}") from error
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.file.close()
            raise ConfigError(f"another run writes to {path}: wait for it, or give another --out") from error
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        self.file.seek(0)
        whole = self.file.read().rfind(b"\n") + 1
        self.file.truncate(whole)
        self.is_empty = whole == 0

    def append(self, kind: str, **values: Any) -> Row:
        """Write one row and return it as a reader will see it."""
        assert kind in KINDS
        line = json.dumps({"kind": kind, **values}, allow_nan=False)
        self.file.write(line.encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        row: Row = json.loads(line)
        return row

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
