"""Contrast by WCAG 2.2: at least 4.5 to 1 for text, 3 to 1 for marks."""

from collections.abc import Mapping

import pytest
from switchgear.core.lab.report.distributions import HILL_OPACITY
from switchgear.core.lab.report.matrix import FULL
from switchgear.core.lab.report.palette import DARK, LIGHT, variables

THEMES = {"light": LIGHT, "dark": DARK}
TEXT = ("ink", "muted", "better", "worse", "broken")


def channels(colour: str) -> list[float]:
    return [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]


def luminance(values: list[float]) -> float:
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def over(colour: str, ground: str, opacity: float) -> list[float]:
    pairs = zip(channels(colour), channels(ground), strict=True)
    return [opacity * above + (1 - opacity) * below for above, below in pairs]


def test_the_measure_is_that_of_the_standard() -> None:
    assert contrast(channels("#000000"), channels("#ffffff")) == pytest.approx(21)
    assert contrast(channels("#777777"), channels("#ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["paper", "track"])
@pytest.mark.parametrize("name", TEXT)
def test_text_can_be_read(theme: str, ground: str, name: str) -> None:
    colours = THEMES[theme]
    assert contrast(channels(colours[name]), channels(colours[ground])) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["better", "worse"])
def test_text_on_a_coloured_cell_can_be_read(theme: str, name: str) -> None:
    colours = THEMES[theme]
    assert contrast(channels(colours["ink"]), over(colours[name], colours["paper"], FULL)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["better", "broken"])
def test_a_line_on_a_histogram_can_be_seen(theme: str, name: str) -> None:
    colours: Mapping[str, str] = THEMES[theme]
    hill = over(colours[name], colours["track"], HILL_OPACITY)
    assert contrast(channels(colours[name]), hill) >= 2
    assert contrast(hill, channels(colours["track"])) >= 1.5


def test_both_themes_name_the_same_colours_and_no_colour_twice() -> None:
    assert list(LIGHT) == list(DARK)
    # each colour of a picture is replaced by the variable that it stands for
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert variables({"ink": "#000000"}) == "--ink: #000000;"
