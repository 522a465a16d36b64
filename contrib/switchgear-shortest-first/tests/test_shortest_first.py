"""The order that the plugin makes of a plan, on the records that the engine hands it."""

from dataclasses import replace
from importlib.metadata import entry_points

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.interfaces import Modifier
from switchgear.core.records import KVView, Limits, Plan, StepView
from switchgear.core.registry import check_class
from switchgear_shortest_first import ShortestFirst

NOW = 100.0
LIMITS = Limits(max_num_seqs=64, max_step_tokens=2048, max_model_len=4096)


def view_of(
    rows: list[int], num_prompt: list[int], *, num_running: int = 0, arrival: list[float], priority: list[int]
) -> StepView:
    """Running rows are in decode, with one token left to compute; waiting ones have computed nothing."""
    size = len(rows)
    prompt = np.array(num_prompt, dtype=np.int64)
    is_running = np.arange(size) < num_running
    return StepView(
        step=0,
        now=NOW,
        seed=0,
        limits=LIMITS,
        kv=KVView(block_size=16, num_blocks=64, num_free=64),
        num_running=num_running,
        rows=np.array(rows, dtype=np.int64),
        arrival=np.array(arrival),
        priority=np.array(priority, dtype=np.int64),
        num_prompt=prompt,
        num_tokens=prompt + is_running,
        num_computed=np.where(is_running, prompt, 0),
        max_tokens=np.full(size, 16, dtype=np.int64),
        num_in_flight=np.zeros(size, dtype=np.int64),
    )


def whole(view: StepView) -> Plan:
    """What a policy offers: every row in the view's order, with all it has pending."""
    return Plan(order=view.rows, num_tokens=view.num_pending)


def revised(view: StepView, max_wait: float = 10.0) -> list[int]:
    plugin = ShortestFirst(ShortestFirst.Config(max_wait=max_wait))
    order: list[int] = plugin.revise(whole(view), view).order.tolist()
    return order


def test_waiting_rows_go_shortest_first() -> None:
    view = view_of([5, 6, 7], [300, 20, 100], arrival=[NOW] * 3, priority=[0] * 3)
    assert revised(view) == [6, 7, 5]


def test_running_rows_keep_their_place_ahead() -> None:
    view = view_of([9, 2, 5, 6], [700, 800, 300, 20], num_running=2, arrival=[NOW] * 4, priority=[0] * 4)
    assert revised(view) == [9, 2, 6, 5]


def test_an_overdue_row_goes_before_every_shorter_one() -> None:
    view = view_of([5, 6, 7], [300, 20, 400], arrival=[NOW - 11, NOW, NOW - 12], priority=[0] * 3)
    assert revised(view) == [7, 5, 6]


def test_without_patience_it_is_first_come_first_served() -> None:
    view = view_of([5, 6, 7], [300, 20, 100], arrival=[NOW - 1, NOW, NOW - 2], priority=[0] * 3)
    assert revised(view, max_wait=0.0) == [7, 5, 6]


def test_priority_decides_before_length_and_overdue_before_priority() -> None:
    view = view_of([5, 6, 7], [300, 20, 400], arrival=[NOW, NOW, NOW - 11], priority=[-1, 0, 5])
    assert revised(view) == [7, 5, 6]


def test_equal_lengths_keep_the_order_of_the_policy() -> None:
    view = view_of([8, 3, 5], [20, 20, 20], arrival=[NOW] * 3, priority=[0] * 3)
    assert revised(view) == [8, 3, 5]


def test_a_half_computed_prompt_counts_by_what_is_left() -> None:
    view = view_of([5, 6], [300, 20], arrival=[NOW] * 2, priority=[0] * 2)
    assert revised(replace(view, num_computed=np.array([290, 0]))) == [5, 6]


def test_an_empty_plan_stays_empty() -> None:
    assert revised(view_of([], [], arrival=[], priority=[])) == []


def test_it_is_found_by_name_and_fits_the_hook() -> None:
    entry = entry_points(group="switchgear.plugins")["shortest_first"]
    assert entry.load() is ShortestFirst
    assert check_class("shortest_first", ShortestFirst) == ("schedule_step",)
    plugin = ShortestFirst(ShortestFirst.Config())
    assert isinstance(plugin.schedule_step(), Modifier)


@st.composite
def views(draw: st.DrawFn) -> StepView:
    rows = draw(st.lists(st.integers(0, 1000), unique=True, max_size=40))
    size = len(rows)

    def each(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=size, max_size=size))

    return view_of(
        rows,
        each(st.integers(1, 4000)),
        num_running=draw(st.integers(0, size)),
        arrival=[NOW - age for age in each(st.integers(0, 30))],
        priority=each(st.integers(-2, 2)),
    )


@given(views(), st.data())
def test_any_plan_is_only_reordered_and_nobody_is_starved(view: StepView, data: st.DataObject) -> None:
    kept = data.draw(st.permutations(range(len(view.rows))).map(lambda order: np.array(order, dtype=np.int64)))
    kept = kept[: data.draw(st.integers(0, len(kept)))]
    drafts = np.arange(len(kept)) if data.draw(st.booleans()) else np.empty(0, dtype=np.int64)
    plan = Plan(view.rows[kept], view.num_pending[kept], drafts, token_budget=7, victims=view.rows[:1])

    result = ShortestFirst(ShortestFirst.Config(max_wait=10.0)).revise(plan, view)

    def rows_of(plan: Plan) -> list[tuple[int, ...]]:
        counts = plan.num_drafts if len(plan.num_drafts) else np.zeros(len(plan.order), dtype=np.int64)
        return list(zip(plan.order.tolist(), plan.num_tokens.tolist(), counts.tolist(), strict=True))

    assert sorted(rows_of(result)) == sorted(rows_of(plan))
    assert (result.token_budget, result.victims) == (plan.token_budget, plan.victims)

    running = set(view.rows[: view.num_running].tolist())
    order = result.order.tolist()
    num_running = len(running.intersection(order))
    assert order[:num_running] == [row for row in plan.order.tolist() if row in running]

    arrival = dict(zip(view.rows.tolist(), view.arrival.tolist(), strict=True))
    for place, row in enumerate(order[num_running:]):
        if NOW - arrival[row] >= 10.0:
            assert all(arrival[other] <= arrival[row] for other in order[num_running:][:place])
