"""The page: one file that needs nothing else, with every picture inside it."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from ..analysis import Analysis
from . import drawing, tables
from .inline_svg import inline_svg
from .palette import DARK, LIGHT, variables
from .pictures import Picture, forests, matrices, spreads
from .summary import basis, equality_sentence, findings, interaction_findings, without_effect
from .wording import counted


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture that is ready for the page."""

    svg: str
    is_headline: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one arm."""

    arm: str
    text: str
    is_broken: bool


def page(analysis: Analysis) -> str:
    """The whole HTML text, the same for the same results. Raises SwitchgearError without matplotlib."""
    drawing.check_can_draw()
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(resource),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    script = resource("page.js")
    with drawing.styled():
        return environment.get_template("page.html.jinja").render(
            title=title_of(analysis),
            lead=lead_of(analysis),
            style=resource("page.css"),
            light=variables(LIGHT),
            dark=variables(DARK),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            verdict=equality_sentence(analysis),
            is_broken=bool(analysis.broken),
            is_checked=all(arm.equality is not None and arm.equality.holds for arm in analysis.arms if not arm.refused),
            findings=findings(analysis),
            without_effect=without_effect(analysis) if analysis.num_blocks > 1 else [],
            interaction_findings=interaction_findings(analysis),
            basis=basis(analysis),
            notes=analysis.notes,
            effects=drawn(forests(analysis)),
            effects_table=tables.effects_table(analysis),
            interactions=drawn(matrices(analysis)),
            interactions_table=tables.interactions_table(analysis),
            spreads=drawn(spreads(analysis)),
            equality=tables.equality_table(analysis),
            levels=tables.levels_table(analysis),
            refused=tables.refused_table(analysis),
            voided=tables.voided_table(analysis),
            hashes=tables.hashes_table(analysis),
            setting=tables.setting_table(analysis.header),
            plans=plans_of(analysis),
            command=shlex.join(analysis.header["command"]),
            ended=analysis.ended,
        )


def resource(name: str) -> str:
    """A file beside this one."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def drawn(pictures: Sequence[Picture]) -> list[Drawn]:
    return [
        Drawn(
            inline_svg(
                drawing.save(picture.draw(), "svg"), f"picture-{picture.name}", picture.title, picture.description
            ),
            picture.is_headline,
        )
        for picture in pictures
    ]


def plans_of(analysis: Analysis) -> list[Plan]:
    """One for each arm that ran, whatever the state of its caches."""
    arms = {arm.name: arm for arm in analysis.arms if not arm.refused}
    return [Plan(arm.name, "\n".join(arm.plan), arm.is_broken) for arm in arms.values()]


def title_of(analysis: Analysis) -> str:
    header = analysis.header
    of = header.get("recipe") or counted(len(header["switches"]), "switch", "switches")
    return f"Ablation of {of} on {header['model']}"


def lead_of(analysis: Analysis) -> str:
    """One line under the title: what was asked of what, where and when."""
    header = analysis.header
    workload, machine = header["workload"], header["machine"]
    requests = workload.get("num_requests")
    asked = f"{workload['name']}, {counted(requests, 'request')}" if requests else workload["name"]
    where = machine.get("processor") if isinstance(machine, dict) else str(machine)
    parts = [f"workload {asked}", where, f"switchgear {header['versions'].get('switchgear', '')}".strip()]
    return "; ".join([*filter(None, parts), *([header["started"][:10]] if header.get("started") else [])])
