"""`switchgear run`: one prompt, one answer."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from .command import Command
from .options import add_config_options, config_from
from .output import print_json
from .sampling_options import add_sampling_options, sampling_params
from .streaming import follow, show_at_once

if TYPE_CHECKING:
    from ..gateway.llm import LLM
    from ..gateway.prompts import Message
    from ..gateway.results import Choice, Result


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", help="the prompt, or - to read it from standard input")
    parser.add_argument("--raw", action="store_true", help="complete the text as it is, without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead: tokens, timing, plan hash")
    add_sampling_options(parser)
    add_config_options(parser)


def run(arguments: Namespace) -> int:
    prompt, params = read_prompt(arguments.prompt), sampling_params(arguments)
    if not arguments.json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise RequestError("log probabilities are shown in JSON only: add --json")
    from ..gateway.llm import LLM

    # more than one answer would mix on the screen, so they are shown when they are whole
    is_streamed = params.n == 1 and not arguments.json
    with LLM.from_config(config_from(arguments)) as llm:
        chunks = llm.stream(prompt if arguments.raw else in_template(llm, prompt), params)
        result = follow(chunks, show_at_once if is_streamed else lambda text: None)
        if is_streamed:
            print()
        if result is None:
            raise KeyboardInterrupt
        if arguments.json:
            print_json(table_of(result, llm))
        elif not is_streamed:
            print("\n\n".join(f"[{choice.index}] {choice.text}" for choice in result.choices))
    if result.error:
        raise RequestError(result.error)
    return 0


def read_prompt(given: str) -> str:
    """The prompt itself, or standard input up to the line break at its end."""
    prompt = sys.stdin.read().removesuffix("\n") if given == "-" else given
    if not prompt:
        raise RequestError("the prompt is empty: give a text, or - and a text on standard input")
    return prompt


def in_template(llm: LLM, text: str) -> str | list[Message]:
    """The text as the user's message, where the model was made for conversations."""
    return [{"role": "user", "content": text}] if llm.has_chat_template else text


def table_of(result: Result, llm: LLM) -> dict[str, Any]:
    """The whole result. Top-level fields speak of the first output, `choices` of all where there are several."""
    table: dict[str, Any] = {
        "model": llm.plan.model,
        "prompt_token_ids": result.prompt_token_ids,
        **choice_table(result.choices[0]),
        "plan": result.plan_hash,
        "environment": llm.plan.environment,
    }
    if result.prompt_logprobs is not None:
        table["prompt_logprobs"] = [position and asdict(position) for position in result.prompt_logprobs]
    if len(result.choices) > 1:
        table["choices"] = [choice_table(choice) for choice in result.choices]
    return table


def choice_table(choice: Choice) -> dict[str, Any]:
    """One output, without what was not asked for."""
    table = asdict(choice)
    if choice.logprobs is None:
        del table["logprobs"]
    if not choice.error:
        del table["error"]
    return table


COMMAND = Command("run", "Answer one prompt, streamed.", add_options, run)
