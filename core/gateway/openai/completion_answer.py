"""Answers to `/v1/completions`, whole and streamed: the pieces of a stream add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from msgspec import UNSET
from msgspec.json import encode

from ..results import Choice, Chunk, Result
from .answers import finish_reason, prompt_logprobs, usage_of
from .common_bodies import Usage
from .completion_bodies import Completion, CompletionChoice, CompletionLogprobs
from .completion_logprobs import LogprobsWriter, mean_logprob
from .completions import CompletionCall

Output = TypeVar("Output", Choice, Chunk)


class CompletionRenderer:
    """Writes the answer to one call, see `wire.Renderer`.

    decode: token ids to text, special tokens included; `echo` needs it.
    """

    def __init__(
        self,
        call: CompletionCall,
        completion_id: str,
        created: int,
        fingerprint: str,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._call = call
        self._id = completion_id
        self._created = created
        self._fingerprint = fingerprint
        self._decode = decode
        self._writers = [LogprobsWriter(call.logprobs or 0) for _ in range(len(call.asks) * call.n)]

    def whole(self, results: Sequence[Result]) -> bytes:
        choices = []
        for prompt, result in enumerate(results):
            candidates: Sequence[Choice] = result.choices
            if self._call.is_choice:
                candidates = sorted(candidates, key=lambda choice: mean_logprob(choice.logprobs), reverse=True)
            for place, choice in enumerate(candidates[: self._call.n]):
                shown = unseen(choice) if self._call.is_scoring else choice
                choices.append(self._choice(prompt, place, shown, result))
        return self._body(choices, self._usage(results))

    def _choice(self, prompt: int, place: int, choice: Choice, result: Result) -> CompletionChoice:
        index = prompt * self._call.n + place
        shows_scores = self._call.shows_prompt_logprobs and result.prompt_logprobs is not None
        return CompletionChoice(
            index=index,
            text=self._echo(prompt) + choice.text,
            logprobs=self._logprobs(index, choice, result),
            finish_reason=finish_reason(choice.finish_reason),
            prompt_logprobs=prompt_logprobs(result.prompt_logprobs or ()) if shows_scores else UNSET,
        )

    def _logprobs(self, index: int, choice: Choice, result: Result) -> CompletionLogprobs | None:
        output = choice.logprobs or ()
        if self._call.logprobs is None:
            return None
        if not self._call.echo or result.prompt_logprobs is None:
            return self._writers[index].write(output)
        first = self._decode(result.prompt_token_ids[:1])
        text = self._echo(index // self._call.n)
        return self._writers[index].write_prompt(first, text, result.prompt_logprobs, output)

    def opening(self) -> list[bytes]:
        """Streams begin with the prompt where it is to be repeated."""
        texts = [self._echo(index // self._call.n) for index in range(len(self._writers))]
        return [self._body([CompletionChoice(index=index, text=text)]) for index, text in enumerate(texts) if text]

    def pieces(self, chunk: Chunk, prompt: int = 0) -> list[bytes]:
        index = prompt * self._call.n + chunk.index
        chunk = unseen(chunk) if self._call.is_scoring else chunk
        logprobs = None
        if self._call.logprobs is not None and chunk.logprobs:
            logprobs = self._writers[index].write(chunk.logprobs)
        if not chunk.text and logprobs is None and chunk.finish_reason is None:
            return []
        reason = None if chunk.finish_reason is None else finish_reason(chunk.finish_reason)
        return [self._body([CompletionChoice(index=index, text=chunk.text, logprobs=logprobs, finish_reason=reason)])]

    def closing(self, results: Sequence[Result]) -> list[bytes]:
        return [self._body([], self._usage(results))] if self._call.include_usage else []

    def _echo(self, prompt: int) -> str:
        if not self._call.echo:
            return ""
        given = self._call.asks[prompt].prompt
        return given if isinstance(given, str) else self._decode(given)

    def _usage(self, results: Sequence[Result]) -> Usage:
        return usage_of(results, counts_output=not self._call.is_scoring)

    def _body(self, choices: list[CompletionChoice], usage: Usage | None = None) -> bytes:
        return encode(
            Completion(
                id=self._id,
                created=self._created,
                model=self._call.model,
                system_fingerprint=self._fingerprint,
                choices=choices,
                usage=UNSET if usage is None and not self._call.include_usage else usage,
            )
        )


def unseen(output: Output) -> Output:
    """Of an output that nobody asked for, only how it ends."""
    reason = output.finish_reason and "length"
    return replace(output, text="", token_ids=(), logprobs=None, finish_reason=reason)
