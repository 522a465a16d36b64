"""Measure the arms of a design in blocks, until the intervals are narrow or the time is spent.

A block is every arm once, with cold and warm caches as asked, each in a fresh process, in an order drawn anew; the
anchor arm is run before, between and after. Everything is written as it comes, so that a killed run goes on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..config import Config
from ..errors import ConfigError, PluginError, SwitchgearError
from . import drift
from .analysis import Analysis, Effect, analyse_rows
from .arms import Planned
from .contrasts import Cell
from .designs import Arm
from .equality import Said, Verdict, complaint
from .estimates import Estimates
from .measured import Measured, Runner
from .results_file import ResultsFile, Row
from .study import Study

PRECISE = ("output_tokens_per_s", "ttft_p50", "tpot_p50")
"""The metrics whose intervals have to be narrow before a run ends by itself."""
MIN_BLOCKS = 5
"""Before the width of an interval says that it is enough: of fewer it is chance."""
ANCHOR_EVERY = 6
"""Runs between two of the anchor within a block."""
MAX_VOID = 4
"""Blocks in a row that may be void before the machine is given up."""
PATIENCE = 300.0
"""Seconds that any run is given; ten times its own estimate where that is more."""
AGAINST = "all_off"


Say = Callable[[str], None]


class Ablation:
    """One sitting at a study, new or gone on with. plans: of every arm, by name; rows: what the file holds."""

    def __init__(
        self,
        study: Study,
        plans: Mapping[str, Planned],
        runner: Runner,
        file: ResultsFile,
        rows: list[Row],
        *,
        say: Say = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.study = study
        self.plans = plans
        self.runner = runner
        self.file = file
        self.rows = rows
        self.say = say
        self.clock = clock
        self.arms = {arm.name: arm for arm in study.design.arms}
        self.estimates = Estimates(rows, study.budget, clock)
        self.failed: set[str] = set()
        """Arms that started and did not come to their end."""
        self.unchecked: dict[Cell, Said] = {}
        """The last answers of each arm that nobody has read."""
        self.checked: set[tuple[str, str]] = set()
        """Arms and the hash of their outputs that were read."""
        self.must_check = False
        self.num_blocks, self.worst = 0, math.inf
        """As `width` had it when the block was begun."""

    def run(self) -> Analysis:
        """To the end of the budget, or of the precision.

        Raises ConfigError for a file of other plans, and for a budget that is less than one block takes; PluginError if
        the anchor fails.
        """
        self.settle()
        while not (reason := self.reason_to_stop()):
            stopped = self.measure_block()
            if self.unchecked and (self.must_check or self.lacks_check()):
                self.check()
            if stopped:
                reason = stopped
                break
        if self.unchecked and self.estimates.check_seconds <= self.estimates.left:
            self.check()
        if self.rows[-1]["kind"] != "end":
            self.append("end", reason=reason)
        analysis = analyse_rows(self.rows)
        if not analysis.num_blocks:
            raise ConfigError(f"no block was measured to its end, {reason}; what there is stands in {self.file.path}")
        return analysis

    def append(self, kind: str, **values: Any) -> None:
        self.rows.append(self.file.append(kind, **values))

    def config_of(self, arm: Arm) -> Config:
        return self.study.common.config_of(arm.on, arm.varied)

    # -- the start --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Note the arms of a new file; of one that was begun, take what failed and close the block that was cut."""
        known = {row["arm"]: row for row in self.rows if row["kind"] == "arm"}
        for arm in self.study.design.arms:
            plan, row = self.plans[arm.name], known.get(arm.name)
            if row is None:
                self.append("arm", **self.arm_row(arm, plan.refused))
            elif row["plan_hash"] != plan.plan_hash:
                raise ConfigError(
                    f"{self.file.path} cannot be continued: arm {arm.name!r} had plan {row['plan_hash'] or 'none'} and "
                    f"has {plan.plan_hash or 'none'} now; give another --out"
                )
            elif row["refused"] and not plan.refused:
                self.failed.add(arm.name)
        for block, reason in analyse_rows(self.rows).voided.items():
            if reason == "unfinished":
                self.append("void", block=block, reason="interrupted")
        if not self.cells():
            refused = next(plan.refused for plan in self.plans.values() if plan.refused)
            raise PluginError(f"no arm can be measured: {refused}")

    def arm_row(self, arm: Arm, refused: str) -> dict[str, Any]:
        plan = self.plans[arm.name]
        return {
            "arm": arm.name,
            "on": list(arm.on),
            "off": [name for name in self.study.design.switches if name not in arm.on],
            "dropped": list(arm.dropped),
            "options": {entry.name: dict(entry.options) for entry in self.config_of(arm).plugins},
            "varied": dict(arm.varied),
            "baseline": arm.baseline,
            "plan_hash": plan.plan_hash,
            "environment": plan.environment,
            "plan": list(plan.plan),
            "equivalence": "" if plan.refused else str(plan.equivalence),
            "refused": refused,
        }

    def cells(self) -> list[Cell]:
        """What a block measures: every arm that starts, with each state of the caches."""
        names = [name for name in self.arms if not self.plans[name].refused and name not in self.failed]
        return [(name, cache) for name in names for cache in self.study.caches]

    # -- blocks -----------------------------------------------------------------------------------------------------

    def measure_block(self) -> str:
        """Every cell once and the anchor around them. Returns why there is to be no further block, if so."""
        block = 1 + max((row["block"] for row in self.rows if "block" in row), default=-1)
        sequence = self.sequence(block)
        anchors = []
        for position, cell in enumerate(sequence):
            if cell[0] in self.failed:
                continue
            if (takes := self.estimates.of(cell)) > self.estimates.left:
                reason = f"budget: a run takes about {takes:.0f} s and {max(0.0, self.estimates.left):.0f} s are left"
                self.append("void", block=block, reason=reason)
                return reason
            measured = self.measure_run(block, position, cell)
            if measured is not None:
                left = [other for other in sequence[position + 1 :] if other[0] not in self.failed]
                about = f"block {block + 1}, run {position + 1} of {len(sequence)}: {cell[0]}, {cell[1]}"
                rate = measured.metrics.get("output_tokens_per_s", 0.0)
                took = f"{measured.seconds:.2f} s, {rate:.1f} output tokens/s"
                self.say(f"{about}: {took}; {self.time_left(left)}")
                if cell == sequence[0]:
                    anchors.append(measured.metrics)
        return self.judge_drift(block, drift.spans(anchors))

    def sequence(self, block: int) -> list[Cell]:
        """The cells in an order of their own, with the anchor before, after and in between."""
        anchor = (self.study.design.anchor, self.study.caches[0])
        others = [cell for cell in self.cells() if cell != anchor]
        random.Random(f"{self.study.seed} {block}").shuffle(others)
        sequence = [anchor]
        for start in range(0, len(others), ANCHOR_EVERY):
            sequence += [*others[start : start + ANCHOR_EVERY], anchor]
        return sequence if others else [anchor, anchor]

    def measure_run(self, block: int, position: int, cell: Cell) -> Measured | None:
        """One run, written down; None for one that failed, whose arm is then out."""
        name, cache = cell
        arm, workload = self.arms[name], self.study.workload
        timeout = max(PATIENCE, 10 * self.estimates.of(cell))
        start = self.clock()
        try:
            config = self.config_of(arm)
            measured = self.runner.measure(config, workload, warm=cache == "warm", timeout=timeout)
        except SwitchgearError as error:
            self.fail(name, str(error))
            return None
        self.append(
            "run",
            block=block,
            arm=name,
            cache=cache,
            position=position,
            seconds=measured.seconds,
            wall_seconds=self.clock() - start,
            metrics=dict(measured.metrics),
            ttft=list(measured.ttft),
            tpot=list(measured.tpot),
            outputs=measured.outputs,
            client_cpu_seconds=measured.client_cpu_seconds,
        )
        self.estimates.note(cell, self.clock() - start)
        if measured.plan_hash != self.plans[name].plan_hash:
            raise PluginError(
                f"arm {name!r} ran plan {measured.plan_hash} and was planned as {self.plans[name].plan_hash}"
            )
        if (name, measured.outputs) not in self.checked:
            self.unchecked[cell] = Said(name, config, self.plans[name].equivalence, measured.answers)
            self.checked.add((name, measured.outputs))
            self.must_check |= bool(complaint(workload, measured.answers))
        return measured

    def fail(self, name: str, error: str) -> None:
        """An arm that was planned and did not run. Without the anchor nothing can be compared."""
        if name == self.study.design.anchor:
            raise PluginError(f"arm {name!r}, which the others are measured against, failed: {error}")
        reason = f"failed while it ran: {error}"
        self.failed.add(name)
        self.append("arm", **self.arm_row(self.arms[name], reason))
        verdict = Verdict(name, str(self.plans[name].equivalence), 0, 0, 0.0, holds=False, problem=reason)
        self.append("equality", against=AGAINST, **asdict(verdict))
        self.unchecked = {cell: said for cell, said in self.unchecked.items() if cell[0] != name}
        self.say(f"{name} {reason}")

    def judge_drift(self, block: int, now: drift.Spans) -> str:
        """Void the block if the machine moved; give up after several in a row."""
        runs = [row for row in self.rows if row["kind"] == "run" and row["block"] < block]
        runs = [row for row in runs if (row["arm"], row["cache"]) == (self.study.design.anchor, self.study.caches[0])]
        blocks = {row["block"] for row in runs}
        before = [drift.spans([row["metrics"] for row in runs if row["block"] == number]) for number in sorted(blocks)]
        reason = drift.moved(now, before, self.study.drift_limit)
        if not reason:
            return ""
        self.append("void", block=block, reason=reason)
        self.say(f"block {block + 1} is void: {reason}")
        voided = analyse_rows(self.rows).voided
        if all(number in voided for number in range(block - MAX_VOID + 1, block + 1)):
            return f"drift: {MAX_VOID} blocks in a row were void, so measure when nothing else runs, or raise the limit"
        return ""

    # -- when to stop -----------------------------------------------------------------------------------------------

    def reason_to_stop(self) -> str:
        """Why no further block is begun; empty if one is."""
        self.num_blocks, self.worst = self.width()
        if self.num_blocks >= MIN_BLOCKS and self.worst <= 1:
            return f"precision: after {self.num_blocks} blocks every interval is within {self.study.precision:.0%}"
        takes = self.estimates.sum_of(self.sequence(0))
        if takes > self.estimates.left:
            left = max(0.0, self.estimates.left)
            return f"budget: a block takes about {takes:.0f} s and {left:.0f} s are left"
        return ""

    def width(self) -> tuple[int, float]:
        """Blocks that count, and the widest interval of an effect in units of the precision that was asked for."""
        analysis = analyse_rows(self.rows)
        widths = [half_width(effect) for effect in analysis.effects if effect.metric in PRECISE]
        return analysis.num_blocks, max(widths, default=math.inf) / math.log1p(self.study.precision)

    def time_left(self, cells: list[Cell]) -> str:
        """For whoever waits: the rest of the block, and the blocks that the precision still needs."""
        seconds = self.estimates.sum_of(cells)
        # an interval narrows with the root of the blocks
        needed = math.ceil(self.num_blocks * self.worst**2) if math.isfinite(self.worst) else 0
        seconds += max(0, max(MIN_BLOCKS, needed) - self.num_blocks - 1) * self.estimates.sum_of(self.sequence(0))
        return f"about {duration(min(seconds, self.estimates.left))} left"

    # -- equality ---------------------------------------------------------------------------------------------------

    def lacks_check(self) -> bool:
        """Whether an arm that is measured was never read."""
        checked = {row["arm"] for row in self.rows if row["kind"] == "equality"}
        return any(name not in checked for name, _ in self.cells())

    def check(self) -> None:
        """Let everything-off read what was said since the last time."""
        said = list(self.unchecked.values())
        self.say(f"everything-off reads the outputs of {len({each.arm for each in said})} arms")
        start = self.clock()
        tokens, seed = self.study.check_tokens, self.study.seed
        verdicts = self.runner.check(self.study.common.off(), self.study.workload, said, max_tokens=tokens, seed=seed)
        seconds = self.clock() - start
        for verdict in verdicts:
            self.append("equality", against=AGAINST, **asdict(verdict), wall_seconds=seconds / len(verdicts))
        self.estimates.check_seconds = seconds
        self.unchecked.clear()
        self.must_check = False


def half_width(effect: Effect) -> float:
    """Of the interval, as a difference of logarithms."""
    return math.log(effect.high / effect.ratio) if math.isfinite(effect.high) else math.inf


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
