"""One prompt as the wire layer understood it: what a gateway hands to its service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt or a conversation, and what is wanted of it. Who asks, and how urgently, is said elsewhere."""

    params: SamplingParams = field(default_factory=SamplingParams)
    prompt: str | tuple[int, ...] = ""
    """A text or token ids; counts only where there are no messages."""
    messages: tuple[Mapping[str, object], ...] = ()
    """A conversation, instead of a prompt, as the chat template reads it."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """What else the chat template gets, by keyword: `tools`, `add_generation_prompt`, names of the model's own."""
    add_special: bool = True
    """Whether a text gets the tokens that the tokenizer puts around one, such as BOS. A template puts its own."""
    default_max_tokens: bool = False
    """No `max_tokens` was given: the output may fill what the model's context leaves; `params` has a placeholder."""

    @property
    def size(self) -> int:
        """Characters or token ids of all that has to be read, which for a conversation is what its template gets."""
        return num_characters((self.messages, self.template)) if self.messages else len(self.prompt)


def num_characters(value: Any) -> int:
    """Of every text in lists and dicts of any depth; what is no text counts as one."""
    num, pending = 0, [value]
    while pending:
        match pending.pop():
            case str(text):
                num += len(text)
            case dict(entries):
                pending += entries.keys()
                pending += entries.values()
            case list(parts) | tuple(parts):
                pending += parts
            case _:
                num += 1
    return num
