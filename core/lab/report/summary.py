"""What the results say, in sentences, for the reader who sees nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..analysis import Analysis, Effect, Interaction
from ..contrasts import CACHE
from .wording import (
    HEADLINE,
    SHORT,
    counted,
    in_order,
    interval_text,
    is_option,
    listed,
    name_of,
    short_of,
    verdict_of,
)

DESIGNS = {
    "one-in": "Each switch was turned on alone, with the plugins that it requires, and compared with those plugins "
    "alone; everything else was off.",
    "leave-one-out": "Each switch was turned off alone, with everything else on. A plugin that requires it had to go "
    "with it; then there is an arm too in which only those are off, so that the switch has an effect of its own.",
    "pairwise": "Each switch was turned on alone and with each other one.",
    "full": "Every combination of the switches was measured. The effect of a switch is the mean over all pairs of arms "
    "that differ in it alone.",
    "options": "Everything was on, with one value after another of an option.",
    "fractional": "A balanced part of all combinations of the switches was measured. The effects are those of a linear "
    "model of the logarithm, by least squares.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the summary."""

    subject: str
    """What was switched."""
    before: str
    """Words in front of the subject."""
    after: str


def headline(effects: Iterable[Effect]) -> list[Effect]:
    """Those on the metrics that a reader asks for first; of a file without any of them, all."""
    some = list(effects)
    return [effect for effect in some if effect.metric in HEADLINE] or some


def findings(analysis: Analysis) -> list[Finding]:
    """A sentence for every switch with a significant effect on a headline metric.

    What a warm cache does in single arms is left to the pictures.
    """
    effects = [effect for effect in headline(analysis.effects) if effect.switch != CACHE]
    found = []
    for (_, cache), group in groupby(grouped(effects), key_of):
        some = {effect.metric: effect for effect in group if effect.is_significant}
        if some:
            found.append(sentence([some[metric] for metric in one_of_each_kind(some)], cache))
    return found


def one_of_each_kind(metrics: Iterable[str]) -> list[str]:
    """The first statistic of each time, in the order of the headline: who moves p50 mostly moves p99 too."""
    kinds: dict[str, str] = {}
    for metric in in_order(metrics):
        kind = metric.rpartition("_")[0] if metric.rpartition("_")[0] in SHORT else metric
        kinds.setdefault(kind, metric)
    return list(kinds.values())


def key_of(effect: Effect) -> tuple[str, str]:
    return effect.arm + effect.against + name_of(effect), effect.cache


def grouped(effects: Sequence[Effect]) -> list[Effect]:
    """All of one comparison together, in the order in which comparisons come."""
    order = list(dict.fromkeys(map(key_of, effects)))
    return sorted(effects, key=lambda effect: order.index(key_of(effect)))


def sentence(effects: Sequence[Effect], cache: str) -> Finding:
    """Such as: Switching prefix_cache on changed TTFT p50 by x0.21 (0.19 to 0.24): better."""
    first = effects[0]
    changes = [f"{short_of(effect.metric)} by {interval_text(effect)}{verdict_words(effect)}" for effect in effects]
    where = {"cold": "", "warm": "With a warm cache, "}.get(cache, f"With a {cache} cache, ")
    verb = "setting" if is_option(first) else "switching"
    before = f"{where}{verb}" if where else verb.capitalize()
    on = "" if is_option(first) else " on"
    return Finding(name_of(first), f"{before} ", f"{on} changed {'; '.join(changes)}.")


def verdict_words(effect: Effect) -> str:
    word = verdict_of(effect.metric, effect.ratio)
    return f", {word}" if word else ""


def without_effect(analysis: Analysis) -> list[str]:
    """Switches of which no headline metric moved by more than the noise."""
    effects = [effect for effect in headline(analysis.effects) if effect.switch != CACHE]
    moved = {name_of(effect) for effect in effects if effect.is_significant}
    return [name for name in dict.fromkeys(map(name_of, effects)) if name not in moved]


def interaction_findings(analysis: Analysis) -> list[str]:
    """A sentence for every two switches that interact on a headline metric."""
    some = [found for found in analysis.interactions if found.is_significant and found.metric in HEADLINE]
    by_pair: dict[tuple[str, str, str], dict[str, Interaction]] = defaultdict(dict)
    for found in some:
        by_pair[found.first, found.second, found.cache][found.metric] = found
    lines = []
    for (first, second, cache), of_metric in by_pair.items():
        metrics = one_of_each_kind(of_metric)
        changes = [f"{short_of(metric)} by {interval_text(of_metric[metric])}" for metric in metrics]
        where = ", with a warm cache" if cache == "warm" else ""
        lines.append(f"{first} and {second} together change {listed(changes)} beyond the product of each alone{where}.")
    return lines


def equality_sentence(analysis: Analysis) -> str:
    """Whether every arm still says what it must."""
    arms = {arm.name: arm.equality for arm in analysis.arms if not arm.refused}
    broken = [name for name, found in arms.items() if found is not None and found.holds is False]
    unchecked = [name for name, found in arms.items() if found is None]
    undecided = [name for name, found in arms.items() if found is not None and found.holds is None]
    if broken:
        return (
            f"{counted(len(broken), 'arm')} of {len(arms)} broke the equivalence class that its plugins promise: "
            f"{'; '.join(broken)}. Speed with wrong output says nothing, and nor does an effect that rests on it."
        )
    if len(unchecked) == len(arms):
        return "No arm was compared with everything off: these figures say how fast, not whether the output is right."
    kept = len(arms) - len(unchecked) - len(undecided)
    if kept == len(arms):
        return f"Every arm that ran ({kept}) kept the equivalence class that its plugins promise."
    rest = [f"{counted(len(unchecked), 'arm was', 'arms were')} not checked"] if unchecked else []
    rest += [f"of {listed(undecided)} it was not decided"] if undecided else []
    return f"{kept} of {len(arms)} arms kept the equivalence class that their plugins promise; {listed(rest)}."


def basis(analysis: Analysis) -> list[str]:
    """What the sentences rest on."""
    header = analysis.header
    arms = {arm.name for arm in analysis.arms if not arm.refused}
    refused = {arm.name for arm in analysis.arms if arm.refused}
    about = f": {header['about_design']}" if header.get("about_design") else ""
    lines = [f"Design {header['design']}{about}. {DESIGNS.get(header['design'], '')}".strip()]
    lines.append(
        f"{counted(analysis.num_blocks, 'block')} of {counted(len(arms), 'arm')} each counted"
        + (f", {len(analysis.voided)} did not" if analysis.voided else "")
        + (f"; the engine refused {counted(len(refused), 'combination')}." if refused else ".")
    )
    num_effects = len(analysis.effects)
    if num_effects and analysis.num_blocks > 1:
        lines.append(
            f"{counted(num_effects, 'effect')} {'was' if num_effects == 1 else 'were'} estimated, each with its own "
            "95 % interval: of those that are none in truth, about one in twenty will look like one."
        )
    if analysis.num_blocks == 0:
        lines.append("No block was finished: there are no effects yet.")
    elif analysis.num_blocks == 1:
        lines.append("One block alone has no interval: nothing here can be told from noise.")
    if not analysis.ended:
        lines.append("The run was stopped or goes on: this is what it had measured until then.")
    return lines
