"""Getting numbers to where the model computes."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


def to_device(array: npt.NDArray[Any], device: str) -> torch.Tensor:
    """The array on a device: on a CPU the same memory; on a GPU a copy, on its way when this returns."""
    here = torch.from_numpy(array)
    # only from pinned memory can the host go on meanwhile; torch keeps it until the copy is done
    return here.pin_memory().to(device, non_blocking=True) if device == "cuda" else here.to(device)
