"""What a step cannot avoid: the bytes that must come from memory, and the arithmetic of the products.

Counted from the model's shape, whatever computes it. Left out as small: norms, rotary positions, activations, softmax,
and everything that stays in the caches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..model.spec import ModelSpec
from ..records import LayerSpec, LinearSpec


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step of equal rows."""

    num_rows: int
    num_new: int
    """Tokens that each row computes."""
    num_before: int = 0
    """Tokens of each row that the KV holds already."""

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.num_new


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes that are read, each once, and floating-point operations, an addition and a product being two."""

    num_bytes: float
    num_flops: float

    def __add__(self, other: Work) -> Work:
        return Work(self.num_bytes + other.num_bytes, self.num_flops + other.num_flops)


def step_work(spec: ModelSpec, itemsize: int, shape: StepShape) -> Work:
    """The least work of one step that ends in one row of logits for each of its rows.

    itemsize: bytes of a weight and of an element of KV, as the model's dtype has them.
    """
    linears = [linear_work(linear, itemsize, shape, num_active(spec)) for linear in spec.linear_specs()]
    layers = Counter(spec.layers)
    attention = [attention_work(layer, itemsize, shape, count) for layer, count in layers.items()]
    return sum((*linears, *attention), Work(0, 0))


def linear_work(linear: LinearSpec, itemsize: int, shape: StepShape, num_active: int) -> Work:
    """One product over the step's tokens. num_active: experts that a token goes to."""
    if linear.kind == "embedding":  # a few rows are looked up
        return Work(0, 0)
    num_elements = linear.in_features * linear.out_features
    num_tokens = shape.num_rows if linear.kind == "head" else shape.num_tokens
    if not linear.num_experts:
        return Work(num_elements * itemsize, 2 * num_tokens * num_elements)
    # tokens choose as if by lot: this expert gets its part of them, and is read if any of them chose it
    part = num_active / linear.num_experts
    is_read = 1 - (1 - part) ** num_tokens
    return Work(is_read * num_elements * itemsize, 2 * num_tokens * part * num_elements)


def attention_work(layer: LayerSpec, itemsize: int, shape: StepShape, num_layers: int) -> Work:
    """Scores and their product with V, over what each query sees; the KV in reach of a row crosses memory once."""
    reach = layer.window or shape.num_before + shape.num_new
    positions = range(shape.num_before, shape.num_before + shape.num_new)
    num_pairs = sum(min(position + 1, reach) for position in positions)
    num_stored = min(shape.num_before + shape.num_new, reach)
    num_bytes = 2 * layer.num_kv_heads * layer.head_size * itemsize * num_stored
    num_flops = 4 * layer.num_heads * layer.head_size * num_pairs
    return Work(num_bytes * shape.num_rows * num_layers, num_flops * shape.num_rows * num_layers)


def weight_bytes(spec: ModelSpec, itemsize: int) -> int:
    """All weights that a step of many tokens reads."""
    linears = (linear for linear in spec.linear_specs() if linear.kind != "embedding")
    return sum(linear.in_features * linear.out_features * itemsize for linear in linears)


def num_active(spec: ModelSpec) -> int:
    return spec.experts.num_active if spec.experts else 0
