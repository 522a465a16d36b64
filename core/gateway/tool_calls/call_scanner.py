"""One call as models write it, `{"name": ..., "arguments": {...}}`, read character by character."""

from __future__ import annotations

import json
from enum import Enum, auto

ARGUMENT_KEYS = ("arguments", "parameters")
"""Llama says parameters."""
USUAL_KEYS = frozenset({"name", "type", "id", *ARGUMENT_KEYS})
SPACES = " \t\r\n"


class Found(Enum):
    """What a character made of a call."""

    MORE = auto()
    """Nothing is decided."""
    END = auto()
    """The character was the call's last."""
    BROKEN = auto()
    """The character has no place in a call."""


class CallScanner:
    """Knows the name and the arguments as soon as they have been read, whichever comes first.

    Arguments are taken as they stand: nothing is looked at in them but where they end. Once the name is known and the
    arguments have begun the call *is open*, and is one whatever follows.
    """

    def __init__(self, *, is_strict: bool) -> None:
        """is_strict: a key that calls do not have breaks it at once, so that other JSON is let go early."""
        self.name: str | None = None
        self._is_strict = is_strict
        self._depth = 0
        self._is_quoted = self._is_escaped = False
        self._key: str | None = None
        """Of the entry whose value is being read."""
        self._piece: list[str] = []
        """The characters of the key or value that is being read."""
        self._is_whole = False
        """The piece has its last character."""
        self._arguments: list[str] | None = None
        """As much of their text as has been read."""
        self._num_taken = 0

    @property
    def is_open(self) -> bool:
        return self.name is not None and self._arguments is not None

    def take_arguments(self) -> str:
        """What has been read of the arguments' text since the last time."""
        taken = (self._arguments or [])[self._num_taken :]
        self._num_taken += len(taken)
        return "".join(taken)

    def push(self, character: str) -> Found:
        if self._is_quoted:
            self._follow_string(character)
        elif self._depth == 0:
            if character != "{":
                return Found.MORE if character in SPACES else Found.BROKEN
            self._depth = 1
            return Found.MORE
        elif self._depth == 1 and character in ":,}]":
            return self._end_piece(character)
        elif character in "<\\" or (self._is_whole and character not in SPACES):
            # no JSON has these outside of strings: a closing tag came too early, say; and who reads on behind either
            # may read the same text again for every marker in it
            return Found.BROKEN
        elif not self._piece and character in SPACES:
            return Found.MORE
        else:
            self._depth += (character in "{[") - (character in "}]")
            self._is_quoted = character == '"'
        if not self._is_whole:
            self._piece.append(character)
            self._is_whole = self._depth == 1 and not self._is_quoted and character in '"}]'
        if self._arguments is None and self._key in ARGUMENT_KEYS and self._piece == ["{"]:
            self._arguments = self._piece
        return Found.MORE

    def _follow_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_quoted = False

    # -- keys and values --------------------------------------------------------------------------------------------

    def _end_piece(self, character: str) -> Found:
        """A colon ends a key, a comma or the last brace a value."""
        piece = "".join(self._piece).rstrip(SPACES)
        self._piece, self._is_whole = [], False
        if character == ":":
            is_key = self._key is None
            self._key = text_of(piece)
            is_known = self._key in USUAL_KEYS if self._is_strict else self._key is not None
            return Found.MORE if is_key and is_known else Found.BROKEN
        if self._key is None or not piece or character == "]" or not self._take_value(piece):
            return Found.BROKEN
        self._key = None
        if character == ",":
            return Found.MORE
        if self.name is None:
            return Found.BROKEN
        self._arguments = self._arguments or ["{}"]
        return Found.END

    def _take_value(self, value: str) -> bool:
        """Whether it is what its key needs."""
        if self._key == "name" and self.name is None:
            self.name = text_of(value) or None
            return self.name is not None
        if self._key in ARGUMENT_KEYS and self._arguments is None:
            # some models write the JSON of the arguments into a string, some write null for none
            arguments = "{}" if value == "null" else text_of(value)
            self._arguments = None if arguments is None else list(arguments)
            return arguments is not None
        return True


def text_of(literal: str) -> str | None:
    """What a JSON string says; None for anything else."""
    if not literal.startswith('"'):
        return None
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        return None
