"""The points at which raw speed is measured: so many requests, so many tokens in, so many tokens out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import ConfigError

STANDARD_POINTS = "1x16x64,4x16x64,16x16x64,64x16x64,1x1024x1,16x128x128"
"""Decode alone at growing batches, prefill alone, and both: the same points at which other engines are measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """Requests that arrive at once, all of one length."""

    num_requests: int
    input_len: int
    """Prompt tokens of each request."""
    output_len: int
    """Tokens that each request generates, whatever they are."""

    @property
    def sequence_len(self) -> int:
        return self.input_len + self.output_len

    @property
    def prompts_only(self) -> Point:
        """The same requests up to their first token, which is the prefill and nothing else."""
        return replace(self, output_len=1)

    def __str__(self) -> str:
        return f"{self.num_requests}x{self.input_len}x{self.output_len}"


def parse_points(text: str) -> tuple[Point, ...]:
    """Points as written, `REQUESTSxINPUTxOUTPUT` with commas between. Raises ConfigError."""
    return tuple(parse_point(part.strip()) for part in text.split(","))


def parse_point(text: str) -> Point:
    numbers = text.split("x")
    if len(numbers) != 3 or not all(number.isdecimal() and int(number) for number in numbers):
        raise ConfigError(f"cannot read point {text!r}: write requests, input and output tokens, such as 4x16x64")
    return Point(*map(int, numbers))
