from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from switchgear.core.gateway.ask import Ask
from switchgear.core.gateway.doors import UNKNOWN_WAIT, Doors, ServiceRate
from switchgear.core.gateway.openai.errors import ApiError


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(doors: Doors) -> ApiError:
    with pytest.raises(ApiError) as error, doors.inside():
        pass
    return error.value


def wait_of(error: ApiError) -> float:
    return int(error.headers["retry-after-ms"]) / 1000


def test_one_too_many_is_429_until_somebody_leaves() -> None:
    doors = Doors(2, 100)
    with doors.inside():
        with doors.inside():
            error = refused(doors)
            assert (error.status, error.code, doors.num_open) == (429, "rate_limit_exceeded", 2)
            assert wait_of(error) == UNKNOWN_WAIT
        with doors.inside():
            assert doors.num_open == 2
    assert doors.num_open == 0


def test_whoever_is_turned_away_is_told_the_measured_time() -> None:
    clock = Clock()
    doors = Doors(1, 100, clock=clock)
    for _ in range(100):  # one in two seconds
        with doors.inside():
            clock.now += 2.0
    with doors.inside():
        # the first waits for one to leave, the third for three
        assert [wait_of(refused(doors)) for _ in range(3)] == pytest.approx([2.0, 4.0, 6.0], rel=0.05)


def test_nobody_is_told_to_wait_for_longer_than_clients_do() -> None:
    clock = Clock()
    doors = Doors(1, 100, clock=clock)
    with doors.inside():
        clock.now += 3600.0
    with doors.inside():
        assert wait_of(refused(doors)) <= 120.0


def test_the_rate_is_right_from_the_start_and_follows_a_change() -> None:
    clock = Clock()
    rate = ServiceRate(clock)
    assert rate.per_second() == 0.0
    for _ in range(5):
        clock.now += 0.5
        rate.count()
    assert rate.per_second() == pytest.approx(2.0, rel=0.15)
    for _ in range(1000):
        clock.now += 0.1
        rate.count()
    assert rate.per_second() == pytest.approx(10.0, rel=0.1)


def test_no_more_bodies_are_read_at_once_than_may_be_inside() -> None:
    doors = Doors(1, 100)
    with doors.reading():
        with pytest.raises(ApiError, match="at once") as error, doors.reading():
            pass
        assert error.value.status == 429
        with doors.inside():
            assert (doors.num_open, doors.num_reading) == (1, 1)
    with doors.reading():
        assert doors.num_reading == 1
    assert doors.num_reading == 0


def test_who_fails_inside_leaves_all_the_same() -> None:
    doors = Doors(1, 100)
    with pytest.raises(ZeroDivisionError), doors.inside():
        raise ZeroDivisionError
    assert doors.num_open == 0


def test_a_server_that_cannot_serve_is_503_with_the_reason_and_a_time() -> None:
    error = refused(Doors(1, 100, lambda: "The model is loading."))
    assert (error.status, error.message, error.code) == (503, "The model is loading.", "engine_not_ready")
    assert "retry-after" in error.headers


def test_closed_doors_let_nobody_in_and_tell_when_the_last_has_left() -> None:
    async def run() -> None:
        doors = Doors(9, 100)
        with ExitStack() as visits:
            visits.enter_context(doors.inside())
            doors.close()
            error = refused(doors)
            assert (error.status, error.headers["connection"]) == (503, "close")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(doors.empty(), 0.01)
        await asyncio.wait_for(doors.empty(), 0.01)

    asyncio.run(run())


@pytest.mark.parametrize(
    "asks",
    [
        [Ask(prompt="x" * 11)],
        [Ask(prompt=(1,) * 11)],
        [Ask(prompt="x" * 6), Ask(prompt="x" * 5)],
        [Ask(messages=({"content": "xy"}, {"": "xy"}))],
    ],
)
def test_prompts_that_are_too_long_to_read_are_refused(asks: list[Ask]) -> None:
    with pytest.raises(ApiError, match="`prompt` has 11 characters or token ids, and this server takes 10") as error:
        Doors(1, 10).check_prompts(asks, "prompt")
    assert (error.value.status, error.value.param) == (400, "prompt")
    Doors(1, 11).check_prompts(asks, "prompt")
