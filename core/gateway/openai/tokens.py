"""`POST /tokenize` and `/detokenize`: what the model reads of a text, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.json import Decoder, encode

from ..ask import Ask
from .chat import template_of
from .decoding import check_model, decode
from .errors import bad_request
from .message_bodies import conversation
from .token_bodies import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from .wire import Wire

_tokenize_decoder = Decoder(TokenizeRequest)
_detokenize_decoder = Decoder(DetokenizeRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeCall:
    """A text or a conversation to count."""

    ask: Ask
    shows_strings: bool


def parse_tokenize(body: bytes, wire: Wire) -> TokenizeCall:
    """Raises ApiError, with the field, for a body that cannot be served."""
    request = decode(body, _tokenize_decoder)
    if request.model is not None:
        check_model(request.model, wire)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Give either `prompt` or `messages`.", "prompt")
    shows_strings = bool(request.return_token_strs)
    if request.messages is None:
        ask = Ask(prompt=request.prompt or "", add_special=request.add_special_tokens is not False)
        return TokenizeCall(ask=ask, shows_strings=shows_strings)
    ask = Ask(
        messages=conversation(request.messages),
        template=template_of(request, request.messages, tuple(request.tools or ())),
        add_special=False,
    )
    return TokenizeCall(ask=ask, shows_strings=shows_strings)


def render_tokenize(
    call: TokenizeCall, token_ids: Sequence[int], wire: Wire, decode_one: Callable[[int], str]
) -> bytes:
    """decode_one: one token id to its text."""
    return encode(
        TokenizeAnswer(
            count=len(token_ids),
            max_model_len=wire.max_model_len,
            tokens=list(token_ids),
            token_strs=[decode_one(token_id) for token_id in token_ids] if call.shows_strings else None,
        )
    )


def parse_detokenize(body: bytes, wire: Wire) -> tuple[int, ...]:
    """Token ids to decode. Raises ApiError, with the field, for a body that cannot be served."""
    request = decode(body, _detokenize_decoder)
    if request.model is not None:
        check_model(request.model, wire)
    largest = max(request.tokens, default=0)
    if largest >= wire.vocab_size:
        last = wire.vocab_size - 1
        raise bad_request(f"`tokens` must hold token ids from 0 to {last}, got {largest}.", "tokens", "invalid_value")
    return tuple(request.tokens)


def render_detokenize(text: str) -> bytes:
    return encode(DetokenizeAnswer(prompt=text))
