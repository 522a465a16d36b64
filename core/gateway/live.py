"""A request on its way: tokens come in, text goes out, stop strings cut it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..engine.emission import Emission
from ..model.detokenizer import Detokenizer
from ..model.stop_strings import StopMatcher
from ..model.tokenizer import Tokenizer
from ..model.vocabulary import bytes_of
from ..records import Completion, Outcome, TokenScores
from ..sampling_params import SamplingParams
from .ingress import Visit
from .results import Choice, Chunk, PositionLogprobs, Result, Timing, TokenLogprob, timing_of


class LiveChoice:
    """One of a request's outputs."""

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.index = index
        self.params = params
        self.tokenizer = tokenizer
        self.detokenizer = Detokenizer(tokenizer)
        self.matcher = StopMatcher(tuple(params.stop))
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[PositionLogprobs] = []
        self.finish_reason: str | None = None
        self.error = ""
        self.timing: Timing | None = None

    @property
    def is_done(self) -> bool:
        return self.timing is not None

    def take(self, emission: Emission) -> Chunk:
        """Enter an emission; the chunk is what a stream shows of it."""
        text = ""
        num_before = len(self.token_ids)
        for position, token_id in enumerate(emission.token_ids):
            if self.finish_reason is not None:
                break
            self.token_ids.append(token_id)
            if emission.scores is not None:
                wanted = self.params.logprobs or 0
                self.logprobs.append(position_logprobs(self.tokenizer, emission.scores, position, token_id, wanted))
            # the token that stopped the output is its end, not its text
            is_text = emission.stop_token is None or position < len(emission.token_ids) - 1
            text += self._push(token_id) if is_text else ""
        if emission.finish_reason is not None:
            text += self._finish(emission)
        self.text += text
        # a stop string is found before the engine says the output has ended: the reason comes with that, once
        return Chunk(
            index=self.index,
            text=text,
            token_ids=tuple(self.token_ids[num_before:]),
            finish_reason=self.finish_reason if self.is_done else None,
            logprobs=tuple(self.logprobs[num_before:]) if self.params.logprobs is not None else None,
        )

    def _push(self, token_id: int) -> str:
        text = self.detokenizer.push([token_id])
        if len(self.token_ids) <= self.params.min_tokens:
            return text
        safe, matched = self.matcher.push(text)
        if matched is not None:
            self.finish_reason = "stop"
        return safe

    def _finish(self, emission: Emission) -> str:
        assert emission.timing is not None
        text = ""
        if self.finish_reason is None:
            self.finish_reason = emission.finish_reason
            safe, matched = self.matcher.push(self.detokenizer.flush())
            text = safe if matched is not None else safe + self.matcher.flush()
        self.error = emission.error
        self.timing = timing_of(emission.timing, len(self.token_ids))
        return text

    def choice(self) -> Choice:
        assert self.timing is not None and self.finish_reason is not None
        return Choice(
            index=self.index,
            token_ids=tuple(self.token_ids),
            text=self.text,
            finish_reason=self.finish_reason,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            timing=self.timing,
            error=self.error,
        )


class LiveRequest:
    """A request and its outputs, until the last of them has ended."""

    def __init__(
        self, request_id: str, prompt: tuple[int, ...], params: SamplingParams, tokenizer: Tokenizer, plan_hash: str
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.params = params
        self.tokenizer = tokenizer
        self.plan_hash = plan_hash
        self.choices = [LiveChoice(index, params, tokenizer) for index in range(params.n)]
        self.prompt_logprobs: list[PositionLogprobs | None] = [None]
        self.num_cached = 0
        self.chunks: deque[Chunk] = deque()
        self.visit: Visit | None = None
        self.served: Completion | None = None

    @property
    def is_done(self) -> bool:
        return all(choice.is_done for choice in self.choices)

    def take(self, emission: Emission, abort: Callable[[int], None]) -> None:
        """Enter an emission; `abort(child)` is called when a stop string ended an output the engine still runs."""
        choice = self.choices[emission.child]
        if emission.prompt_scores is not None:
            self._take_prompt_scores(emission.prompt_scores)
        self.num_cached = max(self.num_cached, emission.num_cached)
        was_stopped = choice.finish_reason is not None
        chunk = choice.take(emission)
        if choice.finish_reason is not None and not choice.is_done and not was_stopped:
            abort(emission.child)
        if not was_stopped or choice.is_done:
            self.chunks.append(chunk)

    def _take_prompt_scores(self, scores: TokenScores) -> None:
        for position in range(len(scores.ranks)):
            token_id = self.prompt[len(self.prompt_logprobs)]
            wanted = self.params.prompt_logprobs or 0
            self.prompt_logprobs.append(position_logprobs(self.tokenizer, scores, position, token_id, wanted))

    def answer(self, completion: Completion) -> None:
        """End the request with an answer that no engine computed."""
        self.served = completion
        for choice, text, token_ids, reason in zip(
            self.choices, completion.texts, completion.token_ids, completion.finish_reasons, strict=True
        ):
            choice.text, choice.token_ids, choice.finish_reason = text, list(token_ids), reason
            choice.timing = Timing(queue=0.0, ttft=0.0, tpot=0.0, total=0.0)
            self.chunks.append(Chunk(choice.index, text, token_ids, reason))

    def outcome(self) -> Outcome:
        """How it ended, for the stages it passed."""
        if not self.is_done:
            return Outcome("aborted")
        error = next((choice.error for choice in self.choices if choice.error), "")
        if error:
            return Outcome("error", error=error)
        completion = Completion(
            texts=tuple(choice.text for choice in self.choices),
            token_ids=tuple(tuple(choice.token_ids) for choice in self.choices),
            finish_reasons=tuple(choice.finish_reason or "" for choice in self.choices),
        )
        return Outcome("finished", self.served or completion)

    def result(self) -> Result:
        return Result(
            request_id=self.request_id,
            prompt_token_ids=self.prompt,
            choices=tuple(choice.choice() for choice in self.choices),
            plan_hash=self.plan_hash,
            prompt_logprobs=tuple(self.prompt_logprobs) if self.params.prompt_logprobs is not None else None,
            num_cached_tokens=self.num_cached,
        )


def position_logprobs(
    tokenizer: Tokenizer, scores: TokenScores, position: int, token_id: int, num_top: int
) -> PositionLogprobs:
    """One position of `scores`, with the text of each token."""

    def entry(token_id: int, logprob: float) -> TokenLogprob:
        known = bytes_of(tokenizer, token_id) if token_id < tokenizer.vocab_size else b""
        return TokenLogprob(token_id, known.decode(errors="replace"), logprob, known)

    best = zip(scores.top_ids[position, :num_top], scores.top_logprobs[position, :num_top], strict=True)
    return PositionLogprobs(
        chosen=entry(token_id, float(scores.logprobs[position])),
        rank=int(scores.ranks[position]),
        top=tuple(entry(int(top_id), float(logprob)) for top_id, logprob in best),
    )
