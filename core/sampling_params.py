"""What a request asks of sampling: every option, its default and its range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard, get_args

from .errors import RequestError

MAX_COUNT = 2**31 - 1
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 4096
MAX_STOP_TOKENS = 64
MAX_STRUCTURE_CHARACTERS = 1 << 17

StructureKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Structure:
    """The form that an output must have, from its first token to its last; a logits stage holds it to that.

    Raises RequestError for a kind that does not exist and for a text of the wrong length.
    """

    kind: StructureKind
    text: str = ""
    """A JSON schema, a regular expression for the whole output, a JSON list of strings to choose from, or a Lark
    grammar; nothing for `json_object`, which is any JSON object."""

    def __post_init__(self) -> None:
        kinds = get_args(StructureKind)
        if self.kind not in kinds:
            raise RequestError(f"structure must be one of {', '.join(kinds)}, got {_shown(self.kind)}.")
        if not isinstance(self.text, str) or len(self.text) > MAX_STRUCTURE_CHARACTERS:
            raise RequestError(f"structure must have a text of at most {MAX_STRUCTURE_CHARACTERS} characters.")
        if (self.kind == "json_object") == bool(self.text):
            needed = "takes no text" if self.text else "needs a text"
            raise RequestError(f"structure of kind {self.kind} {needed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    Every field is checked when it is made: `RequestError` names the field and its range. Lists and sets become tuples.
    """

    max_tokens: int = 256
    """Most tokens to generate, 1 or more."""
    min_tokens: int = 0
    """Output tokens before the end-of-text and stop tokens become possible."""
    temperature: float = 1.0
    """Divides the logits, 0 to 100; 0 is greedy."""
    top_k: int = 0
    """Keep only this many of the most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens whose probabilities reach this sum, above 0 and up to 1; 1 keeps all."""
    min_p: float = 0.0
    """Keep only tokens at least this fraction as likely as the most likely one, 0 to 1."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output, 0.01 to 100; 1 is off."""
    presence_penalty: float = 0.0
    """Taken off the logit of every token in the output, -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token for each time it is in the output, -2 to 2."""
    seed: int | None = None
    """Fixes the sampling noise, whatever else runs; any 64-bit signed integer. None lets the engine choose."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids, each -100 to 100; at most 1024."""
    stop: Collection[str] = ()
    """Strings that end the text, one or at most 16, none empty, 4096 characters in all; kept as a tuple."""
    stop_token_ids: Collection[int] = ()
    """Token ids that end the output and are part of it, at most 64; kept as a tuple."""
    ignore_eos: bool = False
    """Let the end-of-text token be sampled without ending the output."""
    logprobs: int | None = None
    """Report the log probability of each output token and of this many alternatives, 0 to 20."""
    prompt_logprobs: int | None = None
    """The same for each prompt token."""
    n: int = 1
    """Independent outputs of the prompt, 1 to 128."""
    structure: Structure | None = None
    """The form that the output must have, such as a JSON schema; a plugin holds it to that."""

    def __post_init__(self) -> None:
        whole, number = self._whole, self._number
        whole("max_tokens", 1, MAX_COUNT)
        whole("min_tokens", 0, MAX_COUNT)
        number("temperature", 0.0, 100.0)
        whole("top_k", 0, MAX_COUNT)
        number("top_p", 0.0, 1.0)
        if self.top_p == 0:
            raise RequestError("top_p must be a number above 0 and at most 1, got 0; use temperature 0 for greedy.")
        number("min_p", 0.0, 1.0)
        number("repetition_penalty", 0.01, 100.0)
        number("presence_penalty", -2.0, 2.0)
        number("frequency_penalty", -2.0, 2.0)
        whole("seed", -(2**63), 2**63 - 1, optional=True)
        whole("logprobs", 0, MAX_LOGPROBS, optional=True)
        whole("prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
        whole("n", 1, 128)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos must be true or false, got {self.ignore_eos!r}.")
        if self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be from 0 to max_tokens, got {self.min_tokens} with max_tokens {self.max_tokens}."
            )
        self._set("logit_bias", _biases(self.logit_bias))
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _stop_tokens(self.stop_token_ids))
        self._set("structure", _structure(self.structure))
        if self.structure is not None and self.ignore_eos:
            raise RequestError("ignore_eos must be false with a structure, whose end only the end-of-text token tells.")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have."""
        for name in ("logit_bias", "stop_token_ids"):
            largest = max(getattr(self, name), default=0)
            if largest >= vocab_size:
                raise RequestError(f"{name} must hold token ids from 0 to {vocab_size - 1}, got {largest}.")

    def _whole(self, name: str, low: int, high: int, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if not _is_whole(value) or not low <= value <= high:
            raise RequestError(f"{name} must be an integer from {low} to {high}, got {_shown(value)}.")
        self._set(name, int(value))

    def _number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not _is_number(value) or not low <= value <= high:
            raise RequestError(f"{name} must be a number from {low:g} to {high:g}, got {_shown(value)}.")
        self._set(name, float(value))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _biases(given: object) -> dict[int, float]:
    if not isinstance(given, Mapping) or len(given) > MAX_BIASES:
        raise RequestError(f"logit_bias must map at most {MAX_BIASES} token ids to numbers, got {_shown(given)}.")
    for token, bias in given.items():
        if not _is_whole(token) or not 0 <= token <= MAX_COUNT:
            raise RequestError(f"logit_bias must have token ids (0 or more) as keys, got {_shown(token)}.")
        if not _is_number(bias) or not -100 <= bias <= 100:
            raise RequestError(f"logit_bias must have numbers from -100 to 100 as values, got {_shown(bias)}.")
    return {int(token): float(bias) for token, bias in given.items()}


def _stop_strings(given: object) -> tuple[str, ...]:
    strings = (given,) if isinstance(given, str) else _as_tuple("stop", given)
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop must hold at most {MAX_STOP_STRINGS} strings, got {len(strings)}.")
    if not all(isinstance(string, str) and string for string in strings):
        raise RequestError(f"stop must hold strings of at least one character, got {_shown(given)}.")
    num_characters = sum(len(str(string)) for string in strings)
    if num_characters > MAX_STOP_CHARACTERS:
        raise RequestError(f"stop must have at most {MAX_STOP_CHARACTERS} characters in all, got {num_characters}.")
    return tuple(str(string) for string in strings)


def _stop_tokens(given: object) -> tuple[int, ...]:
    tokens = _as_tuple("stop_token_ids", given)
    if len(tokens) > MAX_STOP_TOKENS:
        raise RequestError(f"stop_token_ids must hold at most {MAX_STOP_TOKENS} token ids, got {len(tokens)}.")
    for token in tokens:
        if not _is_whole(token) or not 0 <= token <= MAX_COUNT:
            raise RequestError(f"stop_token_ids must hold token ids (integers of 0 or more), got {_shown(token)}.")
    return tuple(int(token) for token in tokens)


def _structure(given: Any) -> Structure | None:
    """Also from the plain form that `asdict` makes of one."""
    if isinstance(given, Mapping) and set(given) <= {"kind", "text"} and "kind" in given:
        return Structure(**given)
    if given is None or isinstance(given, Structure):
        return given
    raise RequestError(f"structure must be a Structure or nothing, got {_shown(given)}.")


def _as_tuple(name: str, given: object) -> tuple[Any, ...]:
    if isinstance(given, set | frozenset):
        return tuple(sorted(given, key=repr))
    if isinstance(given, list | tuple):
        return tuple(given)
    raise RequestError(f"{name} must be a list, got {_shown(given)}.")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
