"""Chat messages to the one prompt text that the model was trained on, through its own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The entries of tokenizer_config.json that a template may name."""


def render(
    messages: Sequence[Mapping[str, Any]],
    tokenizer_config: Mapping[str, Any],
    *,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    """The prompt for `messages`: tokenise it with `add_special=False`, the template has put BOS where it belongs.

    messages: each with a `role`, and a `content` that is a string or a list of `{"type": "text", "text": ...}`;
    other keys reach the template as they are. add_generation_prompt: open the assistant's turn at the end.
    variables: further names for the template, such as `tools`.
    """
    template = template_of(tokenizer_config, for_tools=bool(variables.get("tools")))
    chat = [_checked(message, position) for position, message in enumerate(messages)]
    if not chat:
        raise RequestError("there are no messages; send at least one with a role and a content")
    from .chat_sandbox import render_template

    scope = {"tools": None, "documents": None, **_special_tokens(tokenizer_config), **variables}
    try:
        return render_template(template, {**scope, "messages": chat, "add_generation_prompt": add_generation_prompt})
    except Exception as error:  # a template is somebody's program: whatever it raises is about this request
        reason = str(error) or type(error).__name__
        raise RequestError(
            f"the model's chat template refused the messages ({reason}); change them or use a plain prompt"
        ) from error


def template_of(tokenizer_config: Mapping[str, Any], *, for_tools: bool = False) -> str:
    """The model's chat template, or the one that it has for conversations with tools. RequestError without one."""
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several by name
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("tool_use" if for_tools else "default") or by_name.get("default")
    if not isinstance(template, str):
        raise RequestError("this model has no chat template; use a plain prompt or a model made for chat")
    return template


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in SPECIAL_TOKENS:
        token = tokenizer_config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _checked(message: Any, position: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"message {position} has no role; each message needs a role and a content")
    return {**message, "content": _text(message.get("content"), position)}


def _text(content: Any, position: int) -> str:
    if isinstance(content, str):
        return content
    is_text = isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    )
    if not is_text:
        raise RequestError(f"the content of message {position} must be a string or a list of text parts")
    return "".join(part["text"] for part in content)
