import pytest
import torch
from switchgear.core.lab import ceilings, roofline
from switchgear.core.lab.ceilings import Ceilings, far_bytes, read_bytes_per_s, square_flops_per_s
from switchgear.core.lab.machine import this_machine
from switchgear.core.lab.points import Point
from switchgear.core.lab.raw import RawEngine
from switchgear.core.lab.roofline import Measured, decode_work, measure_shares, prefill_work, share_of, stages_of
from switchgear.core.lab.work import StepShape, Work, step_work

MIB = 2**20


def test_a_step_takes_the_longer_of_reading_and_computing() -> None:
    limit = Ceilings(bytes_per_s=10, flops_per_s=100)
    assert (limit.seconds(Work(40, 100)), limit.bound(Work(40, 100))) == (4, "memory")
    assert (limit.seconds(Work(40, 900)), limit.bound(Work(40, 900))) == (9, "matrix")


def test_a_share_is_the_limit_of_every_step_over_what_it_took() -> None:
    share = share_of(Point(1, 1, 3), "decode", Ceilings(10, 100), [Work(40, 100), Work(40, 900)], seconds=26.0)
    assert (share.limit_seconds, share.bound, share.share) == (13, "matrix", 0.5)


def test_a_narrow_dtype_may_be_computed_as_float32() -> None:
    measured = Measured(3.0, 5.0, {"bfloat16": 70.0, "float32": 90.0, "float64": 40.0})
    assert measured.ceilings("bfloat16") == Ceilings(5.0, 90.0)
    assert measured.ceilings("float32") == Ceilings(5.0, 90.0)
    assert measured.ceilings("float64") == Ceilings(5.0, 40.0)


def test_a_ceiling_is_the_most_that_was_seen() -> None:
    before, after = Measured(3.0, 5.0, {"float32": 9.0}), Measured(4.0, 1.0, {"float32": 10.0})
    assert before.best(after) == Measured(4.0, 5.0, {"float32": 10.0})


def test_the_prompts_run_before_each_point_and_nothing_twice() -> None:
    points = [Point(1, 8, 4), Point(1, 8, 1), Point(2, 8, 4)]
    assert list(map(str, stages_of(points))) == ["1x8x1", "1x8x4", "2x8x1", "2x8x4"]


def test_the_steps_of_a_point_are_its_prompts_and_each_later_token(engine: RawEngine) -> None:
    point = Point(2, 8, 4)
    assert prefill_work(engine.spec, 4, point) == [step_work(engine.spec, 4, StepShape(2, 8))]
    steps = [step_work(engine.spec, 4, StepShape(2, 1, before)) for before in (8, 9, 10)]
    assert decode_work(engine.spec, 4, point) == steps


def test_a_buffer_is_far_larger_than_the_caches_and_fits_in_memory() -> None:
    assert far_bytes(32 * MIB, 2**40) == 512 * MIB
    assert far_bytes(300 * MIB, 2**40) == 1200 * MIB
    assert far_bytes(300 * MIB, 2**32) == 512 * MIB


def test_the_machine_has_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SECONDS_EACH", 0.02)
    assert 1e8 < read_bytes_per_s(4 * MIB) < 1e13
    assert 1e8 < square_flops_per_s(128, torch.float32) < 1e14


def test_each_stage_of_each_point_has_a_share(engine: RawEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SECONDS_EACH", 0.02)
    monkeypatch.setattr(ceilings, "MATRIX_SIZES", (128,))
    monkeypatch.setattr(roofline, "far_bytes", lambda *_: 4 * MIB)
    measured, shares = measure_shares(engine, this_machine(), [Point(2, 8, 24), Point(1, 64, 1)], num_runs=2)
    assert set(measured.flops_per_s) == {"float32", "bfloat16"}
    assert [(str(share.point), share.stage) for share in shares] == [
        ("2x8x24", "prefill"),
        ("2x8x24", "decode"),
        ("1x64x1", "prefill"),
    ]
    assert all(0 < share.share < 1 for share in shares)
