"""Outputs that keep to a structure: JSON of a schema, a regular expression, one of some texts, a grammar.

Buys answers that a program can read, whatever the model would rather say. Costs one mask over the vocabulary a token,
and the structure's compilation once. Earley parsing over a trie of the vocabulary, by the library llguidance
(docs/plugins/structured_output.md); masks over a vocabulary after Willard and Louf (2307.09702).
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from ..core.config import PluginConfig
from ..core.errors import PluginError
from ..core.hooks import hookimpl
from ..core.interfaces import Control
from ..core.model.spec import ModelSpec
from ..core.records import TOKEN_EQUAL, BoolArray, IntArray, Vocabulary
from ..core.sampling_params import Structure

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

STACK_BYTES = 256 << 20
"""For compiling: the library recurses once a rule, and would end the process where the stack does."""
MAX_GRAMMAR_LINES = 1000
"""A rule takes a line, and a longer chain of rules can take a minute to be refused."""


class StructuredOutput:
    """Holds outputs to a JSON schema, a regular expression, a choice or a grammar."""

    name = "structured_output"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    hook_api = (1, 0)

    class Config(PluginConfig):
        max_whitespace: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 20
        """Most whitespace characters in a row between the parts of a JSON text; without a bound, a small model may
        write nothing else."""
        cache_size: Annotated[int, msgspec.Meta(ge=1)] = 64
        """Compiled structures that are kept for requests to come, the least recently used going first."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def logits(
        self, model: ModelSpec, vocabulary: Callable[[], Vocabulary], clock: Callable[[], float]
    ) -> StructureMasks:
        if not model.eos_ids:
            raise PluginError(
                "plugin 'structured_output' cannot tell where an output ends: this model has no end-of-text token"
            )
        self.masks = StructureMasks(self.config, vocabulary(), sorted(model.eos_ids), clock)
        return self.masks

    @hookimpl
    def control(self) -> Control:
        return self

    def commands(self) -> Mapping[str, Callable[..., object]]:
        return {}

    def stats(self) -> Mapping[str, float]:
        return self.masks.counts.stats()


@dataclass(slots=True)
class Counts:
    """What was done so far, and how long it took in seconds."""

    num_rows: int = 0
    num_compiled: int = 0
    compile_seconds: float = 0.0
    num_masks: int = 0
    """One for each token, and for each draft."""
    mask_seconds: float = 0.0

    def stats(self) -> dict[str, float]:
        return {
            "rows": self.num_rows,
            "compiled": self.num_compiled,
            "compile_seconds": self.compile_seconds,
            "masks": self.num_masks,
            "mask_seconds": self.mask_seconds,
            "seconds_per_mask": self.mask_seconds / max(1, self.num_masks),
        }


@dataclass(slots=True)
class Held:
    """A row, what it keeps to, and how far it is."""

    structure: Structure
    matcher: LLMatcher


class StructureMasks:
    """Follows each row through its structure. A token is allowed if some text of the structure goes on with it.

    The end-of-text tokens are allowed where the text may end, and alone where it must.
    """

    def __init__(
        self,
        config: StructuredOutput.Config,
        vocabulary: Vocabulary,
        eos_ids: Sequence[int],
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.clock = clock
        self.vocab_size = len(vocabulary.token_bytes)
        self.tokenizer = tokenizer_of(vocabulary, eos_ids)
        self.compiled: OrderedDict[Structure, LLMatcher] = OrderedDict()
        """At their beginnings; rows get copies."""
        self.held: dict[int, Held] = {}
        self.counts = Counts()

    # -- structures -------------------------------------------------------------------------------------------------

    def check_structure(self, structure: Structure) -> None:
        self._compiled(structure)

    def begin(self, row: int, structure: Structure) -> None:
        self.held[row] = Held(structure, self._compiled(structure).deep_copy())
        self.counts.num_rows += 1

    def _compiled(self, structure: Structure) -> LLMatcher:
        """Raises ValueError where it cannot be compiled."""
        if structure in self.compiled:
            self.compiled.move_to_end(structure)
            return self.compiled[structure]
        started = self.clock()
        grammar = grammar_of(structure, self.config.max_whitespace)
        matcher = with_deep_stack(lambda: new_matcher(self.tokenizer, grammar))
        self.counts.num_compiled += 1
        self.counts.compile_seconds += self.clock() - started
        if matcher.is_error():
            raise ValueError(reason_in(matcher.get_error()))
        self.compiled[structure] = matcher
        if len(self.compiled) > self.config.cache_size:
            self.compiled.popitem(last=False)
        return matcher

    # -- tokens -----------------------------------------------------------------------------------------------------

    def mask(self, rows: IntArray, drafts: tuple[IntArray, ...], offsets: IntArray) -> BoolArray | None:
        entries = [entry for entry, row in enumerate(rows.tolist()) if row in self.held]
        if not entries:
            return None
        started = self.clock()
        allowed = np.ones((len(rows), self.vocab_size), dtype=np.bool_)
        for entry in entries:
            held = self.held[int(rows[entry])]
            behind = drafts[entry][: int(offsets[entry])].tolist()
            matcher = after(held.matcher, behind) if behind else held.matcher
            if matcher is not None:
                allowed[entry] = self._allowed(held, matcher)
        self.counts.num_masks += len(entries)
        self.counts.mask_seconds += self.clock() - started
        return allowed

    def _allowed(self, held: Held, matcher: LLMatcher) -> BoolArray:
        """`[V]`; nothing, which ends the row with an error, where the structure has become too much to follow."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            logger.warning("a row can no longer be held to its structure: %s", reason_in(matcher.get_error()))
            # what its copies share is used up too
            self.compiled.pop(held.structure, None)
            return np.zeros(self.vocab_size, dtype=np.bool_)
        return np.unpackbits(bits, count=self.vocab_size, bitorder="little").view(np.bool_)

    def advance(self, row: int, tokens: tuple[int, ...]) -> None:
        if row in self.held:
            self.held[row].matcher.consume_tokens(list(tokens))

    def drop(self, rows: IntArray) -> None:
        for row in rows.tolist():
            self.held.pop(row, None)


def after(matcher: LLMatcher, tokens: list[int]) -> LLMatcher | None:
    """Where a draft would lead, the row itself staying where it is; None behind a token that is not allowed."""
    copy = matcher.deep_copy()
    return copy if copy.try_consume_tokens(tokens) == len(tokens) else None


# -- from structures to grammars ------------------------------------------------------------------------------------


def grammar_of(structure: Structure, max_whitespace: int) -> str:
    """The structure in the library's own language. Raises ValueError where the text is not what the kind says.

    `no_forcing` leaves the choice among equal spellings to the model, so that a structure only ever takes tokens away.
    """
    return '%llguidance {"no_forcing": true}\n' + GRAMMARS[structure.kind](structure.text, max_whitespace)


def schema_grammar(text: str, max_whitespace: int) -> str:
    schema = parsed(text)
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema is an object")
    spaces: dict[str, object] = {"whitespace_flexible": False}
    if max_whitespace:
        spaces = {"whitespace_pattern": f"[ \\n\\r\\t]{{1,{max_whitespace}}}"}
    return f"start: %json {json.dumps({**schema, 'x-guidance': spaces})}"


def choice_grammar(text: str) -> str:
    texts = parsed(text)
    if not (isinstance(texts, list) and texts and all(isinstance(each, str) and each for each in texts)):
        raise ValueError("a choice is a JSON list of strings, none of them empty")
    return "start: " + " | ".join(json.dumps(each) for each in texts)


def regex_grammar(regex: str) -> str:
    from llguidance import regex_to_lark

    return f"start: /{regex_to_lark(regex)}/"


def lark_grammar(text: str) -> str:
    num_lines = text.count("\n") + 1
    if num_lines > MAX_GRAMMAR_LINES:
        raise ValueError(f"a grammar has at most {MAX_GRAMMAR_LINES} lines, this one {num_lines}")
    return text


GRAMMARS: Mapping[str, Callable[[str, int], str]] = {
    "json_object": lambda _, max_whitespace: schema_grammar('{"type": "object"}', max_whitespace),
    "json_schema": schema_grammar,
    "choice": lambda text, _: choice_grammar(text),
    "regex": lambda text, _: regex_grammar(text),
    "grammar": lambda text, _: lark_grammar(text),
}


def parsed(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"its text is not JSON ({error})") from error


# -- the library ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tokens:
    """A vocabulary in the form that the library reads."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: None = None
    is_tokenizer_wrapper: bool = field(default=True)


def tokenizer_of(vocabulary: Vocabulary, eos_ids: Sequence[int]) -> LLTokenizer:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise PluginError(
            "plugin 'structured_output' needs the library llguidance: pip install 'switchgear[grammar]'"
        ) from error
    tokens = Tokens(list(vocabulary.token_bytes), sorted(vocabulary.special_ids), eos_ids[0])
    return LLTokenizer(tokens, eos_token=list(eos_ids))  # type: ignore[arg-type]  # it looks at the attributes alone


def new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Never raises: what is wrong with the grammar is in `get_error`."""
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))


def with_deep_stack(make: Callable[[], LLMatcher]) -> LLMatcher:
    made: list[LLMatcher] = []
    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=lambda: made.append(make()), name="switchgear-structure")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return made[0]


def reason_in(error: str) -> str:
    """The line that says what is wrong, without where in a grammar that nobody wrote."""
    lines = [line for line in error.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("error: ")), lines[0])
    return told.removeprefix("error: ").rpartition("failed to compile JSON schema: ")[2].strip().rstrip(".")
