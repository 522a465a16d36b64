"""What the wire format knows of the server, and what the server knows of the wire format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...sampling_params import MAX_LOGPROBS
from ..ask import Ask
from ..results import Chunk, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The model that bodies are about, in numbers."""

    model_names: tuple[str, ...]
    """Names that a body may give; the first is the one that `/v1/models` shows first."""
    max_model_len: int
    """Tokens of prompt and output together."""
    vocab_size: int
    embedding_size: int = 0
    """Components of an embedding."""
    has_chat_template: bool = True
    max_logprobs: int = MAX_LOGPROBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One body that asks for text, understood. A server submits each of `asks` and feeds a renderer."""

    asks: tuple[Ask, ...]
    """The prompts; more than one only for completions."""
    model: str
    """As the body names it, and the answer repeats it."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts."""
    priority: int = 0
    """Lower runs first."""
    deadline_seconds: float | None = None
    """From now on; None waits for as long as it takes."""


class Renderer(Protocol):
    """Writes the answer to one call: either `whole`, or `opening`, `pieces` and `closing` in that order.

    All of them return JSON; what goes around a piece on a stream (`data: ` and `[DONE]`) is the server's.
    """

    def whole(self, results: Sequence[Result]) -> bytes:
        """The answer, from one result for each of the call's prompts."""
        ...

    def opening(self) -> list[bytes]:
        """What a stream begins with, once it is known that there will be one."""
        ...

    def pieces(self, chunk: Chunk, prompt: int = 0) -> list[bytes]:
        """What a chunk of the call's prompt number `prompt` adds; may be nothing."""
        ...

    def closing(self, results: Sequence[Result]) -> list[bytes]:
        """What comes after the last chunk of the last prompt."""
        ...


def fingerprint_of(plan_hash: str) -> str:
    """`system_fingerprint`: the same plan and the same seed give the same tokens."""
    return f"fp_{plan_hash}"
