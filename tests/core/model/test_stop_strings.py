import time

from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.model.stop_strings import StopMatcher

LETTERS = "ab\u20ac"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=0, max_size=5).map(tuple)
PIECES = st.lists(st.text(LETTERS, max_size=4), max_size=12)


def _first_match(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


def _run(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        safe, matched = matcher.push(piece)
        shown += safe
        if matched is not None:
            return shown, matched
    return shown + matcher.flush(), None


@given(PIECES, STOPS)
def test_equals_the_search_in_the_whole_text(pieces: list[str], stops: tuple[str, ...]) -> None:
    assert _run(pieces, stops) == _first_match("".join(pieces), stops)


@given(PIECES, STOPS)
def test_holds_back_no_more_than_it_must(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher, text, shown = StopMatcher(stops), "", ""
    for piece in pieces:
        safe, matched = matcher.push(piece)
        if matched is not None:
            return
        text, shown = text + piece, shown + safe
        held = text[len(shown) :]
        assert text.startswith(shown)
        could_begin = [n for n in range(len(text) + 1) if any(stop.startswith(text[len(text) - n :]) for stop in stops)]
        assert len(held) == max(could_begin, default=0)


def test_stop_across_pieces_is_cut_out() -> None:
    matcher = StopMatcher(("\nUser:",))
    assert matcher.push("yes\nUs") == ("yes", None)
    assert matcher.push("er: no") == ("", "\nUser:")
    assert matcher.flush() == ""


def test_false_alarm_is_let_through() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.push("the EN") == ("the ", None)
    assert matcher.push("TRANCE") == ("ENTRANC", None)
    assert matcher.push("N") == ("", None)
    assert matcher.flush() == "EN"


def test_without_stops_nothing_is_held_back() -> None:
    matcher = StopMatcher(())
    assert matcher.push("all of it") == ("all of it", None)
    assert matcher.flush() == ""


def test_three_hundred_long_stops_cost_little() -> None:
    matcher = StopMatcher(tuple("a" * 200 + f"{i:03}" for i in range(300)))
    start = time.perf_counter()
    for _ in range(5000):
        matcher.push("aaaa")
    assert time.perf_counter() - start < 2.0
