"""One GGUF file to one Hugging Face directory in the decoder's fused layout, exactly dequantised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from ..errors import ModelError
from .gguf_config import generation_config, model_config
from .gguf_file import GGUFFile
from .gguf_layout import GGUFLayout, Part, layout_of, num_experts
from .gguf_tokenizer import build_tokenizer, tokenizer_config
from .safetensors_writer import DTYPE_CODES, StreamedTensor, write_safetensors


def convert_gguf(path: Path, directory: Path, dtype: str, *, progress: bool = True) -> None:
    """Write config, tokenizer and weights in `dtype` into the existing `directory`.

    Memory beyond the caller's stays at the vocabulary and a few blocks of rows, whatever the size of the model.
    """
    if dtype not in DTYPE_CODES:
        raise ModelError(f"a GGUF cannot be converted to dtype {dtype!r}; choose one of {', '.join(DTYPE_CODES)}")
    file = GGUFFile(path)
    layout = layout_of(file)
    _write_json(directory / "config.json", model_config(file, layout, dtype))
    _write_json(directory / "generation_config.json", generation_config(file))
    _write_json(directory / "tokenizer_config.json", tokenizer_config(file))
    (directory / "tokenizer.json").write_text(build_tokenizer(file).to_str(pretty=True), encoding="utf-8")
    tensors = _streamed_tensors(file, layout)
    num_bytes = sum(tensor.num_elements for tensor in tensors) * getattr(torch, dtype).itemsize
    with tqdm(
        total=num_bytes, unit="B", unit_scale=True, desc=f"converting {path.name} to {dtype}", disable=not progress
    ) as bar:
        write_safetensors(directory / "model.safetensors", dtype, tensors, bar.update)


def _streamed_tensors(file: GGUFFile, layout: GGUFLayout) -> list[StreamedTensor]:
    num_layers = file.require(f"{file.architecture}.block_count")
    sources = layout.sources(file.tensor_names(), num_layers, num_experts(file))
    streamed = []
    for name, parts in sources.items():
        offset = layout.norm_offset if name.endswith("norm.weight") else 0.0
        choices = [(part.tensor, _chosen_rows(file, layout, part)) for part in parts]
        streamed.append(StreamedTensor(name, _shape(file, parts), partial(_joined_blocks, file, choices, offset)))
    return streamed


def _shape(file: GGUFFile, parts: Sequence[Part]) -> tuple[int, ...]:
    """Of the parts joined by rows, for each expert apart where they are rows of experts."""
    if parts[0].expert is None:
        shapes = [file.shape(part.tensor) for part in parts]
        return (sum(num_rows for num_rows, *_ in shapes), *shapes[0][1:])
    (num_experts, _, num_columns), *_ = shapes = [file.shape(part.tensor) for part in parts if part.expert == 0]
    return (num_experts, sum(num_rows for _, num_rows, _ in shapes), num_columns)


def _joined_blocks(
    file: GGUFFile, choices: Sequence[tuple[str, npt.NDArray[np.intp] | None]], offset: float
) -> Iterator[torch.Tensor]:
    for tensor, rows in choices:
        for block in file.blocks(tensor, rows):
            yield block - offset if offset else block


def _chosen_rows(file: GGUFFile, layout: GGUFLayout, part: Part) -> npt.NDArray[np.intp] | None:
    """Which rows of the part's tensor, in which order; None for all as they are.

    An expert's are one run of the stack. Where the file has (first, second) of each rotary pair side by side, rotary
    embeddings by halves want all first ones of a head, then all second ones. Quantised rows do not depend on each
    other, so that picking rows in this order undoes the permutation.
    """
    if part.expert is not None:
        num_rows = file.shape(part.tensor)[1]
        return np.arange(part.expert * num_rows, (part.expert + 1) * num_rows)
    key = layout.interleaved.get(part.tensor.split(".")[-2])
    if key is None:
        return None
    num_rows = file.shape(part.tensor)[0]
    num_heads = file.get(f"{file.architecture}.{key}") or file.require(f"{file.architecture}.attention.head_count")
    return np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
