"""Episodes on real engines: what is timed is what was meant, whatever the scheduler makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.errors import RequestError
from switchgear.core.gateway.llm import LLM
from switchgear.core.lab.cost_model import StepCounts
from switchgear.core.lab.episodes import MIN_ROUNDS, Episode, Point, Room, Rounds, make_episodes
from switchgear.core.lab.timed_steps import TimedEngine

from .short_profiles import shorten

CONTINUOUS = {"continuous_batching": {}, "paged_kv": {}, "chunked_prefill": {"max_num_batched_tokens": 64}}


@contextmanager
def timed(model: Path, plugins: dict[str, dict[str, int]], **options: Any) -> Iterator[TimedEngine]:
    with LLM(str(model), dtype="float32", plugins=plugins, kv_bytes=50_000_000, **options) as llm:
        with closing(TimedEngine(llm)) as engine:
            yield engine
        assert llm.audit() == []
        assert len(llm._engine.requests) == 0


def points_of(engine: TimedEngine, *episodes: Episode) -> list[Point]:
    return Rounds(engine, list(episodes), budget=0.0).run()


def decode_sizes(points: list[Point]) -> list[int]:
    return [point.counts.num_rows for point in points if point.kind == "decode"]


def test_decode_is_timed_at_every_batch_size(tiny_model: Path) -> None:
    with timed(tiny_model, CONTINUOUS) as engine:
        points = points_of(engine, Episode("decode", 20, (4, 2, 1)))
    prefills = [point.counts for point in points if point.kind == "prefill"]
    # chunks of 64: three prompts and a bit, then what is left beside the rows that decode by then
    assert [counts.num_tokens for counts in prefills] == [64, 19]
    assert decode_sizes(points) == [4, 2, 1]
    for point in points:
        if point.kind == "decode":
            assert point.counts.num_pairs == point.counts.num_context >= 21 * point.counts.num_rows
            assert len(point.seconds) == 5 * (MIN_ROUNDS - 1)
            assert all(
                0 < forward < whole for forward, whole in zip(point.executor_seconds, point.seconds, strict=True)
            )


def test_a_prompt_beside_decodes_is_in_their_step(tiny_model: Path) -> None:
    with timed(tiny_model, CONTINUOUS) as engine:
        points = points_of(engine, Episode("mixed", 12, (3,), (8, 40)))
    mixed = {point.counts.num_tokens - 3: point for point in points if point.kind == "mixed"}
    assert set(mixed) == {8, 40}
    assert all(point.counts.num_rows == 4 and point.counts.num_outputs == 4 for point in mixed.values())
    alone = [point for point in points if point.kind == "decode"]
    assert [point.counts.num_rows for point in alone] == [3]
    assert len(alone[0].seconds) == 2 * 2 * (MIN_ROUNDS - 1)


def test_static_batching_mixes_nothing_and_is_timed_all_the_same(tiny_model: Path) -> None:
    with timed(tiny_model, {}, max_num_seqs=4, max_step_tokens=50) as engine:
        points = points_of(engine, Episode("mixed", 12, (3,), (8,)), Episode("decode", 20, (4, 2, 1)))
    assert {point.kind for point in points} == {"decode", "prefill"}
    # two prompts of 20 fit into a step, and the others wait until these are done
    assert decode_sizes([point for point in points if point.episode == 1]) == [2, 2, 1]


def test_the_first_round_is_not_counted_and_the_budget_is_kept(tiny_model: Path) -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            self.now += 1.0
            return self.now

    said: list[int] = []
    with timed(tiny_model, CONTINUOUS) as engine:
        rounds = Rounds(
            engine, [Episode("prefill", 16)], 30.0, clock=Clock(), on_round=lambda number, _: said.append(number)
        )
        (point,) = rounds.run()
    assert said == list(range(1, rounds.num_rounds + 1))
    assert MIN_ROUNDS < rounds.num_rounds < 10
    assert len(point.seconds) == rounds.num_rounds - 1
    assert point.counts == StepCounts.prefill(16)


def test_a_request_that_fails_is_no_figure(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    with timed(tiny_model, CONTINUOUS) as engine:
        monkeypatch.setattr(engine.watched.inner, "submit", fail)
        with pytest.raises(RequestError, match="no luck"):
            points_of(engine, Episode("decode", 20, (2, 1)))


ROOMS = [
    Room(64, 4096, 10**6, 16),
    Room(1, 64, 64, 64),
    Room(4, 512, 2048, 512),
    Room(256, 2048, 4000, 16),
    Room(8, 2, 100, 1),
]


@pytest.mark.parametrize("room", ROOMS)
def test_episodes_fit_the_engine(room: Room) -> None:
    episodes = make_episodes(room)
    assert {episode.kind for episode in episodes} >= {"decode", "prefill"}
    assert any(episode.is_held_out for episode in episodes)
    for episode in episodes:
        rows = max(episode.num_rows) + (episode.kind == "mixed")
        longest = max((episode.num_prompt, *episode.chunks))
        assert 1 <= longest < room.max_model_len or longest == 1
        assert min(episode.num_rows) >= 1 and rows <= max(room.max_num_seqs, 1)
        assert list(episode.num_rows) == sorted(set(episode.num_rows), reverse=True)
        blocks = max(episode.num_rows) * -(-(episode.num_prompt) // room.kv_block_size)
        assert blocks <= max(1, room.kv_tokens // room.kv_block_size)


def test_all_episodes_run_on_a_small_engine(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    with timed(tiny_model, CONTINUOUS, max_model_len=48, max_num_seqs=3) as engine:
        points = points_of(engine, *make_episodes(Room(3, 48, 10**5, 16)))
    assert {point.kind for point in points} == {"decode", "prefill", "mixed"}
    assert {1, 2, 3} <= set(decode_sizes(points))
