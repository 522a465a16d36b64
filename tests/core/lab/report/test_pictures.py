"""What is drawn, read from the SVG: its text is text."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from switchgear.core.errors import SwitchgearError
from switchgear.core.lab.analysis import Analysis, Effect
from switchgear.core.lab.report import drawing
from switchgear.core.lab.report.distributions import distributions
from switchgear.core.lab.report.forest import forest
from switchgear.core.lab.report.palette import BETTER, BROKEN, MUTED, WORSE
from switchgear.core.lab.report.pictures import Picture, all_pictures, write_pictures

from ..made_results import BROKEN as BROKEN_ARM
from .made_effects import EFFECT, effect, only

TEXT = "{http://www.w3.org/2000/svg}text"
TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with drawing.styled():
        yield


def svg(picture: Picture) -> bytes:
    return drawing.save(picture.draw(), "svg")


def texts(data: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(data).iter(TEXT)]


def colour_of(data: bytes, text: str) -> str:
    (style,) = [each.get("style", "") for each in ElementTree.fromstring(data).iter(TEXT) if each.text == text]
    found = re.search(r"fill: (#\w+)", style)
    assert found is not None
    return found.group(1)


def named(analysis: Analysis, name: str) -> Picture:
    (picture,) = [each for each in all_pictures(analysis) if each.name == name]
    return picture


def forest_of(*effects: Effect) -> bytes:
    return drawing.save(forest(effects[0].metric, effects), "svg")


def test_every_metric_with_an_effect_has_its_forest(analysis: Analysis) -> None:
    names = {each.name for each in all_pictures(analysis)}
    assert {f"effects-{effect.metric}" for effect in analysis.effects} < names
    assert {f"interactions-{found.metric}" for found in analysis.interactions} < names
    assert {"overview", "distribution-ttft", "distribution-tpot"} < names


def test_a_forest_says_every_effect_in_numbers(analysis: Analysis) -> None:
    shown = texts(svg(named(analysis, "effects-ttft_p50")))
    assert "time to first token, p50" in shown and "with the switch on, over off: lower is better" in shown
    for name in ("paged_kv", "prefix_cache", "chunked_prefill", "paged_kv.block_size=32", f"{TIMES}1"):
        assert name in shown
    assert f"{TIMES}0.41 (0.40 to 0.41) *" in shown and f"{TIMES}1.00 (0.97 to 1.02)" in shown


@pytest.mark.parametrize(
    ("found", "colour"),
    [
        (effect(0.5, 0.4, 0.6), BETTER),
        (effect(2.0, 1.9, 2.1), WORSE),
        (effect(2.0, 1.9, 2.1, metric="output_tokens_per_s"), BETTER),
        (effect(0.9, 0.8, 1.1), MUTED),
    ],
)
def test_colour_and_star_mark_what_is_significant(found: Effect, colour: str) -> None:
    data = forest_of(found)
    (value,) = [text for text in texts(data) if "to" in text and TIMES in text and "over" not in text]
    assert colour_of(data, value) == colour
    assert value.endswith(" *") == (colour != MUTED)


def test_states_of_the_cache_stand_under_headings(with_caches: Analysis) -> None:
    shown = texts(svg(named(with_caches, "effects-ttft_p50")))
    places = [shown.index(words) for words in ("cold cache", "warm cache", "warm over cold cache")]
    assert places == sorted(places)
    assert next(text for text in shown if text.endswith("cache")) == "cold cache"


def test_an_interval_that_leaves_the_axis_is_drawn_with_an_arrow() -> None:
    # an arrow is a marker of three corners and not the small line at an end
    assert forest_of(effect(1.0, 1e-6, 1e6)).count(b"<use") > forest_of(effect(1.0, 0.9, 1.1)).count(b"<use")


def test_one_block_is_a_point_without_interval() -> None:
    assert f"{TIMES}0.50 (one block: no interval)" in texts(forest_of(effect(0.5, 0.0, float("inf"), num_blocks=1)))


def test_long_names_are_wrapped_and_not_cut() -> None:
    name = " + ".join(f"a_plugin_with_a_long_name_{number}" for number in range(6))
    shown = texts(forest_of(replace(EFFECT, switch=name)))
    assert name.split() == [word for text in shown if "plugin" in text or text == "+" for word in text.split()]


def test_the_matrix_shows_each_pair_once(analysis: Analysis) -> None:
    shown = texts(svg(named(analysis, "interactions-output_tokens_per_s")))
    assert f"{TIMES}0.81*" in shown and f"{TIMES}0.99" in shown
    # this pair could not be measured, since one of its arms was refused
    assert shown.count("\N{EN DASH}") == 1
    assert [text for text in shown if text[0].isdigit() and "  " in text] == [
        "1  paged_kv",
        "2  prefix_cache",
        "3  chunked_prefill",
    ]


def test_distributions_have_a_row_for_each_arm_and_the_broken_one_is_red(analysis: Analysis) -> None:
    data = svg(named(analysis, "distribution-ttft"))
    shown = texts(data)
    assert "all off" in shown and "paged_kv + prefix_cache" in shown and "prefix_cache" not in shown
    assert sum(text.startswith("p50 ") for text in shown) == 7
    assert colour_of(data, BROKEN_ARM) == BROKEN


def test_equal_times_and_times_of_nothing_are_drawn(analysis: Analysis) -> None:
    arms = [replace(arm, ttft=(0.25, 0.25, 0.0, float("nan"))) for arm in analysis.arms[:2]]
    shown = texts(drawing.save(distributions("ttft", arms), "svg"))
    assert shown.count("p50 250 ms, p99 250 ms") == 2


def test_an_analysis_without_blocks_has_no_picture(analysis: Analysis) -> None:
    arms = tuple(replace(arm, ttft=(), tpot=()) for arm in analysis.arms)
    assert all_pictures(replace(analysis, effects=(), interactions=(), arms=arms)) == []


def test_descriptions_say_in_words_what_is_drawn(analysis: Analysis) -> None:
    words = named(analysis, "effects-ttft_p50").description
    assert f"prefix_cache: {TIMES}0.41 (0.40 to 0.41), significant." in words
    assert f"paged_kv.block_size=32: {TIMES}1.00 (0.97 to 1.02)." in words
    assert "paged_kv: p50 456 ms, p99 714 ms." in named(analysis, "distribution-ttft").description


def test_the_same_results_are_the_same_bytes(analysis: Analysis, tmp_path: Path) -> None:
    analysis = only(analysis, "ttft_p50")
    first = write_pictures(analysis, tmp_path / "first", "svg")
    # a reader's own settings count for nothing
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        second = write_pictures(analysis, tmp_path / "second", "svg")
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert not any(re.search(rb"dc:date|<dc:creator", path.read_bytes()) for path in first)


def test_pictures_for_papers_are_png_too(analysis: Analysis) -> None:
    some = [drawing.save(named(analysis, "overview").draw(), "png") for _ in range(2)]
    assert some[0].startswith(b"\x89PNG") and some[0] == some[1]


def test_without_matplotlib_the_extra_is_named(
    analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SwitchgearError, match=r"switchgear\[lab\]"):
        write_pictures(analysis, tmp_path / "none", "png")
    assert not (tmp_path / "none").exists()
