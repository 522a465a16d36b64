"""`POST /v1/chat/completions`: from a body to what is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.json import Decoder

from ..ask import Ask
from .chat_bodies import ChatRequest
from .decoding import check_model, decode
from .errors import bad_request
from .message_bodies import AssistantMessage, Message, conversation
from .sampling import check_stream, includes_usage, sampling_params
from .tool_bodies import NamedToolChoice, ResponseFormat, TextFormat, Tool, ToolChoice, for_template
from .wire import Call, Wire

TAKEN_NAMES = frozenset({"self", "messages", "tokenizer_config", "tools", "add_generation_prompt", "continue_final"})
"""What a chat template gets from elsewhere."""

_decoder = Decoder(ChatRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall(Call):
    """A conversation to answer."""

    response_format: ResponseFormat = field(default_factory=TextFormat)
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "none"
    """`auto` where there are tools and nothing was said."""
    parallel_tool_calls: bool = True
    """Whether one answer may have several calls."""

    @property
    def ask(self) -> Ask:
        return self.asks[0]


def parse_chat(body: bytes, wire: Wire) -> ChatCall:
    """Raises ApiError, with the field, for a body that cannot be served."""
    request = decode(body, _decoder)
    check_model(request.model, wire)
    if not wire.has_chat_template:
        raise bad_request("This model has no chat template; use /v1/completions or a model made for chat.", "messages")
    check_stream(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("`top_logprobs` is only allowed when `logprobs` is true.", "top_logprobs")
    max_tokens = request.max_completion_tokens or request.max_tokens
    params = sampling_params(
        request,
        wire,
        max_tokens=max_tokens or wire.max_model_len,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )
    tools = tuple(request.tools or ())
    tool_choice = _tool_choice(request.tool_choice, tools)
    ask = Ask(
        params=params,
        messages=conversation(request.messages),
        template=template_of(request, request.messages, tools if tool_choice != "none" else ()),
        add_special=False,
        default_max_tokens=max_tokens is None,
    )
    return ChatCall(
        asks=(ask,),
        model=request.model,
        stream=bool(request.stream),
        include_usage=includes_usage(request),
        priority=request.priority or 0,
        deadline_seconds=request.deadline,
        response_format=request.response_format or TextFormat(),
        tools=tools,
        tool_choice=tool_choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
    )


class TemplateFields(Protocol):
    """Of a body: what else reaches the chat template."""

    chat_template_kwargs: dict[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


def template_of(request: TemplateFields, messages: list[Message], tools: tuple[Tool, ...]) -> dict[str, Any]:
    """What the chat template gets besides the messages."""
    given = dict(request.chat_template_kwargs or {})
    if taken := sorted(TAKEN_NAMES & given.keys()):
        param = f"chat_template_kwargs.{taken[0]}"
        raise bad_request(f"`{param}` is given to the chat template already; leave it out.", param)
    is_continued = bool(request.continue_final_message)
    if is_continued and request.add_generation_prompt:
        text = "`continue_final_message` and `add_generation_prompt` exclude each other; leave one out."
        raise bad_request(text, "continue_final_message")
    if is_continued and not isinstance(messages[-1], AssistantMessage):
        text = "`continue_final_message` needs the assistant's message at the end of `messages`."
        raise bad_request(text, "continue_final_message")
    if tools:
        given["tools"] = for_template(tools)
    if is_continued:
        return {**given, "add_generation_prompt": False, "continue_final": True}
    return {**given, "add_generation_prompt": request.add_generation_prompt is not False}


def _tool_choice(given: ToolChoice | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if given is None:
        return "auto" if tools else "none"
    if not tools and given not in ("none", "auto"):
        raise bad_request("`tool_choice` is only allowed when `tools` are given.", "tool_choice")
    if isinstance(given, NamedToolChoice) and given.function.name not in {tool.function.name for tool in tools}:
        raise bad_request(f"`tool_choice` names {given.function.name!r}, which is not in `tools`.", "tool_choice")
    return given if tools else "none"
