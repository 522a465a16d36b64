"""From step to step: where a recorded computation reads its numbers, those of the next step are put."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def refill(inputs: Any, step: Any) -> None:
    """Put the numbers of a step into tensors of another.

    Block tables of a step are as wide as its longest row needs, and take the left part of wider ones: what stands right
    of it was valid once and is read by nobody.
    """
    for target, source in zip(tensors_in(inputs), tensors_in(step), strict=True):
        if target.shape != source.shape:
            assert target.ndim == source.ndim == 2 and len(target) == len(source), (target.shape, source.shape)
            target = target[:, : source.shape[1]]
        target.copy_(source, non_blocking=True)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a step, in an order that does not change."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)
