"""How commands print: aligned tables and JSON, without colours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the last one as it comes."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """One JSON value. JSON has no NaN and no infinity: they become null; bytes become numbers, as in OpenAI's API."""
    print(json.dumps(finite(value), indent=2, allow_nan=False))


def print_json_line(value: Mapping[str, Any]) -> None:
    """One of several JSON values, at once, so that what was measured is not lost with what comes after."""
    print(json.dumps(finite(value), allow_nan=False), flush=True)


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple | bytes):
        return [finite(item) for item in value]
    return value


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"
