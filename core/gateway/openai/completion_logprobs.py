"""The log probabilities of one choice of `/v1/completions`: parallel lists, and where each token begins in the text."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable

from ..results import PositionLogprobs, TokenLogprob
from .answers import finite
from .completion_bodies import CompletionLogprobs


class LogprobsWriter:
    """Writes the positions of one choice, a few at a time or all at once.

    num_top: alternatives to show of each.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._offset = 0
        # a token may be a part of a character, which then begins where the first of its tokens does
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, positions: Iterable[PositionLogprobs]) -> CompletionLogprobs:
        written = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for position in positions:
            written.tokens.append(spelled(position.chosen))
            written.token_logprobs.append(finite(position.chosen.logprob))
            written.top_logprobs.append(self._top(position))
            written.text_offset.append(self._offset)
            self._offset += self._length(position.chosen)
        return written

    def write_prompt(
        self, first: str, text: str, positions: Iterable[PositionLogprobs | None], output: Iterable[PositionLogprobs]
    ) -> CompletionLogprobs:
        """A prompt and what follows it. first: the prompt's first token, for which there is no log probability."""
        # a token such as BOS is none of the text
        self._offset = len(first) if text.startswith(first) else 0
        rest = self.write(position for position in [*positions, *output] if position is not None)
        return CompletionLogprobs(
            tokens=[first, *rest.tokens],
            token_logprobs=[None, *rest.token_logprobs],
            top_logprobs=[None, *rest.top_logprobs],
            text_offset=[0, *rest.text_offset],
        )

    def _top(self, position: PositionLogprobs) -> dict[str, float]:
        """The most likely tokens, and the chosen one where it is not among them."""
        top: dict[str, float] = {}
        for entry in (*position.top[: self._num_top], position.chosen):
            top.setdefault(spelled(entry), finite(entry.logprob))
        return top

    def _length(self, entry: TokenLogprob) -> int:
        return len(entry.token if entry.token_bytes is None else self._utf8.decode(entry.token_bytes))


def spelled(entry: TokenLogprob) -> str:
    """A token's text; a part of a character as OpenAI spells it, so that different ones stay different."""
    if entry.token_bytes is None or "\ufffd" not in entry.token:
        return entry.token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)


def mean_logprob(positions: tuple[PositionLogprobs, ...] | None) -> float:
    """Natural logarithm, over the tokens of one output; what has none is the worst."""
    if not positions:
        return -math.inf
    return sum(finite(position.chosen.logprob) for position in positions) / len(positions)
