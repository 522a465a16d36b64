"""The verification kit on what Triton computes, in its interpreter. Run by `tests/kernels/triton/test_interpreted.py`.

On fewer and shorter requests than the standard workload: the interpreter takes milliseconds for each token of each
operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.sampling_params import SamplingParams
from switchgear.core.testing import checks as kit
from switchgear.core.testing import contract
from switchgear.core.testing.checks import Check, checks_of
from switchgear.core.testing.equivalence import Oracle, Verdict, verify_equivalence
from switchgear.core.testing.subject import Plugins, Subject
from switchgear.core.testing.workload import Ask, Case, greedy, tokens

from ..kernels.triton import patched_once  # noqa: F401

SHARED = tokens(6, start=1)
FEW = Case(
    "few and short",
    model={"num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48},
    engine={"max_num_seqs": 4, "max_step_tokens": 24, "max_model_len": 24},
    num_kv_tokens=2 * 24,
    asks=(
        Ask("greedy", tokens(11, 2), greedy(3)),
        Ask("shared prefix", SHARED + tokens(3, 4), greedy(3)),
        Ask("two outputs", SHARED, SamplingParams(max_tokens=3, seed=7, n=2, logprobs=2)),
        Ask("prompt scored", tokens(5, 11), greedy(2, prompt_logprobs=2)),
        Ask("caller leaves", tokens(4, 12), greedy(9), abort_after=2),
        Ask("late", SHARED + tokens(3, 4), greedy(3), arrival=3),
    ),
)
"""In so little KV that rows are preempted."""
LONG = replace(FEW, engine={**FEW.engine, "max_step_tokens": 72, "max_model_len": 72}, num_kv_tokens=72)
"""Where the kit counts calls for prompts of its own."""
SUBJECTS = (Subject("triton_ops"), Subject("flash_attention", {"backend": "triton"}))


class FewAsked(Oracle):
    """Judges by few and short requests."""

    def _judged(self, plugins: Plugins, classes: Sequence[type]) -> Verdict:
        return verify_equivalence(plugins, self, cases=[FEW], classes=classes)


def items() -> list[Any]:
    """Every check of both; quick are those of each alone."""
    found = []
    for number, subject in enumerate(SUBJECTS):
        assert not subject.lack, "the interpreter is on"
        for name in map(str, checks_of(subject, Oracle(Path()))):
            if (subject.name, name) == ("triton_ops", "equivalence::with_native_cpu"):
                continue  # see below
            if name == "equivalence::with_cpu_graphs":
                continue  # see below
            is_slow = name.startswith("equivalence::with_") or "is_called_no_more" in name
            marks = pytest.mark.slow if is_slow else ()
            found.append(pytest.param(number, name, id=f"{subject.name}-{name}", marks=marks))
    return found


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Check]:
    oracle = FewAsked(tmp_path_factory.mktemp("kit"))
    return {
        (number, str(check)): check for number in range(len(SUBJECTS)) for check in checks_of(SUBJECTS[number], oracle)
    }


@pytest.mark.parametrize(("number", "check"), items())
def test_a_plugin_keeps_its_word(
    number: int, check: str, checks: dict[tuple[int, str], Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that is skipped raises, too."""
    for module in (kit, contract):
        monkeypatch.setattr(module, "CASES", (LONG, FEW))
    checks[number, check].run()


@pytest.mark.slow
def test_beside_the_kernels_for_the_cpu_the_first_takes_the_operations(tmp_path: Path) -> None:
    """Only the interpreter runs both on one device. `native_cpu` has linears to itself, `triton_ops` nothing else."""
    oracle = FewAsked(tmp_path)
    if Subject("native_cpu").lack:
        pytest.skip(Subject("native_cpu").lack)
    assert oracle.verdict({"triton_ops": {}, "native_cpu": {}}).kind == "equal"
    verdict = oracle.verdict({"native_cpu": {}, "triton_ops": {}})
    assert verdict.kind == "refuses" and "nothing took what it offers for fused_ops" in verdict.text


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_steps_of_the_interpreter_cannot_be_recorded_which_is_told(subject: Subject, tmp_path: Path) -> None:
    """It reads and writes memory itself."""
    if Subject("cpu_graphs").lack:
        pytest.skip(Subject("cpu_graphs").lack)
    verdict = FewAsked(tmp_path).verdict(subject.beside(["cpu_graphs"]))
    assert verdict.kind == "refuses" and "cannot record a step: Tensor.numpy leaves to the host" in verdict.text
