"""One frozen, validated config from a TOML file, a recipe and the command line. Nothing else is a toggle."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

import msgspec

from .errors import ConfigError
from .recipes import RECIPES, Plugins, without_requirements

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
class ConfigMeta(msgspec.StructMeta):
    """Makes every config frozen, keyword-only and closed to unknown options, without each having to say so."""

    def __new__(meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        settings = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True, **options}
        return super().__new__(meta, name, bases, namespace, **settings)


class PluginConfig(msgspec.Struct, metaclass=ConfigMeta):
    """Base of every plugin's `Config`: typed fields with defaults, each with a docstring under it.

    Constraints are annotations, such as `block_size: Annotated[int, msgspec.Meta(ge=1)] = 16`.
    """


class ModelConfig(PluginConfig):
    """Which model, and in which precision."""

    name: str = "smollm2-135m"
    """A catalogue name, a Hugging Face directory or id, or a .gguf file."""
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations; `auto` is bfloat16 where the machine multiplies it, else float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it is computed; `auto` is the first GPU that PyTorch can use, else the processor."""


class EngineConfig(PluginConfig):
    """What bounds the engine, the same for every arm of an ablation."""

    max_num_seqs: AtLeastOne = 64
    """Sequences that may run at once."""
    max_step_tokens: AtLeastOne = 2048
    """Tokens in one step; a longer prompt runs alone, since the core splits nothing."""
    max_model_len: AtLeastOne | None = None
    """Tokens of prompt and output together; by default the model's own limit, at most 4096."""
    kv_bytes: AtLeastOne | None = None
    """Bytes for KV; by default a fifth of the memory of the machine, or of its GPU where that computes."""
    max_overtaken: AtLeastOne = 256
    """Later requests that may be admitted before a waiting one before it goes first whatever the policy says."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """Seeds the noise of requests that bring no seed."""
    allow_degrade: bool = False
    """Start although a plugin that is switched on has no effect here; the plan then says so."""


class ServerConfig(PluginConfig):
    """How `switchgear serve` is reached, and what it lets in. Nothing else reads it, so no plan hash covers it."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` is every one that the machine has."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one, which the ready line names."""
    api_keys: str = ""
    """File of hashed API keys, see `switchgear keys`; without one everybody may ask, and loopback may administer."""
    served_model_names: tuple[str, ...] = ()
    """Names that requests may give; by default the model's own."""
    max_body_bytes: AtLeastOne = 4 * 2**20
    """Bytes of one request's body; a longer one is refused with 413."""
    max_prompt_characters: AtLeastOne = 1_000_000
    """Characters or token ids of one call, over all its prompts; more are refused before they are read."""
    max_open_requests: AtLeastOne = 256
    """Requests that may be inside at once; one more is refused with 429 and the time to try again."""
    drain_seconds: Seconds = 30.0
    """How long running requests may take to finish once the server was told to end."""
    keepalive_seconds: Seconds = 15.0
    """A stream that is silent for so long sends a comment, which no client sees; 0 never does."""
    max_restarts: Annotated[int, msgspec.Meta(ge=0)] = 3
    """How often in five minutes an engine that died is started again; after that the server ends."""
    tracing: bool = False
    """Send OpenTelemetry spans to whatever provider the process was set up with."""


class PluginEntry(msgspec.Struct, frozen=True):
    """One plugin that is switched on, with its options as written."""

    name: str
    options: Mapping[str, Any]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole config. Plugins stand in the order in which they apply."""

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()
    plugins: tuple[PluginEntry, ...] = ()
    optional: frozenset[str] = frozenset()
    """Plugins that a recipe brought and nobody named: one that refuses here keeps no engine from starting."""


# -- building a config ----------------------------------------------------------------------------------------------

SECTIONS = ("model", "engine", "server", "plugins")
Struct = TypeVar("Struct", bound=PluginConfig)


def build_config(
    path: Path | None = None,
    *,
    recipe: str | None = None,
    on: Iterable[str] = (),
    off: Iterable[str] = (),
    overrides: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
) -> Config:
    """File or recipe first, then `sections` (as from Python), `on`, `off`, then `overrides` ("a.b.c=value").

    A recipe is asked last of all what it holds, since that may depend on the model's device and precision.
    """
    if path is not None and recipe is not None:
        raise ConfigError("a config file and a recipe were both given: name one of them")
    table = read_toml(path) if path is not None else {}
    check_sections(table)
    check_sections(sections or {})
    for section, values in (sections or {}).items():
        table[section] = dict(values) if section == "plugins" else {**table.get(section, {}), **values}
    of_plugins = [override for override in overrides if override.partition(".")[0].strip() == "plugins"]
    for override in overrides:
        if override not in of_plugins:
            apply_override(table, override)
    is_from_recipe = "plugins" not in table
    if is_from_recipe:
        table["plugins"] = recipe_plugins(recipe or ("recommended" if path is None else "all_off"), table)
    plugins = table["plugins"]
    given = frozenset(plugins) if is_from_recipe else frozenset()
    for name in on:
        options = plugins.setdefault(name, {})
        if isinstance(options, dict):  # what else it may be is refused below
            options.pop("enabled", None)
    for override in of_plugins:
        apply_override(table, override)
    for name in off:
        if name not in plugins:
            raise ConfigError(f"cannot switch off {name!r}, which is not on: {listed('on are', plugins)}")
        del plugins[name]
    named = {*on, *(override.split(".")[1].strip() for override in of_plugins)}
    optional = given.intersection(plugins) - named
    for name in without_requirements(plugins, optional) if off else ():
        del plugins[name]
    return msgspec.structs.replace(from_table(table), optional=optional.intersection(plugins))


def recipe_plugins(name: str, table: Mapping[str, Any]) -> Plugins:
    """What a recipe holds for the rest of a config."""
    if name not in RECIPES:
        raise ConfigError(unknown("recipe", name, RECIPES))
    model = table.get("model", {})
    return RECIPES[name](model if isinstance(model, dict) else {})


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not valid TOML: {error}") from error


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set one dotted key; the value is read as TOML, and as plain text where it is none."""
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or len(path) < 2 or not all(path):
        raise ConfigError(f"cannot read override {override!r}: write section.key=value")
    value = read_value(text)
    if path[0] == "plugins" and path[1] not in table["plugins"]:
        raise ConfigError(f"cannot apply override {override!r}: plugin {path[1]!r} is not on, switch it on first")
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"cannot apply override {override!r}: {part!r} is a value, not a section")
    table[path[-1]] = value


def read_value(text: str) -> Any:
    """A value as written on a command line: TOML, and plain text where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def from_table(table: Mapping[str, Any]) -> Config:
    """Validate a parsed config; every unknown key is an error that lists the valid ones."""
    check_sections(table)
    config = Config(
        model=build_struct(ModelConfig, table.get("model", {}), "[model]"),
        engine=build_struct(EngineConfig, table.get("engine", {}), "[engine]"),
        server=build_struct(ServerConfig, table.get("server", {}), "[server]"),
        plugins=tuple(plugin_entries(table.get("plugins", {}))),
    )
    if config.engine.max_step_tokens < config.engine.max_num_seqs:
        raise ConfigError(
            f"[engine] max_step_tokens = {config.engine.max_step_tokens} is below max_num_seqs = "
            f"{config.engine.max_num_seqs}: every running sequence needs one token a step, so raise it"
        )
    return config


def check_sections(table: Mapping[str, Any]) -> None:
    if "pools" in table:
        raise ConfigError("[pools] cannot be served by this version: remove the section, one engine is one pool")
    for section in table:
        if section not in SECTIONS:
            raise ConfigError(unknown("config section", section, SECTIONS))
    for section, values in table.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"config section [{section}] must be a table, not {values!r}")


def plugin_entries(plugins: Mapping[str, Any]) -> Iterable[PluginEntry]:
    for name, options in plugins.items():
        if not isinstance(options, Mapping):
            raise ConfigError(f"[plugins.{name}] must be a table of options, not {options!r}")
        options = dict(options)
        enabled = options.pop("enabled", True)
        if not isinstance(enabled, bool):
            raise ConfigError(f"[plugins.{name}] enabled must be true or false, not {enabled!r}")
        if enabled:
            yield PluginEntry(name, options)


def build_struct(struct: type[Struct], options: Mapping[str, Any], where: str) -> Struct:
    """Options as written to a typed struct; unknown names and wrong types are errors that say where."""
    for name in options:
        if name not in struct.__struct_fields__:
            raise ConfigError(f"{where}: {unknown('option', name, struct.__struct_fields__)}")
    try:
        return msgspec.convert(dict(options), struct)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """The sentence for a name that does not exist: the near miss, and what does exist."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {what} {name!r}{hint}: {listed('valid are', names)}"


def listed(lead: str, names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f"{lead} {text}" if text else f"{lead} none"


def plain(values: Sequence[PluginEntry]) -> dict[str, dict[str, Any]]:
    """Plugin entries as the tables they came from, for plans and manifests."""
    return {entry.name: dict(entry.options) for entry in values}
