"""Plugins as an installer leaves them: found by name, imported when switched on, and named with their distribution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from switchgear.core.config import Config, PluginEntry
from switchgear.core.defaults import make_registry
from switchgear.core.errors import ConfigError, PluginError
from switchgear.core.records import Limits
from switchgear.core.registry import CORE, Registry, available

from .made_plugins import LIMITS, observe, plugin, registry_of


def install(site: Path, distribution: str, source: str, entries: Mapping[str, str], version: str = "1.2.3") -> None:
    """A distribution as an installer leaves it: a module and the metadata beside it."""
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[switchgear.plugins]", *lines]) + "\n")


SOURCE = '''
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL

class Watcher:
    """Watches."""

    name = "watcher"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        """Nothing to set."""

    def __init__(self, config):
        pass

    @hookimpl
    def observe(self):
        return self

    def on_events(self, events):
        pass
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_installed_plugin_is_found_by_name(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    registry = Registry([PluginEntry("watcher", {})], [])
    [loaded] = registry.plugins
    assert (loaded.name, loaded.distribution, loaded.version) == ("watcher", "acme-watcher", "1.2.3")
    assert (loaded.summary, loaded.hooks) == ("Watches.", ("observe",))


def test_listing_imports_nothing(site: Path) -> None:
    install(site, "acme-broken", "raise AssertionError", {"broken": "acme_broken:Watcher"})
    assert available()["broken"].value == "acme_broken:Watcher"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import a_library_that_is_not_here", "ModuleNotFoundError: No module named 'a_library_that_is_not_here'"),
        ("raise OSError('no such device')", "OSError: no such device"),
        ("def f(:", "SyntaxError: "),
        ("", "AttributeError: module 'acme_broken' has no attribute 'Watcher'"),
    ],
)
def test_an_import_that_fails_names_the_distribution_and_the_cause(site: Path, source: str, cause: str) -> None:
    install(site, "acme-broken", source, {"broken": "acme_broken:Watcher"}, version="0.9")
    with pytest.raises(PluginError) as refused:
        Registry([PluginEntry("broken", {})], [])
    text = str(refused.value)
    assert text.startswith(f"plugin 'broken' of acme-broken 0.9 cannot be imported: {cause}") and "\n" not in text


def test_two_distributions_with_one_name(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    install(site, "zeta-watcher", SOURCE, {"watcher": "zeta_watcher:Watcher"})
    with pytest.raises(PluginError, match=r"^plugin name 'watcher' is taken twice, by .*-watcher and by .*-watcher: "):
        available()


def test_an_unknown_plugin_lists_what_is_installed(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    with pytest.raises(ConfigError, match=r"^unknown plugin 'wacher' \(did you mean 'watcher'\?\): valid are "):
        Registry([PluginEntry("wacher", {})], [])


def test_a_class_that_was_given_goes_before_an_installed_one(site: Path) -> None:
    install(site, "acme-watcher", SOURCE, {"watcher": "acme_watcher:Watcher"})
    [loaded] = registry_of(plugin("watcher", observe=observe)).plugins
    assert (loaded.distribution, loaded.version) == ("plugins_of_this_test", "unpublished")


def test_every_default_answers_a_hook_it_names() -> None:
    registry = make_registry(Config())
    assert registry.plugins == ()
    assert registry.schedule(limits=LIMITS)[0].plugin == CORE
    assert registry.block_size(Limits(1, 1, 77)) == 77
