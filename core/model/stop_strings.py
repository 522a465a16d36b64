"""Finds stop strings in text that arrives in pieces, letting through only what cannot be part of one."""

from __future__ import annotations

from collections import deque


class StopMatcher:
    """One sequence's stop strings, as an Aho-Corasick automaton: one transition a character, however many strings.

    The match is the one that is complete first, and of those that end together the longest: the same wherever the
    text was cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string would stop everything"
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fallback = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop string that ended it if one did.

        After a match nothing more may be pushed.
        """
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            self._state = self._step(self._state, character)
            matched = self._match[self._state]
            if matched is not None:
                self._held = ""
                return pending[: position - len(matched)], matched
        num_safe = len(pending) - self._depth[self._state]
        self._held = pending[num_safe:]
        return pending[:num_safe], None

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._fallback.append(0)
                self._match.append(None)
            state = self._next[state][character]
        self._match[state] = stop

    def _link(self) -> None:
        """Point each state to the longest other one that ends the same way, and let it inherit that one's match."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                self._fallback[child] = self._step(self._fallback[state], character)
                self._match[child] = self._match[child] or self._match[self._fallback[child]]
                queue.append(child)

    def _step(self, state: int, character: str) -> int:
        while character not in self._next[state] and state:
            state = self._fallback[state]
        return self._next[state].get(character, 0)
