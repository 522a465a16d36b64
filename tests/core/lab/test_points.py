import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.points import STANDARD_POINTS, Point, parse_points


def test_points_are_read_as_they_are_written() -> None:
    assert parse_points("1x16x64, 4x8x2") == (Point(1, 16, 64), Point(4, 8, 2))
    assert ",".join(map(str, parse_points(STANDARD_POINTS))) == STANDARD_POINTS


def test_the_prompts_of_a_point_end_with_one_token() -> None:
    assert Point(4, 16, 64).prompts_only == Point(4, 16, 1)
    assert Point(4, 16, 64).sequence_len == 80


@pytest.mark.parametrize(
    "text", ["", "16x64", "1x16x64x2", "0x16x64", "1x0x1", "1x16x-3", "1x16x6.5", "1x16x64,", "axbxc"]
)
def test_what_is_no_point_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read point '.*': write requests, input and output tokens"):
        parse_points(text)
