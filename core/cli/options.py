"""The options that say what is switched on, shared by every command that builds an engine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..config import Config, ModelConfig, build_config
from ..recipes import RECIPES

DTYPES = get_args(get_type_hints(ModelConfig)["dtype"])


def add_config_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what is on (without --config and --recipe: the recommended recipe)")
    group.add_argument("--config", type=Path, metavar="FILE", help="a TOML config")
    group.add_argument("--recipe", metavar="NAME", help=f"a named set of plugins: {', '.join(RECIPES)}")
    group.add_argument("--on", action="append", default=[], metavar="NAME", help="switch a plugin on (repeatable)")
    group.add_argument("--off", action="append", default=[], metavar="NAME", help="switch a plugin off (repeatable)")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one option, such as engine.max_num_seqs=8 or plugins.NAME.OPTION=VALUE (repeatable)",
    )
    group.add_argument("--model", help="a catalogue name, a Hugging Face id or directory, or a .gguf file")
    group.add_argument("--dtype", choices=DTYPES, help="precision of weights and activations")


def config_from(arguments: Namespace) -> Config:
    """The config that these options ask for. Raises ConfigError."""
    given = {"name": arguments.model, "dtype": arguments.dtype}
    model: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return build_config(
        arguments.config,
        recipe=arguments.recipe,
        on=arguments.on,
        off=arguments.off,
        overrides=arguments.set,
        sections={"model": model} if model else None,
    )
