"""Answers to `/v1/chat/completions`, whole and streamed: the pieces of a stream add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET
from msgspec.json import encode

from ..results import Choice, Chunk, PositionLogprobs, Result
from ..results import TokenLogprob as Entry
from .answers import finish_reason, finite, prompt_logprobs, usage_of
from .chat import ChatCall
from .chat_bodies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    Delta,
    FunctionDelta,
    TokenLogprob,
    ToolCallPiece,
    TopLogprob,
)
from .common_bodies import FinishReason, Usage
from .message_bodies import FunctionCall, ToolCall
from .tool_deltas import ContentDelta, ToolCallDelta, ToolParser


class ChatRenderer:
    """Writes the answer to one call, see `wire.Renderer`.

    make_tool_parser: one for each output, where the model may call tools.
    """

    def __init__(
        self,
        call: ChatCall,
        completion_id: str,
        created: int,
        fingerprint: str,
        make_tool_parser: Callable[[], ToolParser] | None = None,
    ) -> None:
        self._call = call
        self._id = completion_id
        self._created = created
        self._fingerprint = fingerprint
        self._splitters = [Splitter(make_tool_parser) for _ in range(call.ask.params.n)]
        self._has_tools = make_tool_parser is not None

    def whole(self, results: Sequence[Result]) -> bytes:
        (result,) = results
        scores = result.prompt_logprobs
        return encode(
            ChatCompletion(
                id=self._id,
                created=self._created,
                model=self._call.model,
                system_fingerprint=self._fingerprint,
                choices=[self._choice(choice) for choice in result.choices],
                usage=usage_of(results),
                prompt_logprobs=UNSET if scores is None else prompt_logprobs(scores),
            )
        )

    def _choice(self, choice: Choice) -> ChatChoice:
        splitter = self._splitters[choice.index]
        deltas = splitter.split(choice.text, is_end=True)
        text = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        calls = _whole_calls(delta for delta in deltas if isinstance(delta, ToolCallDelta))
        return ChatChoice(
            index=choice.index,
            message=ChatMessage(
                content=None if self._has_tools and not text else text,
                tool_calls=calls or UNSET,
            ),
            logprobs=None if choice.logprobs is None else chat_logprobs(choice.logprobs),
            finish_reason=splitter.finish_reason(choice.finish_reason),
        )

    def opening(self) -> list[bytes]:
        # whether there will be any text is not known where tools may be called instead
        content = None if self._has_tools else ""
        return [
            self._chunk(ChatChunkChoice(index=index, delta=Delta(role="assistant", content=content)))
            for index in range(len(self._splitters))
        ]

    def pieces(self, chunk: Chunk, prompt: int = 0) -> list[bytes]:
        splitter = self._splitters[chunk.index]
        is_end = chunk.finish_reason is not None
        deltas = [_delta(delta) for delta in splitter.split(chunk.text, is_end)]
        logprobs = chat_logprobs(chunk.logprobs) if chunk.logprobs else None
        if logprobs is not None and not deltas:
            deltas = [Delta()]  # tokens whose text is not certain yet
        choices = [ChatChunkChoice(index=chunk.index, delta=delta) for delta in deltas]
        if choices:
            choices[0].logprobs = logprobs
        if chunk.finish_reason is not None:
            reason = splitter.finish_reason(chunk.finish_reason)
            choices.append(ChatChunkChoice(index=chunk.index, delta=Delta(), finish_reason=reason))
        return [self._chunk(choice) for choice in choices]

    def closing(self, results: Sequence[Result]) -> list[bytes]:
        return [self._chunk(usage=usage_of(results))] if self._call.include_usage else []

    def _chunk(self, *choices: ChatChunkChoice, usage: Usage | None = None) -> bytes:
        return encode(
            ChatChunk(
                id=self._id,
                created=self._created,
                model=self._call.model,
                system_fingerprint=self._fingerprint,
                choices=list(choices),
                usage=usage if self._call.include_usage else UNSET,
            )
        )


class Splitter:
    """One output on its way, as text and tool calls."""

    def __init__(self, make_tool_parser: Callable[[], ToolParser] | None) -> None:
        self._parser = make_tool_parser() if make_tool_parser is not None else None
        self._has_called = False

    def split(self, text: str, is_end: bool) -> list[ContentDelta | ToolCallDelta]:
        if self._parser is None:
            return [ContentDelta(text)] if text else []
        deltas = self._parser.push(text) + (self._parser.finish() if is_end else [])
        self._has_called |= any(isinstance(delta, ToolCallDelta) for delta in deltas)
        return deltas

    def finish_reason(self, reason: str) -> FinishReason:
        """An output that was cut off says so, calls or not: the last of them may be incomplete."""
        return "tool_calls" if self._has_called and reason == "stop" else finish_reason(reason)


def _delta(delta: ContentDelta | ToolCallDelta) -> Delta:
    if isinstance(delta, ContentDelta):
        return Delta(content=delta.text)
    function = FunctionDelta(name=delta.name or UNSET, arguments=delta.arguments)
    is_first = bool(delta.id)
    piece = ToolCallPiece(
        index=delta.index, id=delta.id or UNSET, type="function" if is_first else UNSET, function=function
    )
    return Delta(tool_calls=[piece])


def _whole_calls(deltas: Iterable[ToolCallDelta]) -> list[ToolCall]:
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        empty = ToolCall(id=delta.id, function=FunctionCall(name=delta.name, arguments=""))
        calls.setdefault(delta.index, empty).function.arguments += delta.arguments
    return [calls[index] for index in sorted(calls)]


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=position.chosen.token,
                logprob=finite(position.chosen.logprob),
                bytes=_bytes(position.chosen),
                top_logprobs=[
                    TopLogprob(token=entry.token, logprob=finite(entry.logprob), bytes=_bytes(entry))
                    for entry in position.top
                ],
            )
            for position in positions
        ]
    )


def _bytes(entry: Entry) -> list[int] | None:
    return None if entry.token_bytes is None else list(entry.token_bytes)
