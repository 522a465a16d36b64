"""A plugin that says that a machine cannot run it has to refuse there, with the reason that it gives."""

from __future__ import annotations

from typing import Any

import pytest
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.model import ops
from switchgear.core.records import TOKEN_EQUAL, Refusal
from switchgear.core.testing.checks import RUNS_HERE, Check, checks_of
from switchgear.core.testing.equivalence import Oracle
from switchgear.core.testing.failure import KitFailure, NotApplicable
from switchgear.core.testing.subject import Subject

REFUSES = "contract::refuses_and_says_why"


def planted(answer: Any) -> type:
    class Planted:
        """Norms for a machine that is not here."""

        name = "planted"
        equivalence = TOKEN_EQUAL
        hook_api = (1, 0)

        class Config(PluginConfig):
            pass

        def __init__(self, config: Any) -> None: ...

        @staticmethod
        def unavailable() -> str:
            return "it needs an abacus"

        @hookimpl
        def fused_ops(self, op: str) -> Any:
            return answer if op == "rms_norm" else None

    return Planted


def checks_for(answer: Any, oracle: Oracle) -> dict[str, Check]:
    return {str(check): check for check in checks_of(Subject("planted", classes=(planted(answer),)), oracle)}


def test_one_that_refuses_with_its_reason_is_right_and_nothing_else_is_run(oracle: Oracle) -> None:
    checks = checks_for(Refusal(("it needs an abacus",)), oracle)
    checks[REFUSES].run()
    with pytest.raises(NotApplicable, match="it needs an abacus"):
        checks[f"contract::{RUNS_HERE}"].run()
    assert {check.group for check in checks.values()} == {"contract"}


def test_one_that_runs_all_the_same_is_found(oracle: Oracle) -> None:
    with pytest.raises(KitFailure, match="'it needs an abacus', and yet an engine starts with it"):
        checks_for(ops.rms_norm, oracle)[REFUSES].run()


def test_one_that_refuses_for_another_reason_is_found(oracle: Oracle) -> None:
    with pytest.raises(KitFailure, match=r"for another reason: .* it needs a slide rule"):
        checks_for(Refusal(("it needs a slide rule",)), oracle)[REFUSES].run()
