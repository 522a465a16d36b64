"""Splits an output into text and tool calls while it comes, the same however it is cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from ..openai.tool_deltas import ContentDelta, ToolCallDelta
from .call_scanner import SPACES, CallScanner, Found
from .formats import Format

Deltas = list[ContentDelta | ToolCallDelta]


class _Place(Enum):
    """Where in the output the next character stands."""

    TEXT = auto()
    OPENING = auto()
    """Behind a marker, before a call or a list of them."""
    CALL = auto()
    AFTER_CALL = auto()
    NEXT_CALL = auto()
    """Behind a separator, or at the start of a list."""
    CLOSING = auto()


class CallParser:
    """Reads one output in one format.

    Text that may be the start of a marker is held back, and a call until its name is known and its arguments begin;
    these then stream as they come, as the model wrote them. What turns out to be no call is text like any other.
    White space that has nothing but calls beside it is dropped.

    names: of the tools; what has no marker is a call only to one of them.
    """

    def __init__(self, format: Format, names: Collection[str], new_id: Callable[[], str] | None = None) -> None:
        self._format = format
        self._names = names
        self._new_id = new_id or format.new_id
        self._place = _Place.TEXT
        self._text = ""
        self._start = self._at = 0
        """Of the text that is not decided, and of what has not been read of it."""
        self._call = CallScanner(is_strict=False)
        self._num_calls = 0
        self._is_bare = self._is_list = False
        self._spaces = ""
        self._has_content = False
        """Something other than white space since the start, or since the last call."""
        self._deltas: Deltas = []

    def push(self, text: str) -> Deltas:
        self._text += text
        while self._at < len(self._text):
            if self._place is not _Place.TEXT:
                self._at += 1
                self._read(self._text[self._at - 1])
            elif not self._find_calls():
                break
        if self._place is _Place.CALL and self._is_call:
            self._send_arguments()
        self._text, self._at, self._start = self._text[self._start :], self._at - self._start, 0
        return self._taken()

    def finish(self) -> Deltas:
        is_cut_marker = self._place is _Place.CLOSING and self._format.end.startswith(self._text.strip(SPACES))
        if not is_cut_marker:
            self._write(self._text)
        if self._spaces and not self._num_calls:
            self._deltas.append(ContentDelta(self._spaces))
        return self._taken()

    def _taken(self) -> Deltas:
        deltas, self._deltas = self._deltas, []
        return deltas

    # -- text -------------------------------------------------------------------------------------------------------

    def _find_calls(self) -> bool:
        """Hand out the text before the next calls; False where nothing is to be done before more text comes."""
        start, self._is_bare = self._text.find(self._format.begin, self._start), False
        if self._format.bare and not (self._num_calls or self._has_content):
            first = self._text[self._start :].lstrip(SPACES)
            if self._format.begin.startswith(first):
                return False
            if first[0] == self._format.bare and not first.startswith(self._format.begin):
                start, self._is_bare = len(self._text) - len(first), True
        if start < 0:
            self._write(self._decide(len(self._text) - overlap(self._text[self._start :], self._format.begin)))
            return False
        self._write(self._decide(start))
        self._at = start if self._is_bare else start + len(self._format.begin)
        self._place = _Place.OPENING
        return True

    def _write(self, text: str) -> None:
        """Text for the reader; white space waits to see whether it stands beside a call."""
        if not self._has_content:
            text = self._spaces + text
            self._has_content = bool(text.strip(SPACES))
            self._spaces = "" if self._has_content else text
        if self._has_content and text:
            self._deltas.append(ContentDelta(text))

    def _decide(self, end: int) -> str:
        """The text that is not decided, up to `end`: from now on it is."""
        text = self._text[self._start : end]
        self._start = self._at = end
        return text

    def _give_up(self) -> None:
        """What stands there is no call: its first character is text, and the rest is looked at again."""
        self._place, self._is_bare = _Place.TEXT, False
        self._write(self._decide(self._start + 1))

    # -- calls ------------------------------------------------------------------------------------------------------

    def _read(self, character: str) -> None:
        match self._place:
            case _Place.CALL:
                self._read_call(character)
            case _Place.CLOSING:
                self._read_closing()
            case _ if character in SPACES:
                pass
            case _Place.OPENING if character == "[":
                self._is_list, self._place = True, _Place.NEXT_CALL
            case _Place.OPENING | _Place.NEXT_CALL if character == "{":
                self._is_list = self._is_list and self._place is _Place.NEXT_CALL
                self._place, self._call = _Place.CALL, CallScanner(is_strict=self._is_bare)
                self._read_call(character)
            case _Place.AFTER_CALL if character == ("," if self._is_list else self._format.separator):
                self._place = _Place.NEXT_CALL
            case _Place.AFTER_CALL:
                is_end_of_list = self._is_list and character == "]"
                self._at -= not is_end_of_list
                self._start = self._at if is_end_of_list else self._start
                self._place = _Place.CLOSING if self._format.end else _Place.TEXT
            case _:
                self._give_up()

    @property
    def _is_call(self) -> bool:
        return self._call.is_open and (not self._is_bare or self._call.name in self._names)

    def _read_call(self, character: str) -> None:
        was_call, found = self._is_call, self._call.push(character)
        if not self._is_call:
            if self._call.is_open or found is not Found.MORE:
                self._give_up()
            return
        if not was_call:
            self._spaces, self._has_content = "", False
            self._deltas.append(ToolCallDelta(self._num_calls, id=self._new_id(), name=self._call.name or ""))
            self._num_calls += 1
        # where the model broke off, the character stands behind the call
        self._decide(self._at - (found is Found.BROKEN))
        if found is not Found.MORE:
            self._send_arguments()
            self._place = _Place.AFTER_CALL

    def _send_arguments(self) -> None:
        if arguments := self._call.take_arguments():
            self._deltas.append(ToolCallDelta(self._num_calls - 1, arguments=arguments))

    def _read_closing(self) -> None:
        read = self._text[self._start : self._at].strip(SPACES)
        if read == self._format.end:
            self._decide(self._at)
            self._place = _Place.TEXT
        elif not self._format.end.startswith(read):
            self._at, self._place = self._start, _Place.TEXT


def overlap(text: str, marker: str) -> int:
    """Characters at the end of `text` that may be the beginning of `marker`."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if marker.startswith(text[-length:])), 0)
