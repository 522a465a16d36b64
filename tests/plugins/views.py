"""Makes the views that a policy sees, and reads the plans that it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from switchgear.core.records import KVView, Limits, Plan, StepView


@dataclass(frozen=True, slots=True)
class Row:
    """One row on offer. `computed` counts the tokens in the cache, `output` the generated ones."""

    row: int
    prompt: int = 8
    computed: int = 0
    output: int = 0
    arrival: float = 0.0
    priority: int = 0


def decoding(row: int, **options: float) -> Row:
    """A row that needs its next token only."""
    return Row(row, prompt=8, computed=8, output=1, **options)  # type: ignore[arg-type]


def view_of(
    running: list[Row], waiting: list[Row], *, max_num_seqs: int = 64, max_step_tokens: int = 2048, step: int = 0
) -> StepView:
    rows = [*running, *waiting]

    def column(values: list[int]) -> np.ndarray:
        array = np.array(values, dtype=np.int64)
        array.setflags(write=False)
        return array

    arrival = np.array([row.arrival for row in rows], dtype=np.float64)
    arrival.setflags(write=False)
    return StepView(
        step=step,
        now=100.0,
        seed=0,
        limits=Limits(max_num_seqs, max_step_tokens, max_model_len=4096),
        kv=KVView(block_size=16, num_blocks=1000, num_free=1000),
        num_running=len(running),
        rows=column([row.row for row in rows]),
        arrival=arrival,
        priority=column([row.priority for row in rows]),
        num_prompt=column([row.prompt for row in rows]),
        num_tokens=column([row.prompt + row.output for row in rows]),
        num_computed=column([row.computed for row in rows]),
        max_tokens=column([64] * len(rows)),
        num_in_flight=column([0] * len(rows)),
    )


def everybody(view: StepView) -> Plan:
    """What a policy that admits always wants."""
    return Plan(view.rows, view.num_pending)


def counts(plan: Plan) -> dict[int, int]:
    """Tokens of each row that runs, in service order."""
    pairs = zip(plan.order.tolist(), plan.num_tokens.tolist(), strict=True)
    return {row: count for row, count in pairs if count}
