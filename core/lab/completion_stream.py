"""What a streamed completion says, read line by line: pieces of text and when they came, counts of tokens, its end."""

from __future__ import annotations

import msgspec
from msgspec import Struct

DATA = b"data:"
DONE = b"[DONE]"


class Delta(Struct):
    content: str | None = None


class PieceChoice(Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Problem(Struct):
    message: str = ""


class Piece(Struct):
    """One event, as far as it is read."""

    choices: list[PieceChoice] = []
    usage: Usage | None = None
    error: Problem | str | None = None


_decoder = msgspec.json.Decoder(Piece)


class CompletionStream:
    """Takes the bytes of one answer as they come."""

    def __init__(self) -> None:
        self.times: list[float] = []
        """When each piece of text came."""
        self.text: list[str] = []
        self.usage: Usage | None = None
        self.finish_reason = ""
        self.finish_time: float | None = None
        self.error = ""
        self.is_whole = False
        """`[DONE]` was seen."""
        self._rest = b""

    def take(self, data: bytes, now: float) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                self._event(line[len(DATA) :].strip(), now)

    def _event(self, payload: bytes, now: float) -> None:
        if payload == DONE:
            self.is_whole = True
            return
        try:
            piece = _decoder.decode(payload)
        except msgspec.MsgspecError as error:
            self.error = f"the server sent what is no completion ({error})"
            return
        if piece.error is not None:
            self.error = piece.error if isinstance(piece.error, str) else piece.error.message or "unknown error"
        self.usage = piece.usage or self.usage
        for choice in piece.choices:
            if text := choice.text or (choice.delta and choice.delta.content):
                self.times.append(now)
                self.text.append(text)
            if choice.finish_reason:
                self.finish_reason, self.finish_time = choice.finish_reason, now

    @property
    def num_output(self) -> int:
        """As the server counts, else the pieces of text."""
        return self.usage.completion_tokens if self.usage is not None else len(self.times)

    @property
    def token_times(self) -> tuple[float, ...]:
        """When tokens came. A token without text, such as a part of a character, is only seen where it was the last."""
        if self.finish_time is None or len(self.times) >= self.num_output:
            return tuple(self.times)
        return (*self.times, self.finish_time)


def message_of(body: bytes) -> str:
    """What an answer of an error says, in one line."""
    try:
        problem = _decoder.decode(body).error
    except msgspec.MsgspecError:
        problem = None
    text = problem.message if isinstance(problem, Problem) else problem or body[:200].decode(errors="replace")
    return " ".join(text.split()) or "no reason given"
