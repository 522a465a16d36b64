"""What a policy or a modifier may answer: a usable plan, in which nobody was added and nothing raised."""

from __future__ import annotations

import numpy as np

from ..errors import PluginFault
from ..records import NO_ROWS, IntArray, Plan, StepView

PLAN_ARRAYS = ("order", "num_tokens", "num_drafts", "victims")


def checked(plan: Plan, view: StepView, plugin: str, method: str) -> Plan:
    problem = problem_of(plan, view)
    if problem:
        raise PluginFault(plugin, method, problem)
    return plan


def read_only(plan: Plan) -> Plan:
    """The plan as a modifier sees it: what it returns is compared with what it was given."""
    order, num_tokens, num_drafts, victims = (array.view() for array in arrays_of(plan))
    for array in (order, num_tokens, num_drafts, victims):
        array.setflags(write=False)
    return Plan(order, num_tokens, num_drafts, plan.token_budget, victims)


def arrays_of(plan: Plan) -> tuple[IntArray, ...]:
    """In the order of `PLAN_ARRAYS`."""
    return plan.order, plan.num_tokens, plan.num_drafts, plan.victims


def problem_of(plan: Plan, view: StepView) -> str | None:
    """What makes a plan unusable; the text completes "plugin failed in plan: ..."."""
    if not isinstance(plan, Plan):
        return f"returned {type(plan).__name__}, a Plan is needed"
    for name, array in zip(PLAN_ARRAYS, arrays_of(plan), strict=True):
        if not (isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iu"):
            return f"Plan.{name} must be a one-dimensional integer array"
    # lists, which for the few rows of most steps are quicker than numpy
    order, num_tokens, num_drafts = plan.order.tolist(), plan.num_tokens.tolist(), plan.num_drafts.tolist()
    if len(num_tokens) != len(order) or len(num_drafts) not in (0, len(order)):
        return "Plan.order, num_tokens and num_drafts must have one entry for each row"
    rows = set(order)
    if len(rows) != len(order):
        return "Plan.order names a row twice"
    unknown = rows.difference(view.rows.tolist())
    if unknown:
        return f"Plan.order names row {min(unknown)}, which was not offered"
    if (num_tokens and min(num_tokens) < 0) or (num_drafts and min(num_drafts) < 0):
        return "a Plan cannot give a row a negative number of tokens"
    if plan.token_budget is not None and not isinstance(plan.token_budget, int):
        return f"Plan.token_budget must be an integer or None, not {plan.token_budget!r}"
    return None


def lowered(before: Plan, after: Plan) -> Plan:
    """A modifier's plan without what it added or raised."""
    allowed = dict(zip(before.order.tolist(), before.num_tokens.tolist(), strict=True))
    ceiling = np.array([allowed.get(row, 0) for row in after.order.tolist()], dtype=np.int64)
    budgets = [budget for budget in (before.token_budget, after.token_budget) if budget is not None]
    num_tokens = np.minimum(after.num_tokens, ceiling)
    victims = after.victims if len(after.victims) else before.victims
    return Plan(after.order, num_tokens, after.num_drafts, min(budgets, default=None), victims)


def drafts_of(plan: Plan, order: IntArray) -> IntArray:
    """The drafts that `plan` wants, for the rows of `order`."""
    if not len(plan.num_drafts):
        return NO_ROWS
    wanted = dict(zip(plan.order.tolist(), plan.num_drafts.tolist(), strict=True))
    return np.array([wanted.get(row, 0) for row in order.tolist()], dtype=np.int64)
