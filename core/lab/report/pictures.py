"""Which pictures a report has, each with its name and with what it says in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..analysis import Analysis, Effect, Interaction
from . import drawing
from .distributions import TITLES, Time, arm_name, distributions, spread_text, times_of, with_times
from .forest import CACHE_NAMES, forest
from .matrix import matrix
from .overview import overview
from .wording import HEADLINE, in_order, interval_text, label_of, names_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVERVIEW_METRICS = ("output_tokens_per_s", "ttft_p50", "tpot_p50", "e2e_p50")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture, not yet drawn."""

    name: str
    """Of a file, without what follows the dot."""
    title: str
    description: str
    """All that the picture shows, for those who cannot see it."""
    draw: Callable[[], Figure]
    is_headline: bool = True


def effects_on(analysis: Analysis, metric: str) -> list[Effect]:
    """Cold before warm before both, each in the order of the design."""
    caches = list(CACHE_NAMES)
    some = [effect for effect in analysis.effects if effect.metric == metric]
    return sorted(some, key=lambda effect: caches.index(effect.cache))


def forests(analysis: Analysis) -> list[Picture]:
    """One for each metric, those of the headline first."""
    pictures = []
    for metric in in_order(effect.metric for effect in analysis.effects):
        some = effects_on(analysis, metric)
        draw = partial(forest, metric, some)
        title = f"Effects on {label_of(metric)}"
        pictures.append(Picture(f"effects-{metric}", title, effects_in_words(some), draw, metric in HEADLINE))
    return pictures


def effects_in_words(effects: Sequence[Effect]) -> str:
    lines = []
    for name, effect in zip(names_of(effects), effects, strict=True):
        cache = "" if effect.cache == "cold" else f", {CACHE_NAMES.get(effect.cache, effect.cache)}"
        mark = ", significant" if effect.is_significant else ""
        lines.append(f"{name}{cache}: {interval_text(effect)}{mark}.")
    return " ".join(lines)


def matrices(analysis: Analysis) -> list[Picture]:
    """One for each metric and state of the cache."""
    metrics = in_order(found.metric for found in analysis.interactions)
    caches = list(CACHE_NAMES)
    ordered = sorted(analysis.interactions, key=lambda found: (metrics.index(found.metric), caches.index(found.cache)))
    pictures = []
    for (metric, cache), group in groupby(ordered, lambda found: (found.metric, found.cache)):
        some = list(group)
        suffix = "" if cache == "cold" else f"-{cache.replace('/', '-over-')}"
        where = "" if cache == "cold" else f", {CACHE_NAMES.get(cache, cache)}"
        title = f"Interactions on {label_of(metric)}{where}"
        draw = partial(matrix, metric, some, where)
        about = interactions_in_words(some)
        pictures.append(Picture(f"interactions-{metric}{suffix}", title, about, draw, metric in HEADLINE))
    return pictures


def interactions_in_words(interactions: Sequence[Interaction]) -> str:
    return " ".join(
        f"{found.first} and {found.second}: {interval_text(found)}{', significant' if found.is_significant else ''}."
        for found in interactions
    )


def spreads(analysis: Analysis) -> list[Picture]:
    """Of TTFT and of TPOT, where there are requests that have one."""
    pictures = []
    times: tuple[Time, Time] = ("ttft", "tpot")
    for time in times:
        arms = with_times(analysis.arms, time)
        if arms:
            words = [f"{arm_name(arm, analysis.arms)}: {spread_text(times_of(arm, time))}." for arm in arms]
            draw = partial(distributions, time, analysis.arms)
            pictures.append(Picture(f"distribution-{time}", TITLES[time], " ".join(words), draw))
    return pictures


def overviews(analysis: Analysis) -> list[Picture]:
    """The main picture, for a paper: not in the page, which shows the same larger."""
    there = {effect.metric for effect in analysis.effects}
    metrics = [metric for metric in OVERVIEW_METRICS if metric in there] or in_order(there)[:4]
    if not metrics:
        return []
    # one state of the caches, the first that was measured
    cache = analysis.effects[0].cache
    by_metric = {
        metric: [effect for effect in effects_on(analysis, metric) if effect.cache == cache] for metric in metrics
    }
    words = " ".join(f"{label_of(metric)}: {effects_in_words(some)}" for metric, some in by_metric.items())
    return [Picture("overview", "Main effects", words, partial(overview, by_metric))]


def all_pictures(analysis: Analysis) -> list[Picture]:
    return [*overviews(analysis), *forests(analysis), *matrices(analysis), *spreads(analysis)]


def write_pictures(analysis: Analysis, folder: Path, form: Literal["svg", "png"]) -> list[Path]:
    """A file for each picture. Raises SwitchgearError without matplotlib, OSError where the folder takes no file."""
    drawing.check_can_draw()
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with drawing.styled():
        for picture in all_pictures(analysis):
            paths.append(folder / f"{picture.name}.{form}")
            paths[-1].write_bytes(drawing.save(picture.draw(), form))
    return paths
