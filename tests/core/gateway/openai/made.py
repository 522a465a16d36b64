"""A server in numbers, and results and chunks as a service would hand them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from switchgear.core.gateway.openai.tool_deltas import ContentDelta, ToolCallDelta
from switchgear.core.gateway.openai.wire import Wire
from switchgear.core.gateway.results import Choice, PositionLogprobs, Result, Timing, TokenLogprob

WIRE = Wire(model_names=("tiny", "alias"), max_model_len=100, vocab_size=50, embedding_size=8)
TIMING = Timing(queue=0.0, ttft=0.0, tpot=0.0, total=0.0)
CREATED = 1_700_000_000


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "tiny", **fields})


def chat_body(**fields: Any) -> bytes:
    return body(**{"messages": [{"role": "user", "content": "hi"}], **fields})


def completion_body(**fields: Any) -> bytes:
    return body(**{"prompt": "once", **fields})


def token(token_id: int, text: str, logprob: float = -0.5, token_bytes: bytes | None = None) -> TokenLogprob:
    return TokenLogprob(token_id, text, logprob, text.encode() if token_bytes is None else token_bytes)


def position(text: str, logprob: float = -0.5, token_id: int = 7, token_bytes: bytes | None = None) -> PositionLogprobs:
    """A chosen token with one alternative."""
    return PositionLogprobs(token(token_id, text, logprob, token_bytes), 2, (token(9, "!", -0.25),))


def choice(
    index: int, texts: Sequence[str], reason: str = "stop", logprobs: Iterable[float] | None = None, rest: str = ""
) -> Choice:
    """One token for each of `texts`; `rest` is text of no token."""
    scores = None
    if logprobs is not None:
        scores = tuple(position(text, logprob) for text, logprob in zip(texts, logprobs, strict=True))
    token_ids = tuple(range(len(texts)))
    return Choice(index, token_ids, "".join(texts) + rest, reason, scores, TIMING)


def result(*choices: Choice, prompt: Sequence[int] = (1, 2, 3), num_cached: int = 0, **others: Any) -> Result:
    return Result("request-0", tuple(prompt), choices, "abc", num_cached_tokens=num_cached, **others)


class BracketParser:
    """Calls are `[name|arguments]`; whatever is outside of brackets is text."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._name: str | None = None
        self._is_open = False

    def push(self, text: str) -> list[ContentDelta | ToolCallDelta]:
        deltas: list[ContentDelta | ToolCallDelta] = []
        for character in text:
            delta = self._read(character)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def finish(self) -> list[ContentDelta | ToolCallDelta]:
        # a name whose call was cut off
        return [ContentDelta("[" + self._name)] if self._name is not None else []

    def _read(self, character: str) -> ContentDelta | ToolCallDelta | None:
        if self._name is not None:
            if character != "|":
                self._name += character
                return None
            name, self._name, self._is_open = self._name, None, True
            self._num_calls += 1
            return ToolCallDelta(self._num_calls - 1, id=f"call_{self._num_calls - 1}", name=name)
        if self._is_open:
            self._is_open = character != "]"
            return ToolCallDelta(self._num_calls - 1, arguments=character) if self._is_open else None
        if character == "[":
            self._name = ""
            return None
        return ContentDelta(character)


def decode(token_ids: Sequence[int]) -> str:
    """A vocabulary of letters."""
    return "".join(chr(ord("a") + token_id) for token_id in token_ids)
