"""The page as text: complete, self-contained, and the same for the same results."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import pytest
from switchgear.core.lab.analysis import Analysis
from switchgear.core.lab.report.page import page

from ..made_results import BROKEN
from .made_effects import only

VOID = {"meta", "link", "img", "br", "hr", "input", "path", "use", "rect"}


@dataclass
class Element:
    """One element of a page and the text in it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    inside: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        below = [found for child in self.inside for found in child.all(tag)]
        return ([self] if self.tag == tag else []) + below


class Reader(HTMLParser):
    """Reads a page and refuses one whose elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open = [Element("page", {})]
        self.feed(text)
        self.close()
        assert len(self.open) == 1, f"not closed: {[element.tag for element in self.open]}"

    @property
    def root(self) -> Element:
        return self.open[0]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        element = Element(tag, dict(attrs))
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


@pytest.fixture(scope="module")
def text(analysis: Analysis) -> str:
    return page(only(analysis, "ttft_p50", "ttft_p90"))


@pytest.fixture(scope="module")
def root(text: str) -> Element:
    return Reader(text).root


def section(root: Element, name: str) -> Element:
    (found,) = [each for each in root.all("section") if each.attributes.get("id") == name]
    return found


def test_nothing_comes_from_elsewhere(text: str, root: Element) -> None:
    assert "http" not in text.replace("http-equiv", "") and "//" not in re.sub(r"// [A-Z].*", "", text)
    assert not root.all("link") and not root.all("img") and "@import" not in text
    names = [name for element in every(root) for name in element.attributes]
    assert "src" not in names and not [name for name in names if name.startswith("on")]
    (policy,) = [each.attributes["content"] for each in root.all("meta") if "http-equiv" in each.attributes]
    assert policy is not None and policy.startswith("default-src 'none'")


def every(root: Element) -> list[Element]:
    return [root, *(found for child in root.inside for found in every(child))]


def test_identifiers_are_unique_and_every_reference_finds_its_own(text: str, root: Element) -> None:
    identifiers = Counter(each.attributes["id"] for each in every(root) if "id" in each.attributes)
    assert [name for name, count in identifiers.items() if count > 1] == []
    wanted = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    wanted |= {each for name in ("labelledby", "describedby") for each in re.findall(rf'aria-{name}="([^"]+)"', text)}
    assert wanted and wanted <= set(identifiers)


def test_every_picture_has_a_title_and_says_what_it_shows(root: Element) -> None:
    pictures = root.all("svg")
    assert len(pictures) == 6
    for picture in pictures:
        assert picture.attributes["role"] == "img"
        assert [each.text != "" for tag in ("title", "desc") for each in picture.all(tag)] == [True, True]
        assert picture.all("text")


def test_every_table_has_a_caption_and_headings(root: Element) -> None:
    tables = root.all("table")
    assert len(tables) == 8
    for table in tables:
        assert table.all("caption")[0].text
        head, *rows = table.all("tr")
        assert {cell.attributes["scope"] for cell in head.all("th")} == {"col"}
        assert rows and all(row.all("th")[0].attributes["scope"] == "row" for row in rows)
        assert {len(row.all("th")) + len(row.all("td")) for row in rows} == {len(head.all("th"))}


def test_headings_go_down_one_step_at_a_time(root: Element) -> None:
    assert len(root.all("h1")) == 1 and len(root.all("h2")) == len(root.all("section")) == 9
    assert root.all("html")[0].attributes["lang"] == "en"
    links = {each.attributes["href"] for each in root.all("nav")[0].all("a")}
    assert links == {f"#{each.attributes['id']}" for each in root.all("section")} - {"#summary"}


def test_the_summary_comes_first_with_the_effects_in_words(root: Element) -> None:
    first = root.all("section")[0]
    assert first.attributes["id"] == "summary"
    assert (
        "Switching prefix_cache on changed TTFT p50 by \N{MULTIPLICATION SIGN}0.41 (0.40 to 0.41), better" in first.text
    )
    assert "Why it ended: budget" in first.text


def test_a_broken_arm_is_red_and_says_so_wherever_it_stands(root: Element) -> None:
    (row,) = [each for each in section(root, "equality").all("tr") if each.attributes.get("class") == "broken"]
    assert [cell.text for cell in (*row.all("th"), *row.all("td"))][:2] == [BROKEN, "BROKEN"]
    assert "ahead by 4.21" in row.text
    (level,) = [each for each in section(root, "levels").all("tr") if each.attributes.get("class") == "broken"]
    assert BROKEN in level.text
    (verdict,) = [each for each in root.all("p") if "verdict" in (each.attributes.get("class") or "")]
    assert verdict.attributes["class"] == "verdict broken" and BROKEN in verdict.text
    assert [each.text for each in root.all("summary") if each.attributes.get("class")] == [f"{BROKEN} (broken)"]


def test_the_check_of_the_outputs_is_told_in_numbers(root: Element) -> None:
    rows = section(root, "equality").all("tr")[1:]
    cells = [cell.text for cell in rows[0].all("td")]
    assert len(rows) == 7 and cells[:4] == ["holds", "token_equal", "640", "2"]


def test_what_was_left_out_has_its_reason(root: Element) -> None:
    text = section(root, "refused").text
    assert "prefix_cache + chunked_prefill" in text and "requires 'paged_kv'" in text
    assert "moved by 31 % during the block" in text


def test_every_arm_has_its_plan_and_its_hashes(analysis: Analysis, root: Element) -> None:
    arms = [arm for arm in analysis.arms if not arm.refused]
    plans = [each.text for each in section(root, "plans").all("pre")]
    assert plans == ["\n".join(arm.plan) for arm in arms]
    how = section(root, "reproduce").text
    assert all(arm.plan_hash in how and arm.environment in how for arm in arms)


def test_how_to_reproduce_it_is_complete(root: Element) -> None:
    how = section(root, "reproduce").text
    assert "switchgear ablate --recipe recommended --design full --out results.jsonl" in how
    for part in ("torch 2.13.0", "A processor", "0123456789abcdef", "kv_bytes 1073741824", "num_requests 20"):
        assert part in how


def test_a_command_can_be_pasted(analysis: Analysis) -> None:
    header = {**analysis.header, "command": ["switchgear", "ablate", "--model", "my model", "--set", "a.b='c'"]}
    bare = replace(only(analysis), header=header)
    assert "switchgear ablate --model &#39;my model&#39; --set" in page(bare)


def test_names_from_a_file_are_text_and_nothing_else(analysis: Analysis) -> None:
    evil = "</pre></title><script>alert(1)</script>"
    arms = tuple(
        replace(arm, name=f"{arm.name}{evil}", plan=(evil,), refused=arm.refused and evil) for arm in analysis.arms
    )
    effects = tuple(replace(effect, switch=evil) for effect in analysis.effects if effect.metric == "ttft_p50")
    changed = replace(analysis, arms=arms, effects=effects, interactions=(), header={**analysis.header, "model": evil})
    root = Reader(page(changed)).root
    (script,) = root.all("script")
    assert "alert" not in script.text and evil in root.text


def test_the_same_results_are_the_same_page(analysis: Analysis, text: str) -> None:
    assert page(only(analysis, "ttft_p50", "ttft_p90")) == text


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_a_run_that_has_hardly_begun_has_a_page(analysis: Analysis, num_blocks: int) -> None:
    arms = tuple(replace(arm, metrics={}, ttft=(), tpot=(), equality=None) for arm in analysis.arms)
    begun = replace(only(analysis), arms=arms, num_blocks=num_blocks, voided={}, ended="")
    root = Reader(page(begun)).root
    assert root.all("svg") == []
    assert "was stopped or goes on" in root.text and "Every block counts." in root.text
    assert "No arm was compared with everything off" in root.text
