"""What the fixtures of this folder hand out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


RunCommand = Callable[..., Ended]
"""Called with the command line, a string or path for each argument."""

Install = Callable[[str, str], Path]
"""Called with a plugin's name and the source of its class `Plugin`; returns the folder on the path that holds it."""
