"""The tiny models of `tiny.py` as GGUF files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from .gguf_writer import write_gguf
from .tiny import make_tiny_model


def make_tiny_gguf(
    path: Path, *, family: str = "llama", quantization: str = "Q8_0", seed: int = 0, **overrides: Any
) -> Path:
    """Write `make_tiny_model(family=family, seed=seed, **overrides)` as one GGUF file and return its path.

    quantization: of all matrices, a name of the GGUF format such as "F32", "F16", "Q8_0" or "Q4_1".
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = make_tiny_model(Path(folder), family=family, seed=seed, **overrides)
        return write_gguf(directory, path, quantization=quantization)
