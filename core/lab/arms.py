"""From the arms of a design to configs and plans: the same model, limits and KV in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..config import Config, PluginEntry, build_struct, unknown
from ..errors import ConfigError, SwitchgearError
from ..plan import EffectivePlan
from ..records import TOKEN_EQUAL, Equivalence
from ..testing.subject import find_class
from .designs import Arm, Requires

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Common:
    """What the arms share, and what they switch."""

    config: Config
    """With everything on, and the engine's limits as they are in every arm."""
    options: Mapping[str, Options]
    """Of every plugin that may be on, in the order in which they apply; requirements that the config lacks too."""
    requires: Requires
    kept: tuple[str, ...] = ()
    """Plugins that are on in every arm."""

    @property
    def switches(self) -> tuple[str, ...]:
        """The plugins of the config that are not kept."""
        return tuple(entry.name for entry in self.config.plugins if entry.name not in self.kept)

    def config_of(self, on: Iterable[str], varied: Options | None = None) -> Config:
        """The config of a set of switches."""
        chosen = {*on, *self.kept}
        options = {name: dict(given) for name, given in self.options.items() if name in chosen}
        for key, value in (varied or {}).items():
            _, name, option = key.split(".")
            options[name][option] = value
        entries = tuple(PluginEntry(name, given) for name, given in options.items())
        return msgspec.structs.replace(self.config, plugins=entries)

    def off(self) -> Config:
        """No plugin at all, kept ones neither: the reference of every arm."""
        return msgspec.structs.replace(self.config, plugins=())


def common_of(config: Config, kept: Iterable[str] = (), classes: Iterable[type] = ()) -> Common:
    """classes: plugins that are not installed. Raises ConfigError for a plugin to keep that is not on."""
    classes = tuple(classes)
    given = {entry.name: entry.options for entry in config.plugins}
    for name in kept:
        if name not in given:
            raise ConfigError(f"cannot keep {name!r}, which is not on: on are {', '.join(given) or 'none'}")
    requires: dict[str, tuple[str, ...]] = {}

    def enter(name: str) -> None:
        """A plugin that is not in the config stands before the first that needs it."""
        if name in requires:
            return
        needed = tuple(getattr(find_class(name, classes), "requires", ()))
        for other in needed:
            if other not in given:
                enter(other)
        requires[name] = needed

    for name in given:
        enter(name)
    options = {name: given.get(name, {}) for name in requires}
    return Common(config, options, requires, tuple(kept))


def levels_of(common: Common, vary: Iterable[str], classes: Iterable[type] = ()) -> dict[str, Any]:
    """The value that each varied option has in the config. Raises ConfigError for one that does not exist."""
    levels = {}
    for key in vary:
        _, name, option = key.split(".")
        if name not in common.options:
            raise ConfigError(f"cannot vary {key}: plugin {name!r} is not on, switch it on with --on {name}")
        cls = find_class(name, tuple(classes))
        if option not in cls.Config.__struct_fields__:
            raise ConfigError(f"cannot vary {key}: {unknown('option', option, cls.Config.__struct_fields__)}")
        known = build_struct(cls.Config, common.options[name], f"[plugins.{name}]")
        levels[key] = msgspec.to_builtins(getattr(known, option))
    return levels


# -- planning -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned:
    """What an engine of an arm would be; where there is none, only why."""

    refused: str = ""
    plan_hash: str = ""
    environment: str = ""
    plan: tuple[str, ...] = ()
    equivalence: Equivalence = TOKEN_EQUAL
    dtype: str = ""


def plan_of(config: Config) -> EffectivePlan:
    """The effective plan, without reading a weight. Raises SwitchgearError where the engine refuses."""
    from ..gateway.llm import LLM

    with LLM.from_config(config, load=False) as llm:
        return llm.plan


def planned(config: Config) -> Planned:
    """The plan of an arm, or the reason why there is none."""
    try:
        plan = plan_of(config)
    except SwitchgearError as error:
        return Planned(refused=str(error))
    for name in config.optional.intersection(plan.degraded):
        return Planned(refused=f"plugin {name!r} has no effect here: {plan.degraded[name]}")
    equivalence = weakest(config)
    return Planned("", plan.hash, plan.environment, tuple(str(plan).split("\n")), equivalence, plan.dtype)


def weakest(config: Config) -> Equivalence:
    """The class of a set, as its plugins declare it with these options."""
    from ..defaults import make_registry

    return make_registry(config, ()).equivalence()


def with_fixed_limits(config: Config, plan: EffectivePlan) -> Config:
    """The config with what a plan left to the machine written out, so that every arm has the same."""
    engine = msgspec.structs.replace(
        config.engine,
        kv_bytes=config.engine.kv_bytes or plan.kv_bytes,
        max_num_seqs=plan.max_num_seqs,
        max_step_tokens=plan.max_step_tokens,
        max_model_len=plan.max_model_len,
    )
    return msgspec.structs.replace(config, engine=engine)


def fixed_common(common: Common, arms: Iterable[Arm]) -> Common:
    """With the limits of the first arm that starts. Raises the first refusal if none does."""
    refusal: SwitchgearError | None = None
    for on, varied in [(common.switches, {}), *((arm.on, arm.varied) for arm in arms)]:
        try:
            plan = plan_of(common.config_of(on, varied))
        except SwitchgearError as error:
            refusal = refusal or error
        else:
            config = with_fixed_limits(common.config, plan)
            return Common(config, common.options, common.requires, common.kept)
    assert refusal is not None
    raise refusal
