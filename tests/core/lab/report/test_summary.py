from dataclasses import replace

import pytest
from switchgear.core.lab.analysis import Analysis
from switchgear.core.lab.designs import MAKERS
from switchgear.core.lab.report.summary import (
    DESIGNS,
    basis,
    equality_sentence,
    findings,
    interaction_findings,
    without_effect,
)

from ..made_results import BROKEN, EFFECTS

TIMES = "\N{MULTIPLICATION SIGN}"


def sentences(analysis: Analysis) -> dict[str, str]:
    return {found.subject: found.before + found.subject + found.after for found in findings(analysis)}


def with_verdicts(analysis: Analysis, holds: bool | None) -> Analysis:
    arms = tuple(replace(arm, equality=arm.equality and replace(arm.equality, holds=holds)) for arm in analysis.arms)
    return replace(analysis, arms=arms)


def test_every_planted_effect_is_a_sentence_with_its_factor(analysis: Analysis) -> None:
    said = sentences(analysis)
    assert list(said) == list(EFFECTS["ttft"])
    assert said["prefix_cache"].startswith("Switching prefix_cache on changed output tokens a second by ")
    assert f"TTFT p50 by {TIMES}0.41 (0.40 to 0.41), better; " in said["prefix_cache"]
    assert f"TTFT p50 by {TIMES}1.29 (1.28 to 1.30), worse; " in said["chunked_prefill"]
    assert f"TPOT p50 by {TIMES}0.70 (0.69 to 0.71), better; " in said["chunked_prefill"]
    # nothing was planted there
    assert "TPOT" not in said["paged_kv"]


def test_what_does_nothing_is_named_as_such(analysis: Analysis) -> None:
    assert without_effect(analysis) == ["paged_kv.block_size=32"]


def test_only_metrics_of_the_headline_are_told_unless_there_are_no_others(analysis: Analysis) -> None:
    effects = tuple(effect for effect in analysis.effects if effect.metric == "ttft_p90")
    assert "p90" not in " ".join(sentences(analysis).values())
    assert "TTFT p90" in sentences(replace(analysis, effects=effects))["prefix_cache"]


def test_the_planted_interaction_is_a_sentence(analysis: Analysis) -> None:
    (line,) = interaction_findings(analysis)
    assert line.startswith(f"prefix_cache and chunked_prefill together change output tokens a second by {TIMES}0.81")


def test_states_of_the_cache_are_told_apart(with_caches: Analysis) -> None:
    lines = [found.before + found.subject + found.after for found in findings(with_caches)]
    cold = [line for line in lines if line.startswith("Switching prefix_cache on changed")]
    warm = [line for line in lines if line.startswith("With a warm cache, switching prefix_cache on changed")]
    assert len(cold) == len(warm) == 1 and len(set(lines)) == len(lines)
    assert "0.41" in cold[0] and "0.19" in warm[0]


def test_an_option_is_set_and_not_switched(analysis: Analysis) -> None:
    effects = tuple(
        replace(effect, ratio=2.0, low=1.9, high=2.1, is_significant=True)
        for effect in analysis.effects
        if "=" in effect.switch and effect.metric == "ttft_p50"
    )
    (line,) = sentences(replace(analysis, effects=effects)).values()
    assert line.startswith("Setting paged_kv.block_size=32 changed TTFT p50 by ")


def test_a_broken_arm_is_named_and_disowned(analysis: Analysis) -> None:
    text = equality_sentence(analysis)
    assert text.startswith("1 arm of 7 broke") and BROKEN in text and "says nothing" in text


@pytest.mark.parametrize(
    ("holds", "text"), [(True, "Every arm that ran (7) kept the equivalence class"), (None, "it was not decided")]
)
def test_other_verdicts_have_their_words(analysis: Analysis, holds: bool | None, text: str) -> None:
    assert text in equality_sentence(with_verdicts(analysis, holds))


def test_no_check_is_not_taken_for_a_passed_one(analysis: Analysis) -> None:
    unchecked = replace(analysis, arms=tuple(replace(arm, equality=None) for arm in analysis.arms))
    assert "not whether the output is right" in equality_sentence(unchecked)
    some = replace(analysis, arms=(replace(analysis.arms[0], equality=None), *with_verdicts(analysis, True).arms[1:]))
    assert "1 arm was not checked" in equality_sentence(some) and "Every" not in equality_sentence(some)


def test_the_basis_counts_blocks_arms_and_what_was_left_out(analysis: Analysis) -> None:
    lines = basis(analysis)
    assert "7 blocks of 7 arms each counted, 1 did not; the engine refused 2 combinations." in lines
    assert any("40 effects were estimated" in line and "one in twenty" in line for line in lines)
    assert not any("stopped" in line for line in lines)


def test_the_basis_says_what_cannot_be_known(analysis: Analysis) -> None:
    assert any("there are no effects yet" in line for line in basis(replace(analysis, num_blocks=0, effects=())))
    assert any("nothing here can be told from noise" in line for line in basis(replace(analysis, num_blocks=1)))
    assert any("was stopped or goes on" in line for line in basis(replace(analysis, ended="")))


def test_every_design_is_explained(analysis: Analysis) -> None:
    assert set(DESIGNS) == set(MAKERS)
