"""A step is put whole where a recording reads it, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from switchgear.core.model.refill import refill, tensors_in


def test_a_step_is_put_into_the_left_part_of_wider_tables() -> None:
    table, row = torch.zeros(2, 5), torch.zeros(2)
    refill({"a": (table, 7), "b": [row]}, {"a": (torch.ones(2, 3), 9), "b": [torch.full((2,), 4.0)]})
    assert table.tolist() == [[1, 1, 1, 0, 0]] * 2 and row.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("recorded", "step"),
    [(torch.zeros(4), torch.zeros(3)), (torch.zeros(3, 4), torch.zeros(2, 4)), (torch.zeros(2, 3), torch.zeros(2, 4))],
)
def test_a_step_of_other_shapes_is_never_put_in(recorded: torch.Tensor, step: torch.Tensor) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        refill(recorded, step)
    with pytest.raises(ValueError):
        refill((recorded, recorded), (recorded,))


def test_tensors_are_found_wherever_a_plan_keeps_them() -> None:
    @dataclass
    class Meta:
        number: int
        inner: Any

    one, two, three = (torch.tensor(number) for number in range(3))
    assert list(tensors_in({"x": Meta(1, [one, (two,)]), "y": three, "z": "text"})) == [one, two, three]
