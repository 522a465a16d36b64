"""Everything-off reads what an arm said: which outputs pass, and whose margin counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from switchgear.core.config import Config, build_config
from switchgear.core.lab.arms import common_of
from switchgear.core.lab.equality import Answer, Said, Verdict, check, complaint
from switchgear.core.lab.workload import Ask, Segment, Workload
from switchgear.core.records import TOKEN_EQUAL, Equivalence

from .planted_faults import RunnerHere

NUM_OUTPUT = 6
WORKLOAD = Workload("two", tuple(Ask(0.0, NUM_OUTPUT, (Segment(key, 5 + key),)) for key in range(4)))
CHAT = Workload(
    "conversation",
    (
        *(Ask(0.0, 4, (Segment(key, 6),), conversation=1) for key in (8, 9)),
        Ask(0.0, 4, text="The switch", ignore_eos=False),
    ),
)
PPL = Equivalence("lossy", "perplexity difference", 0.5)


def config(model: Path, dtype: str = "float32") -> Config:
    sections = {"model": {"name": str(model), "dtype": dtype}, "engine": {"kv_bytes": 1 << 24, "max_model_len": 64}}
    return build_config(recipe="recommended", sections=sections)


@pytest.fixture(scope="module")
def said(tiny_model: Path) -> Said:
    given = config(tiny_model)
    measured = RunnerHere().measure(given, WORKLOAD, warm=False, timeout=0)
    return Said("all on", given, TOKEN_EQUAL, measured.answers)


def verdict(said: Said, workload: Workload = WORKLOAD, max_tokens: int = 10**6, seed: int = 0) -> Verdict:
    [found] = check(common_of(said.config).off(), workload, [said], max_tokens=max_tokens, seed=seed)
    return found


def with_token(said: Said, index: int, place: int, token: int) -> Said:
    """With another token in one place, and what would have come after it left as it was."""
    token_ids = list(said.answers[index].token_ids)
    token_ids[place] = token
    answers = list(said.answers)
    answers[index] = replace(answers[index], token_ids=tuple(token_ids))
    return replace(said, answers=tuple(answers))


def test_sound_outputs_hold_and_all_of_them_are_read(said: Said) -> None:
    found = verdict(said)
    assert (found.holds, found.problem, found.num_tokens) == (True, "", 4 * NUM_OUTPUT)
    assert found.margin == 1e-4


def test_one_wrong_token_breaks_it(said: Said) -> None:
    wrong = with_token(said, 2, 3, (said.answers[2].token_ids[3] + 11) % 200)
    found = verdict(wrong)
    assert found.holds is False
    assert "after a prompt of 7 tokens, position 3" in found.problem


def test_a_part_is_read_where_tokens_are_bounded_the_same_part_of_every_arm(said: Said) -> None:
    # the prompts have 5 to 8 tokens, the outputs 6
    assert verdict(said, max_tokens=1).num_tokens == NUM_OUTPUT
    assert verdict(said, max_tokens=28).num_tokens == 2 * NUM_OUTPUT
    seen = set()
    for index in range(4):
        wrong = with_token(said, index, 0, (said.answers[index].token_ids[0] + 11) % 200)
        one, two = check(common_of(said.config).off(), WORKLOAD, [wrong, said], max_tokens=1, seed=1)
        assert two.holds
        seen.add((index, one.holds))
    assert sum(holds is False for _, holds in seen) == 1


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_margin_is_that_of_the_precision(dtype: str, tiny_model: Path) -> None:
    given = config(tiny_model, dtype)
    answers = RunnerHere().measure(given, WORKLOAD, warm=True, timeout=0).answers
    found = verdict(Said("all on", given, TOKEN_EQUAL, answers))
    assert found.holds
    assert found.margin == 1e-6 if dtype == "float64" else found.margin > 1e-4


def test_a_broken_arm_widens_no_margin(tiny_model: Path) -> None:
    given = config(tiny_model, "bfloat16")
    answers = RunnerHere().measure(given, WORKLOAD, warm=False, timeout=0).answers
    sound = Said("all on", given, TOKEN_EQUAL, answers)
    off = common_of(given).off()
    [alone] = check(off, WORKLOAD, [sound], max_tokens=10**6)
    noise = Said("noise", given, TOKEN_EQUAL, tuple(replace(a, token_ids=(7, 91, 13, 5, 60, 33)) for a in answers))
    beside, broken = check(off, WORKLOAD, [sound, noise], max_tokens=10**6)
    assert beside.margin <= 1.5 * alone.margin
    assert broken.holds is False


def test_turns_of_a_conversation_are_read_after_all_that_was_said(tiny_model: Path) -> None:
    given = config(tiny_model)
    answers = RunnerHere().measure(given, CHAT, warm=False, timeout=0).answers
    sound = Said("all on", given, TOKEN_EQUAL, answers)
    found = verdict(sound, CHAT)
    assert found.holds and found.num_tokens == sum(len(answer.token_ids) for answer in answers)
    wrong = verdict(with_token(sound, 1, 0, (answers[1].token_ids[0] + 11) % 200), CHAT)
    assert "after a prompt of 16 tokens, position 0" in wrong.problem


def test_failed_missing_and_short_answers_are_complained_of() -> None:
    whole = tuple(Answer(index, (1,) * NUM_OUTPUT) for index in range(4))
    assert complaint(WORKLOAD, whole) == ""
    failed = (replace(whole[0], error="no KV"), *whole[1:])
    assert complaint(WORKLOAD, failed) == "1 of 4 requests failed, the first with: no KV"
    assert complaint(WORKLOAD, whole[1:]) == "1 of 4 requests were not answered"
    short = (*whole[:3], Answer(3, (1,)))
    assert complaint(WORKLOAD, short) == "request 3 got 1 tokens, 6 were asked for"


def test_a_failed_request_breaks_the_class(said: Said) -> None:
    answers = (replace(said.answers[0], token_ids=(), error="no KV"), *said.answers[1:])
    found = verdict(replace(said, answers=answers))
    assert (found.holds, found.problem) == (False, "1 of 4 requests failed, the first with: no KV")
    assert found.num_tokens == 3 * NUM_OUTPUT


def test_a_lossy_arm_is_held_to_its_perplexity_and_not_to_tokens(said: Said) -> None:
    wrong = with_token(replace(said, equivalence=PPL), 2, 3, (said.answers[2].token_ids[3] + 11) % 200)
    found = verdict(wrong)
    assert (found.holds, found.measure, found.bound) == (True, "perplexity difference", 0.5)
    assert found.value == pytest.approx(0, abs=1e-3)


def test_a_measure_that_is_not_taken_here_is_not_held(said: Said) -> None:
    found = verdict(replace(said, equivalence=Equivalence("lossy", "task score", 0.1)))
    assert found.holds is None
    assert found.problem == "task score is not measured by this command, see the plugin's page"
