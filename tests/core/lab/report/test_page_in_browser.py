"""The page as a browser lays it out: on a phone, on a desk, on paper, in the dark."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.lab.analysis import Analysis
from switchgear.core.lab.report.page import page
from switchgear.core.lab.report.palette import DARK, LIGHT

from ..made_results import BROKEN
from .browser import View, look, needs_browser, print_page
from .made_effects import only

pytestmark = [pytest.mark.slow, needs_browser]

MEASURE = """
const root = document.documentElement;
for (const details of document.querySelectorAll("details")) details.open = true;
const wide = [...document.querySelectorAll("body *")].filter(element =>
  !element.closest(".scroll, pre, figure") && element.getBoundingClientRect().right > root.clientWidth + 1);
const boxes = [...document.querySelectorAll(".scroll, pre")];
const texts = [...document.querySelectorAll("svg text")];
return {
  page: root.scrollWidth,
  wide: wide.map(element => element.outerHTML.slice(0, 80)),
  scrolling: boxes.filter(box => box.scrollWidth > box.clientWidth).length,
  leaking: boxes.filter(box => window.getComputedStyle(box).overflowX !== "auto").length,
  pictures: [...document.querySelectorAll("svg")].map(svg => Math.round(svg.getBoundingClientRect().width)),
  cut: [...document.querySelectorAll("figure")].filter(box => box.scrollWidth > box.clientWidth + 1).length,
  smallest: Math.min(...texts.map(text => text.getBoundingClientRect().height)),
  resources: window.performance.getEntriesByType("resource").map(entry => entry.name),
};
"""

OVERLAPS = """
const outside = [], across = [];
for (const svg of document.querySelectorAll("svg")) {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  for (const [words, here] of texts)
    if (here.width && (here.left < box.left - 1 || here.right > box.right + 1)) outside.push(words);
  texts.forEach(([one, a], place) => texts.slice(place + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 4) across.push([one, other]);
  }));
}
return { outside, across };
"""


COLOURS = """
const style = element => window.getComputedStyle(element);
const row = document.querySelector("#equality tr.broken");
const text = [...document.querySelectorAll("svg text")].find(each => each.textContent === "prefix_cache");
return {
  broken: row.textContent,
  red: [style(row).color, style(document.querySelector(".verdict")).color],
  text: [style(document.body).color, style(text).fill],
  paper: style(document.documentElement).backgroundColor,
};
"""

PRINT = """
const count = () => document.querySelectorAll("details[open]").length;
const counts = [count()];
window.dispatchEvent(new window.Event("beforeprint"));
counts.push(count());
window.dispatchEvent(new window.Event("afterprint"));
return [...counts, count(), document.querySelectorAll("details").length];
"""

WIDTHS = (360, 768, 1280)


@pytest.fixture(scope="module")
def text(analysis: Analysis) -> str:
    return page(only(analysis, "ttft_p50", "ttft_p90"))


def with_long_names(analysis: Analysis) -> Analysis:
    name = "_".join(["a_plugin_with_a_long_name"] * 6)
    arms = tuple(replace(arm, name=f"{arm.name} + {name}") for arm in analysis.arms)
    effects = tuple(replace(effect, switch=name) for effect in only(analysis, "ttft_p50").effects)
    return replace(analysis, arms=arms, effects=effects, interactions=(), ended=name)


@pytest.fixture(scope="module")
def seen(
    analysis: Analysis, with_caches: Analysis, text: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """All that is asked of the page, by name: starting a browser takes longer than everything else."""
    # the page asks the system, which a frame cannot change: the rule is taken as if it held
    dark = text.replace("@media screen and (prefers-color-scheme: dark)", "@media screen")
    assert dark != text
    caches = page(only(with_caches, "ttft_p50"))
    views = {f"width {width}": View(text, width, MEASURE) for width in WIDTHS}
    views |= {f"texts {width}": View(text, width, OVERLAPS) for width in WIDTHS}
    views |= {f"texts with caches {width}": View(caches, width, OVERLAPS) for width in WIDTHS}
    views |= {
        "long names": View(page(with_long_names(analysis)), 360, MEASURE),
        "day": View(text, 1280, COLOURS),
        "night": View(dark, 1280, COLOURS),
        "print": View(text, 1280, PRINT),
    }
    return dict(zip(views, look(tmp_path_factory.mktemp("browser"), list(views.values())), strict=True))


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(seen: dict[str, Any], width: int) -> None:
    found = seen[f"width {width}"]
    assert found["page"] <= width and found["wide"] == []
    assert found["leaking"] == 0 and found["cut"] == 0
    assert max(found["pictures"]) <= width
    assert found["smallest"] >= 9
    assert found["resources"] == []


def test_tables_scroll_in_their_boxes_on_a_phone(seen: dict[str, Any]) -> None:
    assert seen["width 360"]["scrolling"] > 3


def test_a_long_name_does_not_widen_the_page(seen: dict[str, Any]) -> None:
    assert (seen["long names"]["page"], seen["long names"]["wide"]) == (360, [])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("of", ["texts", "texts with caches"])
def test_no_text_of_a_picture_lies_on_another_or_outside(seen: dict[str, Any], of: str, width: int) -> None:
    assert seen[f"{of} {width}"] == {"outside": [], "across": []}


def test_a_broken_arm_is_red_in_any_light(seen: dict[str, Any]) -> None:
    assert BROKEN in seen["day"]["broken"] and "BROKEN" in seen["day"]["broken"]
    assert set(seen["day"]["red"]) == {rgb(LIGHT["broken"])}
    assert set(seen["night"]["red"]) == {rgb(DARK["broken"])}


def test_pictures_follow_the_light(seen: dict[str, Any]) -> None:
    for time, colours in (("day", LIGHT), ("night", DARK)):
        assert set(seen[time]["text"]) == {rgb(colours["ink"])}
        assert seen[time]["paper"] == rgb(colours["paper"])


def rgb(colour: str) -> str:
    """As a browser says it."""
    return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"


def test_the_script_opens_everything_for_paper_and_closes_it_again(seen: dict[str, Any]) -> None:
    before, printed, after, everything = seen["print"]
    assert (before, after) == (0, 0) and printed == everything > 7


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext, which reads PDF, is not here")
def test_on_paper_every_plan_and_table_is_there(analysis: Analysis, text: str, tmp_path: Path) -> None:
    pdf = print_page(tmp_path, text)
    read = subprocess.run(["pdftotext", "-layout", pdf, "-"], capture_output=True, text=True, check=True).stdout
    for arm in analysis.arms:
        assert arm.plan_hash in read
    # folded on the screen
    assert "All effects" in read and "time to first token, p90" in read
    # pages, each with something on it
    *pages, _ = read.split("\f")
    assert 3 <= len(pages) <= 9 and all(len(each.split()) > 10 for each in pages)
