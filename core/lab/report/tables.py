"""The tables of the page, as text: what stands in which cell, and which rows are a warning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis import Analysis, ArmSummary, Equality
from .distributions import arm_name
from .forest import CACHE_NAMES
from .pictures import effects_on
from .wording import HEADLINE, in_order, interval_text, label_of, names_of, short_of, value_text, verdict_of


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the row. Rows in `bad` are red, and say in words what is wrong."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bad: frozenset[int] = frozenset()


def effects_table(analysis: Analysis) -> Table:
    """Every effect on every metric."""
    rows = []
    for metric in in_order(effect.metric for effect in analysis.effects):
        some = effects_on(analysis, metric)
        for name, effect in zip(names_of(some), some, strict=True):
            verdict = verdict_of(metric, effect.ratio) if effect.is_significant else "not significant"
            cache = CACHE_NAMES.get(effect.cache, effect.cache)
            compared = f"{effect.arm} / {effect.against}"
            blocks = str(effect.num_blocks)
            rows.append((name, label_of(metric), interval_text(effect), verdict, compared, cache, blocks))
    header = ("switch", "metric", "factor, 95 % interval", "verdict", "compared", "cache", "blocks")
    return Table("All effects", header, tuple(rows))


def interactions_table(analysis: Analysis) -> Table:
    rows = []
    for metric in in_order(found.metric for found in analysis.interactions):
        for found in analysis.interactions:
            if found.metric == metric:
                verdict = verdict_of(metric, found.ratio) if found.is_significant else "not significant"
                cache = CACHE_NAMES.get(found.cache, found.cache)
                names = f"{found.first} and {found.second}"
                rows.append((names, label_of(metric), interval_text(found), verdict, cache, str(found.num_blocks)))
    header = ("switches", "metric", "factor, 95 % interval", "verdict", "cache", "blocks")
    return Table("All interactions", header, tuple(rows))


def equality_table(analysis: Analysis) -> Table:
    """One row for each arm that ran, since its outputs are checked whatever the state of its caches."""
    arms = list({arm.name: arm for arm in analysis.arms if not arm.refused}.values())
    rows = tuple(equality_row(arm) for arm in arms)
    header = ("arm", "verdict", "class", "tokens compared", "undecided", "what is wrong, or measured")
    bad = frozenset(place for place, arm in enumerate(arms) if arm.is_broken)
    return Table("Outputs against everything off", header, rows, bad)


def equality_row(arm: ArmSummary) -> tuple[str, ...]:
    found = arm.equality
    if found is None:
        return arm.name, "not checked", arm.equivalence, "0", "0", ""
    verdict = {True: "holds", False: "BROKEN", None: "not decided"}[found.holds]
    tokens = f"{found.num_tokens:,}", f"{found.num_undecided:,}"
    return arm.name, verdict, found.equivalence, *tokens, found.problem or measure_text(found)


def measure_text(found: Equality) -> str:
    """Of a lossy class what was measured, of the others what counts as undecided."""
    if found.measure:
        value = "not taken" if found.value is None else f"{found.value:.4g}"
        bound = "" if found.bound is None else f", bound {found.bound:.4g}"
        return f"{found.measure}: {value}{bound}"
    return f"undecided: candidates within {found.margin:.2g}" if found.num_undecided else ""


def levels_table(analysis: Analysis) -> Table:
    """What was measured in each arm, before anything is compared."""
    arms = [arm for arm in analysis.arms if arm.metrics]
    metrics = in_order(name for arm in arms for name in arm.metrics)
    shown = [metric for metric in metrics if metric in HEADLINE] or metrics
    rows = [(arm_name(arm, arms), *(level_text(metric, arm.metrics) for metric in shown), note_of(arm)) for arm in arms]
    header = ("arm", *map(short_of, shown), "note")
    bad = frozenset(place for place, arm in enumerate(arms) if arm.is_broken)
    return Table("Median over the blocks; below it the smallest and the largest", header, tuple(rows), bad)


def level_text(metric: str, metrics: Mapping[str, tuple[float, float, float]]) -> str:
    if metric not in metrics:
        return "\N{EN DASH}"
    middle, low, high = (value_text(metric, value) for value in metrics[metric])
    return f"{middle}\n{low} to {high}".replace(" ", "\N{NO-BREAK SPACE}")


def note_of(arm: ArmSummary) -> str:
    notes = [f"without {', '.join(arm.dropped)}, which require what is off"] if arm.dropped else []
    return "; ".join([*notes, *(["BROKEN: its speed says nothing"] if arm.is_broken else [])])


def refused_table(analysis: Analysis) -> Table:
    refused = {arm.name: arm.refused for arm in analysis.arms if arm.refused}
    return Table("Combinations that the engine refuses", ("combination", "reason"), tuple(refused.items()))


def voided_table(analysis: Analysis) -> Table:
    rows = tuple((str(block), reason) for block, reason in analysis.voided.items())
    return Table("Blocks that do not count", ("block", "reason"), rows)


def hashes_table(analysis: Analysis) -> Table:
    arms = {arm.name: arm for arm in analysis.arms if not arm.refused}
    rows = tuple((arm.name, arm.plan_hash, arm.environment) for arm in arms.values())
    return Table("What each arm ran", ("arm", "plan hash", "environment hash"), rows)


def setting_table(header: Mapping[str, Any]) -> Table:
    """Everything that the file says of how it came about, but for the command."""
    about = {
        "model": header["model"],
        "dtype": header.get("dtype"),
        "recipe": header.get("recipe"),
        "switches": header["switches"],
        "on in every arm": header.get("kept"),
        "options varied": header.get("vary"),
        "plugins' options": header.get("plugins"),
        "caches": header["caches"],
        "arm that guards against drift": header["anchor"],
        "workload": header["workload"]["name"],
        "workload's fingerprint": header["workload"]["fingerprint"],
        "workload's options": header["workload"].get("about"),
        "engine": header.get("engine"),
        "seed of the order": header.get("seed"),
        "budget, seconds": header.get("budget_s"),
        "versions": header["versions"],
        "machine": header["machine"],
        "started": header.get("started"),
    }
    rows = tuple((name, plain(value)) for name, value in about.items() if value not in (None, "", [], {}))
    return Table("Setting", ("what", "value"), rows)


def plain(value: object) -> str:
    """A value of JSON for people."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items() if item not in (None, "", [], {}))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(plain, value)) if value else ""
    return value if isinstance(value, str) else json.dumps(value)
