"""The kit can watch an answer to every hook: the examples of docs/hooks.md keep the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.registry import HOOKS
from switchgear.core.testing.contract import Contract, is_virtual
from switchgear.core.testing.equivalence import Oracle
from switchgear.core.testing.faults import fails_only_the_step_of_a_fault
from switchgear.core.testing.leaks import leaves_nothing_behind
from switchgear.core.testing.subject import Subject

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "hooks.md").read_text()
HEAD, *SECTIONS = re.split(r"^## `", PAGE, flags=re.MULTILINE)
BY_HOOK = {section.partition("`")[0]: section for section in SECTIONS}
REFUSED = "route"
"""There is one pool, so an engine with a router does not start."""


def example(hook: str) -> Any:
    """The plugin class of a hook's example."""
    names: dict[str, Any] = {"__name__": f"example_{hook}"}
    exec("\n".join(re.findall(r"```python\n(.*?)```", HEAD + BY_HOOK[hook], flags=re.DOTALL)), names)
    classes = [value for value in names.values() if isinstance(value, type) and "equivalence" in vars(value)]
    return classes[0]


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook != REFUSED])
def test_an_example_keeps_the_contract(hook: str, oracle: Oracle) -> None:
    cls = example(hook)
    contract = Contract(Subject(cls.name, classes=(cls,)), oracle)
    contract.says_what_it_is()
    contract.refuses_wrong_options()
    contract.starts_and_takes_its_place()
    contract.answers_have_types_and_shapes()
    contract.changes_nothing_that_it_is_given()
    contract.is_called_no_more_for_more_tokens_or_layers()
    if is_virtual(contract.subject):
        contract.plans_the_same_at_any_time()
        fails_only_the_step_of_a_fault(contract.subject)
        leaves_nothing_behind(contract.subject, "decoding")
    assert {call.hook for call in contract.real.calls} >= ({hook} if hook != "control" else set())
