"""A kit that finds nothing proves nothing: each of these plugins has one fault, and the kit names it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from switchgear.core.config import PluginConfig
from switchgear.core.records import Plan
from switchgear.core.testing import histories
from switchgear.core.testing.checks import checks_of
from switchgear.core.testing.equivalence import Oracle
from switchgear.core.testing.failure import KitFailure
from switchgear.core.testing.subject import Subject
from switchgear.plugins.continuous_batching import ContinuousBatching

from . import planted


@pytest.fixture(autouse=True)
def without_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "SETTINGS", settings(histories.SETTINGS, phases=[Phase.generate]))


def failure(cls: Any, check: str, oracle: Oracle, *others: type) -> str:
    """What the kit says of a plugin class that is not installed."""
    checks = {str(each): each for each in checks_of(Subject(cls.name, classes=(cls, *others)), oracle)}
    with pytest.raises(KitFailure) as caught:
        checks[check].run()
    return str(caught.value)


def written(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin of a module of its own, so that importing or reading it concerns no other."""
    (folder / "planted_module.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(importlib.import_module("sys").modules, "planted_module", raising=False)
    return importlib.import_module("planted_module").Planted


MODULE = """
{imports}
from switchgear.core.config import PluginConfig
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL, Plan


class Planted:
    \"\"\"Plans in order.\"\"\"

    name = "planted"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config):
        pass

    @hookimpl
    def schedule_step(self):
        return self

    def plan(self, view):
        {body}
        return Plan(view.rows, view.num_pending)
"""


# -- contract -------------------------------------------------------------------------------------------------------


def test_torch_at_the_top_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: Oracle) -> None:
    cls = written(MODULE.format(imports="import torch", body=""), tmp_path, monkeypatch)
    text = failure(cls, "contract::loads_in_a_fresh_process_without_torch", oracle)
    assert "loads torch: move that import into the hook" in text


def test_a_policy_that_reads_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: Oracle) -> None:
    cls = written(MODULE.format(imports="import time", body="now = time.time()"), tmp_path, monkeypatch)
    assert "uses time: take time from `view.now`" in failure(cls, "contract::has_no_clock_and_no_dice", oracle)


def test_a_policy_that_hides_that_it_reads_the_clock(oracle: Oracle) -> None:
    cls = planted.modifier(planted.day_of_the_week)
    text = failure(cls, "contract::plans_the_same_at_any_time", oracle)
    assert "method `revise` returned" in text and "with another wall clock" in text


@pytest.mark.parametrize("fault", [planted.writes_into_view, planted.writes_into_plan])
def test_a_modifier_that_writes_into_what_it_sees(fault: Any, oracle: Oracle) -> None:
    text = failure(planted.modifier(fault), "contract::changes_nothing_that_it_is_given", oracle)
    assert "it writes into what it was given" in text and "'planted' failed in" in text


def test_a_modifier_that_unlocks_the_view_first(oracle: Oracle) -> None:
    cls = planted.modifier(planted.writes_behind_the_lock)
    text = failure(cls, "contract::changes_nothing_that_it_is_given", oracle)
    assert text.startswith("schedule_step, method `revise` changed argument 2 (StepView).priority")


def test_a_plan_of_lists(oracle: Oracle) -> None:
    cls = planted.policy(lambda view: Plan(view.rows.tolist(), view.num_pending))
    text = failure(cls, "contract::answers_have_types_and_shapes", oracle)
    assert "Plan.order must be a one-dimensional integer array" in text


def test_an_allocator_that_forgets_a_group(oracle: Oracle) -> None:
    text = failure(planted.paged(planted.OneGroup), "contract::answers_have_types_and_shapes", oracle)
    assert "one entry for each of the 2 KV groups" in text


def test_a_plugin_that_is_asked_for_every_token(oracle: Oracle) -> None:
    check = "contract::is_called_no_more_for_more_tokens_or_layers"
    text = failure(planted.AskedForEveryToken, check, oracle, planted.ChattyWrapper)
    assert "method `num_free` is called" in text and "with a prompt of 6 tokens" in text


def test_an_option_without_a_type(oracle: Oracle) -> None:
    class Planted(ContinuousBatching):
        """Takes anything."""

        name = "planted"

        class Config(PluginConfig):
            policy: Any = "fcfs"
            """Anything."""

    text = failure(Planted, "contract::refuses_wrong_options", oracle)
    assert text == "its Config accepts a list of objects for `policy`: give the field a type."


def test_a_claim_that_nobody_can_check(oracle: Oracle) -> None:
    cls = planted.policy(lambda view: Plan(view.rows, view.num_pending), its_claims=("is_fast",))
    assert "`claims` holds 'is_fast': the kit knows finds" in failure(cls, "contract::says_what_it_is", oracle)


def test_a_plugin_that_cannot_be_built(oracle: Oracle) -> None:
    class Planted(ContinuousBatching):
        """Refuses."""

        name = "planted"

        def __init__(self, config: Any) -> None:
            raise ValueError("there is no such device")

    text = failure(Planted, "contract::starts_and_takes_its_place", oracle)
    assert "no engine starts with planted" in text and "there is no such device" in text


def test_a_class_that_is_no_plugin(oracle: Oracle) -> None:
    class Planted(planted.Base):
        """Implements nothing."""

        name = "planted"

    assert "it implements no hook" in failure(Planted, "contract::is_a_plugin", oracle)


# -- equivalence ----------------------------------------------------------------------------------------------------


def test_a_prefix_cache_that_returns_a_wrong_block(oracle: Oracle) -> None:
    cls = planted.cached(planted.FindsWrongBlocks)
    text = failure(cls, "equivalence::alone", oracle)
    assert text.startswith("with paged_kv, planted on, callers do not get what everything-off gives them.")
    assert "everything-off has" in text
    assert "reads another's token" in failure(cls, "properties::shares_no_slot", oracle)
    assert "it read KV of another" in failure(cls, "properties::gives_everybody_their_own_tokens", oracle)


def test_attention_that_is_off_by_one_in_a_chunk(oracle: Oracle) -> None:
    checks = {str(each): each for each in checks_of(Subject("planted", classes=(planted.PlantedAttention,)), oracle)}
    checks["equivalence::alone"].run()  # nothing splits a prompt
    text = failure(planted.PlantedAttention, "equivalence::with_chunked_prefill", oracle)
    assert "everything-off has" in text


def test_a_window_that_is_taken_back_too_soon(oracle: Oracle) -> None:
    cls = planted.paged(planted.TrimsTooMuch)
    text = failure(cls, "properties::shares_no_slot", oracle)
    assert "taken back" in text or "held blocks, the rows' tables hold" in text


def test_a_hit_without_the_window_behind_it(oracle: Oracle) -> None:
    cls = planted.cached(planted.HitsBesideTheWindow)
    assert "reads another's token" in failure(cls, "properties::shares_no_slot", oracle)
    assert "local and global" in failure(cls, "equivalence::alone", oracle)


# -- leaks ----------------------------------------------------------------------------------------------------------


def test_an_allocator_that_leaks_when_a_request_leaves_early(oracle: Oracle) -> None:
    cls = planted.paged(planted.LeaksEarly)
    text = failure(cls, "leaks::aborted_in_the_middle_of_its_prompt", oracle)
    assert "a block is lost" in text or "not given back" in text or "blocks are held" in text


# -- properties -----------------------------------------------------------------------------------------------------


def test_a_scheduler_that_starves(oracle: Oracle) -> None:
    text = failure(planted.policy(planted.newest_only), "properties::starves_nobody", oracle)
    assert text == "request 0 came first, and while others kept coming it has not finished in 120 steps."


def test_an_allocator_that_does_not_copy_on_write(oracle: Oracle) -> None:
    cls = planted.paged(planted.ForgetsCopies)
    text = failure(cls, "properties::shares_no_slot", oracle)
    assert "reads another's token" in text or "held blocks, the rows' tables hold" in text
    text = failure(cls, "properties::gives_everybody_their_own_tokens", oracle)
    assert "two tokens are written to one slot" in text or "it read KV of another" in text


def test_an_allocator_that_is_left_in_doubt_by_a_fault(oracle: Oracle) -> None:
    cls = planted.paged(planted.CountsCommits)
    text = failure(cls, "properties::fails_only_the_step_of_a_fault", oracle)
    assert text.startswith("when allocate_kv, method `commit` raises")


def test_an_allocator_that_keeps_blocks_back(oracle: Oracle) -> None:
    cls = planted.paged(planted.KeepsReserve, its_claims=("wastes_less_than_a_block",))
    assert "external fragmentation" in failure(cls, "properties::wastes_less_than_a_block", oracle)


def test_a_policy_that_lets_requests_wait_beside_a_free_slot(oracle: Oracle) -> None:
    text = failure(planted.SlowStart, "properties::joins_and_leaves_at_once", oracle)
    assert "waits although a slot" in text


def test_chunks_that_go_before_decodes(oracle: Oracle) -> None:
    text = failure(planted.PrefillsFirst, "properties::never_stalls_decodes", oracle)
    assert "has one token to compute and is not in the step" in text


def test_a_budget_that_is_not_named(oracle: Oracle) -> None:
    cls = planted.modifier(lambda plan, view: plan, its_claims=("keeps_token_budget",))
    assert "names no token_budget" in failure(cls, "properties::keeps_token_budget", oracle)


def test_a_cache_that_evicts_the_newest(oracle: Oracle) -> None:
    cls = planted.cached(planted.EvictsNewest)
    assert "were to go first" in failure(cls, "properties::finds_prefixes_and_evicts_the_oldest", oracle)


def test_a_cache_that_forgets_at_once(oracle: Oracle) -> None:
    cls = planted.cached(planted.ForgetsAtOnce)
    text = failure(cls, "properties::finds_prefixes_and_evicts_the_oldest", oracle)
    assert "full, committed blocks are found until their memory is needed" in text or "were to go first" in text
