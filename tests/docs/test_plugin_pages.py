"""Every plugin has a page that names its options, what it promises and how it is measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from switchgear.core.cli.plugin_page import PluginPage, plugin_page
from switchgear.core.registry import available

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "plugins"
PLUGINS = sorted(
    path.stem for path in (ROOT / "plugins").iterdir() if not path.name.startswith("_") and path.suffix in ("", ".py")
)
SECTIONS = ["Options", "What always holds", "Equivalence", "Measured", "Source"]


def page_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def shown(name: str) -> PluginPage:
    """What `switchgear plugins NAME` says."""
    return plugin_page(available()[name])


def test_every_plugin_has_a_page() -> None:
    assert [name for name in PLUGINS if not (PAGES / f"{name}.md").is_file()] == []
    assert len(PLUGINS) >= 4


@pytest.mark.parametrize("name", PLUGINS)
def test_the_page_has_the_sections_in_order(name: str) -> None:
    page = page_of(name)
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == SECTIONS
    assert "**Buys**" in page and "**Costs**" in page


@pytest.mark.parametrize("name", PLUGINS)
def test_the_page_says_of_each_option_what_the_code_says(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*)` \| (.*) \|$", section(page_of(name), "Options"), flags=re.MULTILINE)
    options = [(option.name, str(option.default), option.description) for option in shown(name).options]
    assert [(option, default.strip('"'), meaning) for option, default, meaning in rows] == options


@pytest.mark.parametrize("name", PLUGINS)
def test_the_page_names_the_equivalence_and_what_is_required(name: str) -> None:
    plugin = shown(name)
    assert section(page_of(name), "Equivalence").strip().startswith(f"`{plugin.equivalence}`")
    for required in plugin.requires:
        assert f"requires `{required}`" in page_of(name)
    for hook in plugin.hooks:
        assert f"`{hook}`" in page_of(name) or hook == "control"


@pytest.mark.parametrize("name", PLUGINS)
def test_the_page_names_commands_that_exist(name: str) -> None:
    commands = re.findall(r"`python (\S+\.py)`", section(page_of(name), "Measured"))
    assert commands and [command for command in commands if not (ROOT / command).is_file()] == []


@pytest.mark.parametrize("name", PLUGINS)
def test_the_page_is_short(name: str) -> None:
    assert len(page_of(name).split()) < 700
