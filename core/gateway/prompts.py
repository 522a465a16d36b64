"""From a prompt or a conversation to token ids, through the model's own tokenizer and template. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import RequestError
from ..model.chat import render
from ..model.files import ModelFiles
from ..model.tokenizer import Tokenizer
from ..records import IntArray

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class Prompts:
    """One model's way of reading text. Safe to share between threads."""

    def __init__(self, files: ModelFiles, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.template_variables = files.tokenizer_config
        """What tokenizer_config.json says, the chat template among it."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was made for conversations."""
        return bool(self.template_variables.get("chat_template"))

    def encode(self, prompt: Prompt, add_special: bool = True) -> IntArray:
        """Token ids `[P]` of a text, or of a list of them. Raises RequestError for anything else."""
        if isinstance(prompt, str):
            return np.array(self.tokenizer.encode(prompt, add_special=add_special), dtype=np.int64)
        if not all(isinstance(token, int | np.integer) and not isinstance(token, bool) for token in prompt):
            raise RequestError("a prompt is a text or a list of token ids: this list holds something else")
        if not all(-(2**63) <= int(token) < 2**63 for token in prompt):
            raise RequestError(
                f"a token id is out of range: this model's ids go from 0 to {self.tokenizer.vocab_size - 1}"
            )
        return np.array(prompt, dtype=np.int64)

    def encode_chat(self, messages: Any, *, continue_final: bool = False, **template: Any) -> tuple[IntArray, str]:
        """Token ids `[P]` of a conversation, and the text they are of. template: further names for the template.

        continue_final: leave the last message open, for the output to go on with it.

        Raises RequestError for a model without a template and for messages that the template refuses.
        """
        if not isinstance(messages, Sequence) or not messages:
            raise RequestError("a conversation needs at least one message, each with a role and a content")
        text = render(messages, self.template_variables, **template)
        if continue_final:
            text = opened(text, messages[-1])
        return np.array(self.tokenizer.encode(text, add_special=False), dtype=np.int64), text


def opened(text: str, last: Message) -> str:
    """The rendered conversation without what the template puts behind its last message."""
    content = last.get("content")
    words = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
    for kept in (words, words.strip()):
        if kept and kept in text:
            return text[: text.rindex(kept) + len(kept)]
    raise RequestError("the chat template does not show the last message as it is, so it cannot be continued")
