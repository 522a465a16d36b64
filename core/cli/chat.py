"""`switchgear chat`: a conversation in the terminal, or over a pipe with one message a line."""

from __future__ import annotations

import contextlib
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import RequestError, SwitchgearError
from ..sampling_params import SamplingParams
from .command import Command
from .messages import Messages
from .options import add_config_options, config_from
from .sampling_options import add_sampling_options, sampling_params
from .streaming import follow, show_at_once

if TYPE_CHECKING:
    from ..gateway.llm import LLM
    from ..gateway.prompts import Message

NOT_IN_CHAT = ("n", "logprobs", "prompt_logprobs")
ANSWER_SHARE = 4
"""The oldest turns are dropped when less than this fraction of the context is left for an answer."""
HELP = "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer"


def add_options(parser: ArgumentParser) -> None:
    add_sampling_options(parser, leave_out=NOT_IN_CHAT)
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    params, messages = sampling_params(arguments), arguments.messages
    from ..gateway.llm import LLM

    with LLM.from_config(config_from(arguments)) as llm:
        if not llm.has_chat_template:
            raise RequestError(f"model {llm.plan.model} has no chat template: use `switchgear run`, or a chat model")
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  its import gives input() a history and editing
            print(f"{llm.plan.model}: {HELP}.")
        Chat(llm, params, messages).talk()
    return 0


class Chat:
    """One conversation. A turn that fails leaves it as it was."""

    def __init__(self, llm: LLM, params: SamplingParams, messages: Messages) -> None:
        self.llm = llm
        self.params = params
        self.messages = messages
        self.history: list[Message] = []
        """User and assistant in turn."""
        plan = llm.plan
        self.max_tokens = min(plan.max_model_len, plan.kv_num_blocks * plan.kv_block_size)

    def talk(self) -> None:
        """Until /quit or the end of the input."""
        while (line := read_line()) is not None:
            text = line.strip()
            if text == "/quit":
                return
            if text == "/reset":
                self.history = []
                self.messages.tell("(the conversation is forgotten)")
            elif re.fullmatch(r"/\w+", text):
                self.messages.tell(f"error: unknown command {text}: {HELP}")
            elif text:
                try:
                    self.answer(text)
                except SwitchgearError as error:
                    self.messages.tell_failure(error)
                self.messages.tell_logged()

    def answer(self, text: str) -> None:
        """Stream the answer to one message. Raises RequestError."""
        turns = [*self.history, {"role": "user", "content": text}]
        kept = self.fitting(turns)
        room = max(1, self.max_tokens - self.llm.num_tokens(kept))
        chunks = self.llm.stream(kept, replace(self.params, max_tokens=min(self.params.max_tokens, room)))
        if len(kept) < len(turns):
            self.messages.tell(
                f"(the conversation no longer fits {self.max_tokens} tokens: dropped the oldest "
                f"{(len(turns) - len(kept)) // 2} of its {len(turns) // 2} turns)"
            )
        pieces: list[str] = []

        def show(piece: str) -> None:
            pieces.append(piece)
            show_at_once(piece)

        result = follow(chunks, show)
        print()
        if result is not None and result.error:
            raise RequestError(result.error)
        if result is not None and result.finish_reason == "length":
            self.messages.tell(f"(the answer was cut after {len(result.token_ids)} tokens)")
        self.history = [*kept, {"role": "assistant", "content": "".join(pieces)}]

    def fitting(self, turns: list[Message]) -> list[Message]:
        """The newest turns that leave room for an answer; the last message always."""
        room = min(self.params.max_tokens, self.max_tokens // ANSWER_SHARE)
        while len(turns) > 1 and self.llm.num_tokens(turns) + room > self.max_tokens:
            turns = turns[2:]
        return turns


def read_line() -> str | None:
    """The next line, None at the end. In a terminal Ctrl-C drops the line, elsewhere it ends the command."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print(f"\n({HELP})")


COMMAND = Command("chat", "Talk with a model in the terminal.", add_options, run, f"In the conversation {HELP}.")
