"""What an ablation is to measure: the arms with their plans, the workload, and how well to know the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import Config
from ..errors import ConfigError, PluginError
from . import drift
from .arms import Common, Planned, common_of, fixed_common, levels_of, planned
from .designs import Design, make_design
from .results_file import FORMAT
from .workload import Workload

CHECK_TOKENS = 8192
CACHES = ("cold", "warm")


@dataclass(frozen=True, slots=True)
class Study:
    """What is to be measured, and how well."""

    common: Common
    design: Design
    workload: Workload
    caches: tuple[str, ...] = ("cold",)
    """"cold", "warm" or both."""
    budget: float = math.inf
    """Seconds, starts and checks included; of a run that goes on, all of it together."""
    precision: float = 0.05
    """Half the width of an interval, as a share of the ratio, that is narrow enough."""
    drift_limit: float = drift.LIMIT
    check_tokens: int = CHECK_TOKENS
    """Tokens of each arm that everything-off reads in one check."""
    seed: int = 0

    def header(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """The first row. about: recipe, machine, versions, command, started."""
        engine = self.common.config.engine
        return {
            "format": FORMAT,
            "model": self.common.config.model.name,
            "dtype": self.common.config.model.dtype,
            "design": self.design.name,
            "about_design": self.design.about,
            "switches": list(self.design.switches),
            "kept": list(self.common.kept),
            "arms": [arm.name for arm in self.design.arms],
            "anchor": self.design.anchor,
            "caches": list(self.caches),
            "plugins": {name: dict(options) for name, options in self.common.options.items()},
            "workload": {
                "name": self.workload.name,
                "fingerprint": self.workload.fingerprint,
                "seed": self.workload.seed,
                "num_requests": len(self.workload.asks),
                "about": dict(self.workload.about),
            },
            "engine": {name: getattr(engine, name) for name in engine.__struct_fields__},
            "drift_limit": self.drift_limit,
            "check_tokens": self.check_tokens,
            "seed": self.seed,
            "precision": self.precision,
            "budget_s": self.budget if math.isfinite(self.budget) else None,
            **about,
        }


def prepare(
    config: Config,
    workload: Workload,
    design: str,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    kept: Iterable[str] = (),
    resolution: int = 4,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> tuple[Study, dict[str, Planned]]:
    """The study of a config, and the plan of every arm.

    The engine's limits and the bytes of KV are those of the first arm that starts, with everything on if that does.
    options: further fields of `Study`. Raises ConfigError, ModelError or PluginError.
    """
    common = common_of(config, kept)
    levels = levels_of(common, vary or ())
    made = make_design(design, common.switches, common.requires, vary=vary, levels=levels, resolution=resolution)
    common = fixed_common(common, made.arms)
    plans = {}
    for arm in made.arms:
        plans[arm.name] = planned(common.config_of(arm.on, arm.varied))
        if plans[arm.name].refused:
            say(f"{arm.name} is refused: {plans[arm.name].refused}")
    study = Study(common, with_anchor(made, plans), workload, **options)
    check_study(study)
    return study, plans


def with_anchor(design: Design, plans: Mapping[str, Planned]) -> Design:
    """With another arm for an anchor, where the design's own does not start."""
    starts = [name for name, plan in plans.items() if not plan.refused]
    if not starts:
        raise PluginError(f"no arm can be measured: {next(iter(plans.values())).refused}")
    return design if design.anchor in starts else replace(design, anchor=starts[0])


def check_study(study: Study) -> None:
    """Raise ConfigError for what no study can be."""
    if not study.budget > 0:
        raise ConfigError(f"a budget of {study.budget:g} s measures nothing: give more than 0")
    if not 0 < study.precision < 1:
        raise ConfigError(f"a precision of {study.precision:g} is none: give a share between 0 and 1, such as 0.05")
    if not 0 < study.drift_limit <= 1:
        raise ConfigError(f"a drift limit of {study.drift_limit:g} is none: give a share between 0 and 1, such as 0.1")
    if study.check_tokens < 1:
        raise ConfigError(f"check_tokens is {study.check_tokens}: everything-off has to read at least one token")


def check_caches(text: str) -> tuple[str, ...]:
    """States of the caches, as written. Raises ConfigError."""
    caches = tuple(part.strip() for part in text.split(","))
    if any(cache not in CACHES for cache in caches) or len(set(caches)) < len(caches):
        raise ConfigError(f"cannot read caches {text!r}: give cold, warm or cold,warm")
    return caches
