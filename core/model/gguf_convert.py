"""One GGUF file to one Hugging Face directory in the decoder's fused layout, exactly dequantised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
from .gguf_layout import GGUFLayout, layout_of
from .gguf_tokenizer import build_tokenizer, tokenizer_config
from .safetensors_writer import DTYPE_CODES, StreamedTensor, write_safetensors


def convert_gguf(path: Path, directory: Path, dtype: str, *, progress: bool = True) -> None:
    """Write config, tokenizer and weights in `dtype` into the existing `directory`.

    Memory beyond the caller's stays at a few blocks of rows, whatever the size of the model.
    """
    if dtype not in DTYPE_CODES:
        raise ModelError(f"a GGUF cannot be converted to dtype {dtype!r}; choose one of {', '.join(DTYPE_CODES)}")
    file = GGUFFile(path)
    layout = layout_of(file.architecture)
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
    sources = layout.sources(file.tensor_names(), file.require(f"{file.architecture}.block_count"))
    streamed = []
    for name, parts in sources.items():
        shapes = [file.shape(part) for part in parts]
        shape = (sum(rows for rows, *_ in shapes), *shapes[0][1:])
        orders = {part: _row_order(file, layout, part) for part in parts}
        streamed.append(StreamedTensor(name, shape, partial(_joined_blocks, file, orders)))
    return streamed


def _joined_blocks(file: GGUFFile, orders: Mapping[str, npt.NDArray[np.intp] | None]) -> Iterator[torch.Tensor]:
    for part, order in orders.items():
        yield from file.blocks(part, order)


def _row_order(file: GGUFFile, layout: GGUFLayout, name: str) -> npt.NDArray[np.intp] | None:
    """Rows as rotary embeddings by halves want them, where the file has (first, second) of each pair side by side.

    Quantised rows do not depend on each other, so that picking rows in this order undoes the permutation.
    """
    key = layout.interleaved.get(name.split(".")[-2])
    if key is None:
        return None
    num_rows = file.shape(name)[0]
    num_heads = file.get(f"{file.architecture}.{key}") or file.require(f"{file.architecture}.attention.head_count")
    return np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
