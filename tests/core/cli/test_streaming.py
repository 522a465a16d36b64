import signal
from collections.abc import Generator

import pytest
from switchgear.core.cli.interrupt import interrupts
from switchgear.core.cli.streaming import follow
from switchgear.core.gateway.results import Chunk, Result

RESULT = Result("r", (1,), (), "hash")


def chunks(closed: list[bool]) -> Generator[Chunk]:
    try:
        yield Chunk(0, "a", (1,))
        yield Chunk(0, "b", (2,))
        yield Chunk(0, "c", (3,), "stop", RESULT)
    finally:
        closed.append(True)


def test_every_piece_is_shown_and_the_result_is_returned() -> None:
    pieces: list[str] = []
    assert follow(chunks([]), pieces.append) is RESULT
    assert pieces == ["a", "b", "c"]


def test_an_interrupt_closes_the_stream_after_the_piece_it_came_in() -> None:
    pieces: list[str] = []
    closed: list[bool] = []

    def show(piece: str) -> None:
        pieces.append(piece)
        if piece == "b":
            signal.raise_signal(signal.SIGINT)
            assert not closed

    assert follow(chunks(closed), show) is None
    assert (pieces, closed) == (["a", "b"], [True])


def test_an_interrupt_in_the_last_piece_is_too_late() -> None:
    assert follow(chunks([]), lambda piece: signal.raise_signal(signal.SIGINT) if piece == "c" else None) is RESULT


def test_the_second_interrupt_is_raised_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts() as is_interrupted:
        assert not is_interrupted()
        signal.raise_signal(signal.SIGINT)
        assert is_interrupted()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
