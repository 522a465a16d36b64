from argparse import ArgumentParser
from pathlib import Path

import pytest
from switchgear.core.cli.options import add_config_options, config_from
from switchgear.core.config import Config
from switchgear.core.errors import ConfigError


def config_of(*arguments: str | Path) -> Config:
    parser = ArgumentParser()
    add_config_options(parser)
    return config_from(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('[model]\nname = "a"\ndtype = "float32"\n[engine]\nseed = 3\n[plugins.x]\nsize = 1\n[plugins.y]\n')
    return path


def test_without_options_it_is_the_recommended_recipe() -> None:
    assert config_of() == config_of("--recipe", "recommended")


def test_options_stand_over_the_file(file: Path) -> None:
    config = config_of("--config", file, "--model", "b", "--on", "z", "--off", "y", "--set", "plugins.x.size=2")
    assert (config.model.name, config.model.dtype, config.engine.seed) == ("b", "float32", 3)
    assert [(plugin.name, plugin.options) for plugin in config.plugins] == [("x", {"size": 2}), ("z", {})]


def test_dtype_alone_leaves_the_model(file: Path) -> None:
    config = config_of("--config", file, "--dtype", "bfloat16")
    assert (config.model.name, config.model.dtype) == ("a", "bfloat16")


def test_an_unknown_dtype_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config_of("--dtype", "int3")
    assert "'float64', 'float32', 'bfloat16', 'float16'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--recipe", "all_of"],
            r"unknown recipe 'all_of' \(did you mean 'all_off'\?\): valid are all_off, recommended",
        ),
        (["--set", "engine.sed=1"], r"\[engine\]: unknown option 'sed' \(did you mean 'seed'\?\)"),
        (["--set", "seed"], "cannot read override 'seed': write section.key=value"),
        (["--off", "nothing"], "cannot switch off 'nothing', which is not on"),
        (["--config", "/no/such/file"], "cannot read config /no/such/file: No such file or directory"),
    ],
)
def test_what_does_not_exist_is_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config_of(*arguments)


@pytest.mark.parametrize("content", ["model = 3", "plugins = 3", "[plugins]\nx = 3"])
def test_a_value_where_a_table_belongs_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.toml").write_text(content)
    with pytest.raises(ConfigError, match="must be a table"):
        config_of("--config", tmp_path / "config.toml", "--model", "b", "--on", "x")
