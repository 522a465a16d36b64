"""A plugin that does nothing, ablated a thousand times on the engine without a model: how often is an effect seen?

Scheduler, queue, KV books and the whole step are the real ones, and so is the loop of the ablation. A step takes a time
that depends on its tokens, with seeded noise of its own, of its run and of its block; requests are drawn anew for each
study.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from switchgear.core.config import Config, PluginConfig, PluginEntry, build_config
from switchgear.core.defaults import make_registry
from switchgear.core.engine.assemble import assemble
from switchgear.core.engine.engine import Engine
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import Modifier
from switchgear.core.lab.ablate import Ablation
from switchgear.core.lab.analysis import Effect, analyse_rows
from switchgear.core.lab.arms import Planned, common_of
from switchgear.core.lab.designs import make_design
from switchgear.core.lab.equality import Said, Verdict
from switchgear.core.lab.measured import Measured
from switchgear.core.lab.results_file import Row
from switchgear.core.lab.study import Study
from switchgear.core.lab.workload import Workload
from switchgear.core.model.shape_only import BYTES_PER_TOKEN, no_reader, shape_only
from switchgear.core.records import TOKEN_EQUAL, Device, Plan, StepView
from switchgear.core.sampling_params import SamplingParams

# the commands beside these tests are run as files, so that their folder is where they import from
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduling"))
from no_model import VOCAB_SIZE, NoModel, NothingRuns

NUM_STUDIES = 1000
NUM_BLOCKS = 4
METRICS = ("output_tokens_per_s", "ttft_p50", "tpot_p50")


class DoesNothing:
    """Hands every plan on as it is."""

    name = "does_nothing"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def schedule_step(self) -> Modifier:
        return self

    def revise(self, plan: Plan, view: StepView) -> Plan:
        return plan


class Slows(DoesNothing):
    """Lets one row run at a time."""

    name = "slows"

    def revise(self, plan: Plan, view: StepView) -> Plan:
        return Plan(plan.order[:1], plan.num_tokens[:1])


class Rows:
    """A result file that is not on a disk."""

    path = Path("rows")

    def append(self, kind: str, **values: Any) -> Row:
        return {"kind": kind, **values}


class VirtualRunner:
    """Runs an engine, and tells what its steps would have taken on a machine with noise."""

    def __init__(self, cls: type) -> None:
        self.engines = {classes: made_engine(*classes) for classes in ((), (cls,))}
        self.generator = np.random.default_rng(0)
        self.now = 0.0

    def begin(self, seed: int) -> None:
        """A study: other requests, and noise of its own."""
        self.generator = np.random.default_rng(seed)
        self.lengths = self.generator.integers(2, 5, (2, 2)).tolist()
        self.num_runs = 0

    def clock(self) -> float:
        return self.now

    def measure(self, config: Config, workload: Workload, *, warm: bool, timeout: float) -> Measured:
        if self.num_runs % 3 == 0:
            self.block = self.generator.normal(0, 0.05)
        self.num_runs += 1
        pace = math.exp(self.block + self.generator.normal(0, 0.02))
        classes = next(classes for classes in self.engines if len(classes) == len(config.plugins))
        seconds, firsts = self.run(self.engines[classes], pace)
        self.now += seconds
        num_output = sum(count for _, count in self.lengths)
        values = (num_output / seconds, float(np.median(firsts)), seconds / num_output)
        return Measured(
            plan_name(config.plugins), "", seconds, 0.0, dict(zip(METRICS, values, strict=True)), (), (), ()
        )

    def run(self, engine: Engine, pace: float) -> tuple[float, list[float]]:
        """Seconds until all are done, and until the first token of each."""
        for number, (num_prompt, num_output) in enumerate(self.lengths):
            params = SamplingParams(max_tokens=num_output, ignore_eos=True, temperature=0.0)
            engine.add(str(number), np.arange(num_prompt), params)
        executor = engine.executor
        assert isinstance(executor, NothingRuns)
        seconds, num_tokens, firsts, seen = 0.0, executor.num_tokens, [], Counter[str]()
        while engine.has_work:
            emissions = engine.step()
            seconds += pace * (1 + 0.1 * (executor.num_tokens - num_tokens)) * self.generator.lognormal(0, 0.1)
            num_tokens = executor.num_tokens
            for emission in emissions:
                if not seen[emission.request]:
                    firsts.append(seconds)
                seen[emission.request] += 1
        return seconds, firsts

    def check(
        self, off: Config, workload: Workload, said: Sequence[Said], *, max_tokens: int, seed: int
    ) -> list[Verdict]:
        raise AssertionError("nothing is read where nothing is said")


def made_engine(*classes: Any) -> Engine:
    """With these plugins on, and no model."""
    limits = {"kv_bytes": 256 * BYTES_PER_TOKEN, "max_model_len": 32, "max_num_seqs": 2}
    plugins: dict[str, dict[str, Any]] = {cls.name: {} for cls in (*classes, NoModel)}
    config = build_config(sections={"engine": limits, "plugins": plugins})
    registry = make_registry(config, (*classes, NoModel))
    engine = assemble(
        config,
        registry,
        shape_only("none", vocab_size=VOCAB_SIZE, max_model_len=32),
        no_reader,
        Device("cpu", "float32"),
        clock=itertools.count().__next__,
    ).engine
    engine.start()
    return engine


def plan_name(plugins: Sequence[PluginEntry]) -> str:
    return ",".join(entry.name for entry in plugins)


def effects(runner: VirtualRunner, cls: type, seed: int) -> list[Effect]:
    """Of one study."""
    name: str = cls.name  # type: ignore[attr-defined]
    common = common_of(build_config(sections={"plugins": {name: {}}}), classes=[cls])
    design = make_design("one-in", common.switches, common.requires)
    plans = {arm.name: Planned("", ",".join(arm.on), "", ()) for arm in design.arms}
    study = Study(common, design, Workload("requests", ()), drift_limit=1.0, seed=seed)
    runner.begin(seed)
    rows: Any = Rows()
    ablation = Ablation(study, plans, runner, rows, [rows.append("header", **study.header({}))], clock=runner.clock)
    ablation.settle()
    for _ in range(NUM_BLOCKS):
        assert not ablation.measure_block()
    analysis = analyse_rows(ablation.rows)
    assert analysis.num_blocks == NUM_BLOCKS and not analysis.voided
    return list(analysis.effects)


@pytest.mark.slow
def test_the_interval_of_a_plugin_that_does_nothing_covers_no_effect_as_often_as_it_says() -> None:
    runner = VirtualRunner(DoesNothing)
    covered = Counter[str]()
    for seed in range(NUM_STUDIES):
        for effect in effects(runner, DoesNothing, seed):
            covered[effect.metric] += effect.low <= 1 <= effect.high
            assert effect.is_significant == (not effect.low <= 1 <= effect.high)
    assert set(covered) == set(METRICS)
    for metric, count in covered.items():
        assert 0.93 <= count / NUM_STUDIES <= 0.97, metric


def test_one_that_does_something_is_seen() -> None:
    runner = VirtualRunner(Slows)
    for seed in range(3):
        [effect] = [each for each in effects(runner, Slows, seed) if each.metric == "output_tokens_per_s"]
        assert effect.is_significant and effect.high < 0.9
