"""Ours is measured as the others are: the program that measures them is read, where it lies beside the checkout."""

import ast
import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.errors import ConfigError, RequestError
from switchgear.core.lab.points import STANDARD_POINTS, Point
from switchgear.core.lab.raw import WARM_UP, RawEngine, RawSpeed

PROGRAM = Path(__file__).resolve().parents[4] / "shared" / "peers" / "raw.py"
KEYS = (
    "peer",
    "num_requests",
    "input_len",
    "output_len",
    "seconds_min",
    "seconds_median",
    "output_tokens_per_s",
    "total_tokens_per_s",
)


@pytest.fixture
def peers() -> Any:
    """The program that measures the others."""
    if not PROGRAM.is_file():
        pytest.skip("the folder of the other engines is not beside this checkout")
    spec = importlib.util.spec_from_file_location("peers_raw", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_line_has_the_figures_of_the_best_run() -> None:
    line = RawSpeed(Point(4, 16, 64), (2.0, 0.5, 1.0, 4.0)).line()
    assert tuple(line) == KEYS
    assert list(line.values()) == ["switchgear", 4, 16, 64, 0.5, 2.0, 512.0, 640.0]


def test_a_line_has_the_keys_of_the_others(peers: Any) -> None:
    tables = [node for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Dict)]
    keys = [tuple(ast.literal_eval(key) for key in table.keys if key is not None) for table in tables]
    assert KEYS in keys
    assert ("peer", "startup_s") in keys


def test_the_points_are_those_of_the_others(peers: Any) -> None:
    assert peers.POINTS == STANDARD_POINTS


def test_the_prompts_are_those_of_the_others(peers: Any, engine: RawEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "vocab_size", 49_152)
    monkeypatch.setattr(engine, "random", random.Random(0))
    random.seed(0)
    for point in (WARM_UP, Point(3, 7, 1)):
        assert engine.random_prompts(point) == peers.ids(point.num_requests, point.input_len)


def test_prompts_stay_within_a_small_vocabulary(engine: RawEngine) -> None:
    ids = {token for prompt in engine.random_prompts(Point(16, 128, 1)) for token in prompt}
    assert min(ids) >= 0 and max(ids) < engine.vocab_size
    assert len(ids) > engine.vocab_size // 2


def test_every_run_is_timed(engine: RawEngine) -> None:
    speed = engine.measure(Point(3, 8, 2), 3)
    assert len(speed.seconds) == 3
    assert min(speed.seconds) > 0


def test_a_point_that_does_not_fit_is_refused_before_anything_runs(engine: RawEngine) -> None:
    engine.check([Point(1, 500, 12)])
    with pytest.raises(ConfigError, match=r"point 1x500x13 has sequences of 513 tokens .* max_model_len is 512"):
        engine.check([Point(1, 8, 8), Point(1, 500, 13)])


def test_a_request_that_fails_is_no_figure(engine: RawEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(engine.llm._engine.executor, "submit", fail)
    with pytest.raises(RequestError, match="no luck"):
        engine.run(Point(1, 8, 2))
