from xml.etree import ElementTree

import pytest
from switchgear.core.lab.report.inline_svg import inline_svg

SVG = b"""<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="288pt" height="186pt" viewBox="0 0 288 186"
 xmlns="http://www.w3.org/2000/svg" version="1.1">
 <metadata><about/></metadata>
 <defs><style type="text/css">*{stroke-linejoin: round}</style></defs>
 <g id="figure_1"><defs><path id="mark" d="M 0 0
L 0 3
" style="stroke: #cfd6dd"/></defs>
 <use xlink:href="#mark" x="1" y="2"/>
 <clipPath id="hole"><rect x="0" y="0" width="5" height="5"/></clipPath>
 <path clip-path="url(#hole)" d="M 1 1" style="fill: none; stroke: #0550ae"/>
 <text style="font: bold 10px 'DejaVu Sans', sans-serif; text-anchor: start; fill: #1b1f24">a &lt; b</text>
 <text style="font-size: 8px; font-family: 'DejaVu Sans'; fill: #535c66">c</text></g>
</svg>"""


@pytest.fixture(scope="module")
def element() -> ElementTree.Element:
    return ElementTree.fromstring(inline_svg(SVG, "one", "A title", 'Says "x < 1".'))


def test_it_has_a_title_and_a_description_that_it_refers_to(element: ElementTree.Element) -> None:
    texts = {child.get("id"): child.text for child in element if child.tag in ("title", "desc")}
    assert texts[element.get("aria-labelledby")] == "A title"
    assert texts[element.get("aria-describedby")] == 'Says "x < 1".'
    assert element.get("role") == "img"


def test_its_size_is_left_to_the_page(element: ElementTree.Element) -> None:
    assert element.get("width") is None and element.get("viewBox") == "0 0 288 186"
    assert element.get("style") == "--width: 288pt"


def test_it_names_no_address_and_styles_nothing_outside() -> None:
    text = inline_svg(SVG, "one", "", "")
    assert "http" not in text and "xmlns" not in text and "<style" not in text and "metadata" not in text


def test_its_identifiers_are_its_own_and_still_found(element: ElementTree.Element) -> None:
    identifiers = {each.get("id") for each in element.iter()} - {None}
    assert identifiers == {"one-title", "one-description", "one-mark", "one-hole"}
    assert [use.get("href") for use in element.iter("use")] == ["#one-mark"]
    assert [path.get("clip-path") for path in element.iter("path")][1] == "url(#one-hole)"


def test_colours_and_fonts_are_those_of_the_page(element: ElementTree.Element) -> None:
    styles = [each.get("style", "") for each in element.iter()]
    assert not any("#" in style for style in styles)
    assert "stroke: var(--rule)" in styles and "fill: none; stroke: var(--better)" in styles
    assert "font: bold 10px var(--font); text-anchor: start; fill: var(--ink)" in styles
    assert "font-size: 8px; font-family: var(--font); fill: var(--muted)" in styles


def test_text_stays_text(element: ElementTree.Element) -> None:
    assert [text.text for text in element.iter("text")] == ["a < b", "c"]
