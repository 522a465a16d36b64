"""One config from file, recipe, Python and command line; what does not exist is an error that says what does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from switchgear.core.config import (
    Config,
    EngineConfig,
    PluginConfig,
    PluginEntry,
    build_config,
    build_struct,
    plain,
)
from switchgear.core.errors import ConfigError
from switchgear.core.recipes import RECIPES


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "config.toml").write_text(text, encoding="utf-8")
        return tmp_path / "config.toml"

    return write


def refusal(build: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        build()
    text = str(refused.value)
    assert text and "\n" not in text
    return text


def names(config: Config) -> list[str]:
    return [entry.name for entry in config.plugins]


EXAMPLE = """
[model]
name = "some-model"
dtype = "bfloat16"

[engine]
max_num_seqs = 8
max_step_tokens = 512

[plugins.zeta]
[plugins.alpha]
block_size = 16
[plugins.mid]
enabled = false
depth = 2
[plugins.last]
enabled = true
"""


# -- what counts ----------------------------------------------------------------------------------------------------


def test_a_file_is_read_in_its_order(written: Callable[[str], Path]) -> None:
    config = build_config(written(EXAMPLE))
    assert (config.model.name, config.model.dtype) == ("some-model", "bfloat16")
    assert (config.engine.max_num_seqs, config.engine.max_step_tokens) == (8, 512)
    assert plain(config.plugins) == {"zeta": {}, "alpha": {"block_size": 16}, "last": {}}
    assert names(config) == ["zeta", "alpha", "last"]


def test_without_anything_it_is_the_recommended_recipe() -> None:
    assert plain(build_config().plugins) == RECIPES["recommended"]({})
    assert plain(build_config(recipe="recommended").plugins) == RECIPES["recommended"]({})


def test_all_off_is_nothing() -> None:
    assert build_config(recipe="all_off").plugins == ()
    assert build_config(sections={"plugins": {}}).plugins == ()


def test_a_file_without_plugins_is_everything_off(written: Callable[[str], Path]) -> None:
    assert build_config(written("[engine]\nmax_num_seqs = 2\n")).plugins == ()


def test_sections_from_python_go_over_the_file(written: Callable[[str], Path]) -> None:
    sections = {"engine": {"max_num_seqs": 3}, "plugins": {"other": {"depth": 1}}}
    config = build_config(written(EXAMPLE), sections=sections)
    assert (config.engine.max_num_seqs, config.engine.max_step_tokens) == (3, 512)
    assert plain(config.plugins) == {"other": {"depth": 1}}


def test_what_is_given_is_left_as_it_was() -> None:
    options = {"a": {"x": 1}}
    build_config(sections={"plugins": options}, on=["b"], off=["a"])
    assert options == {"a": {"x": 1}}


def test_switching_on_and_off(written: Callable[[str], Path]) -> None:
    config = build_config(written(EXAMPLE), on=["mid", "new", "zeta"], off=["alpha"])
    assert plain(config.plugins) == {"zeta": {}, "mid": {"depth": 2}, "last": {}, "new": {}}
    assert names(config) == ["zeta", "mid", "last", "new"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("32", 32),
        ("0.5", 0.5),
        ("true", True),
        ('"32"', "32"),
        ("plain text", "plain text"),
        ("[1, 2]", [1, 2]),
        ("", ""),
    ],
)
def test_an_override_is_read_as_toml_or_as_text(written: Callable[[str], Path], text: str, value: object) -> None:
    config = build_config(written(EXAMPLE), overrides=[f"plugins.alpha.block_size={text}"])
    assert plain(config.plugins)["alpha"] == {"block_size": value}


def test_overrides_come_last(written: Callable[[str], Path]) -> None:
    overrides = ["engine.max_num_seqs=5", " engine . max_num_seqs = 6", "plugins.new.depth=3", "model.name=a=b"]
    sections = {"engine": {"max_num_seqs": 4}}
    config = build_config(written(EXAMPLE), on=["new"], overrides=overrides, sections=sections)
    assert (config.engine.max_num_seqs, config.model.name) == (6, "a=b")
    assert plain(config.plugins)["new"] == {"depth": 3}


def test_configs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        EngineConfig().max_num_seqs = 3


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[modle]\n", "unknown config section 'modle' (did you mean 'model'?): valid are engine, model, plugins"),
        ("[engine]\nmax_seqs = 1\n", "[engine]: unknown option 'max_seqs' (did you mean 'max_num_seqs'?): valid are "),
        ("[engine]\nmax_num_seqs = 0\n", "[engine]: Expected `int` >= 1"),
        ("[engine]\nmax_num_seqs = 1.5\n", "[engine]: Expected `int`, got `float`"),
        ("[engine]\nallow_degrade = 1\n", "[engine]: Expected `bool`, got `int`"),
        ('[model]\ndtype = "int3"\n', "[model]: Invalid enum value 'int3'"),
        ("engine = 5\n", "config section [engine] must be a table, not 5"),
        ("plugins = []\n", "config section [plugins] must be a table, not []"),
        ("[plugins]\na = 5\n", "[plugins.a] must be a table of options, not 5"),
        ("[plugins.a]\nenabled = 1\n", "[plugins.a] enabled must be true or false, not 1"),
        ("[pools.frontier]\n", "[pools] cannot be served by this version"),
        ("[engine]\nmax_num_seqs = 64\nmax_step_tokens = 8\n", "max_step_tokens = 8 is below max_num_seqs = 64"),
        ("[engine\n", "config.toml is not valid TOML: "),
        ("[engine]\nmax_num_seqs = 1\nmax_num_seqs = 2\n", "config.toml is not valid TOML: "),
    ],
)
def test_a_bad_file(written: Callable[[str], Path], text: str, problem: str) -> None:
    path = written(text)
    assert problem in refusal(lambda: build_config(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder, binary = tmp_path / "missing.toml", tmp_path, tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert refusal(lambda: build_config(missing)) == f"cannot read config {missing}: No such file or directory"
    assert refusal(lambda: build_config(folder)) == f"cannot read config {folder}: Is a directory"
    assert refusal(lambda: build_config(binary)).startswith(f"config {binary} is not valid TOML: ")


def test_a_file_and_a_recipe(written: Callable[[str], Path]) -> None:
    path = written(EXAMPLE)
    text = refusal(lambda: build_config(path, recipe="all_off"))
    assert text == "a config file and a recipe were both given: name one of them"


def test_an_unknown_recipe_lists_the_recipes() -> None:
    text = refusal(lambda: build_config(recipe="all_of"))
    assert text == "unknown recipe 'all_of' (did you mean 'all_off'?): valid are all_off, recommended"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("engine.max_num_seqs", "write section.key=value"),
        ("max_num_seqs=3", "write section.key=value"),
        ("engine..x=3", "write section.key=value"),
        ("=3", "write section.key=value"),
        ("engine.max_num_seqs.deep=3", "'max_num_seqs' is a value, not a section"),
        ("plugins.gamma.depth=3", "plugin 'gamma' is not on, switch it on first"),
        ("engin.max_num_seqs=3", "unknown config section 'engin' (did you mean 'engine'?)"),
        ("engine.max_num_seq=3", "unknown option 'max_num_seq' (did you mean 'max_num_seqs'?)"),
        ("plugins.alpha=3", "[plugins.alpha] must be a table of options, not 3"),
    ],
)
def test_a_bad_override(written: Callable[[str], Path], override: str, problem: str) -> None:
    path = written(EXAMPLE)
    assert problem in refusal(lambda: build_config(path, overrides=[override]))


def test_switching_off_what_is_not_on(written: Callable[[str], Path]) -> None:
    path = written("[plugins.alpha]\n[plugins.beta]\n")
    text = refusal(lambda: build_config(path, off=["gamma"]))
    assert text == "cannot switch off 'gamma', which is not on: on are alpha, beta"
    assert refusal(lambda: build_config(recipe="all_off", off=["x"])).endswith("on are none")


@pytest.mark.parametrize("plugins", [["paged_kv"], "paged_kv", {"paged_kv": None}, {"paged_kv": True}])
def test_plugins_from_python_that_are_no_tables(plugins: object) -> None:
    assert "must be a table" in refusal(lambda: build_config(sections={"plugins": plugins}))


class Options(PluginConfig, frozen=True, kw_only=True):
    block_size: int = 16
    """Tokens a block."""
    policy: str = "lru"
    """What goes first."""


def test_a_plugins_options_are_typed() -> None:
    assert build_struct(Options, {"block_size": 8}, "[plugins.x]") == Options(block_size=8)
    text = refusal(lambda: build_struct(Options, {"blocks": 8}, "[plugins.x]"))
    assert text.startswith("[plugins.x]: unknown option 'blocks'") and text.endswith("valid are block_size, policy")
    text = refusal(lambda: build_struct(Options, {"block_size": "8"}, "[plugins.x]"))
    assert text == "[plugins.x]: Expected `int`, got `str` - at `$.block_size`"


def test_a_plugin_without_options_says_so() -> None:
    text = refusal(lambda: build_struct(PluginConfig, {"depth": 1}, "[plugins.x]"))
    assert text == "[plugins.x]: unknown option 'depth': valid are none"


def test_a_plan_can_be_made_of_every_config(written: Callable[[str], Path]) -> None:
    """What is frozen can be written down again and read back the same."""
    config = build_config(written(EXAMPLE))
    again = {"model": msgspec.to_builtins(config.model), "engine": msgspec.to_builtins(config.engine)}
    assert build_config(sections={**again, "plugins": plain(config.plugins)}) == config
    assert config.plugins[1] == PluginEntry("alpha", {"block_size": 16})
