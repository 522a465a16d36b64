"""What a parser of tool calls makes of a model's text, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of one call. Its first delta has the id and the name, the others only more of the arguments."""

    index: int
    """Which of the answer's calls, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """A piece of the JSON text."""


class ToolParser(Protocol):
    """Splits one output into text and calls. However the text is cut into pieces, the deltas add up to the same."""

    def push(self, text: str) -> list[ContentDelta | ToolCallDelta]:
        """What `text`, the next of the output, made certain."""
        ...

    def finish(self) -> list[ContentDelta | ToolCallDelta]:
        """What was held back, when no more text comes."""
        ...
