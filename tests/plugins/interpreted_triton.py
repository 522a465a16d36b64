"""flash_attention and triton_ops by Triton's interpreter. Run by `tests/kernels/triton/test_interpreted.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.errors import PluginError
from switchgear.core.records import LayerSpec, Refusal
from switchgear.core.testing.teacher_forced import compare_forced
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.plugins.flash_attention import tiled

from ..kernels.triton import patched_once  # noqa: F401
from .ragged import make_step
from .test_flash_attention import CAPPED, KINDS, MIXED, STEPS, asked, impl_of, kv_bytes, largest

TRITON: Any = {"flash_attention": {"backend": "triton"}}


QUICK = ("a window", "both")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in [*KINDS, *CAPPED]]
)
def test_it_computes_what_everything_off_computes(kind: str) -> None:
    step = make_step({**KINDS, **CAPPED}[kind], STEPS["everything"], block_size=16)
    torch.testing.assert_close(step.run(impl_of(step.layer, "triton")), step.exact(), rtol=1e-12, atol=1e-12)


def test_long_rows_are_cut_into_tiles_and_their_contexts_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "num_processors", lambda device: 8)
    layer = LayerSpec(3, 1, 16, 0.25)
    step = make_step(layer, [(70, 70), (1, 600), (40, 90)], block_size=32)
    impl = impl_of(layer, "triton")
    meta = impl.plan(step.batch, 0)
    assert meta.num_splits == 4 and meta.few_rows.tolist() == [1]
    # five queries of three heads are a tile of float64, and those that see most come first
    assert list(zip(meta.tile_rows[:6].tolist(), meta.tile_starts[:6].tolist(), strict=True)) == [
        (2, 35),
        (2, 30),
        (2, 25),
        (2, 20),
        (0, 65),
        (2, 15),
    ]
    torch.testing.assert_close(step.run(impl), step.exact(), rtol=1e-12, atol=1e-12)


def test_the_score_matrix_never_exists() -> None:
    """Twice the tokens take twice the memory."""
    layer = LayerSpec(3, 1, 16, 0.25)
    once, twice = (largest(layer, (length, length), impl_of(layer, "triton", "float32")) for length in (320, 640))
    assert once <= 3 * 320**2 / 4 and twice <= 2.2 * once


def tokens_of(model: Path, plugins: Any, **options: Any) -> list[Any]:
    """Outputs of ragged prompts that begin alike."""
    shared = [3 + index * 7 % 450 for index in range(14)]
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    with LLM(str(model), dtype="float64", plugins=plugins, max_num_seqs=4, **options) as llm:
        results = llm.generate([shared, [*shared, 9, 8, 7], [5], [*shared, *range(20, 29)]], params)
        assert llm.audit() == []
        return [result.token_ids for result in results]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("gemma2", {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48}),
        pytest.param("llama", {"num_attention_heads": 6, "hidden_size": 96, "head_dim": 20}, marks=pytest.mark.slow),
        pytest.param("gemma3", {}, marks=pytest.mark.slow),
    ],
)
def test_every_family_says_what_it_says_with_everything_off(
    tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    model = make_tiny_model(tmp_path / family, family=family, **config)
    # so little KV that rows are preempted
    plugins = {**MIXED, **TRITON}
    assert tokens_of(model, plugins, kv_bytes=64 * kv_bytes(model)) == tokens_of(model, {})


@pytest.mark.slow
def test_in_float32_tokens_differ_only_where_everything_off_is_undecided(tiny_model: Path) -> None:
    forced = compare_forced(str(tiny_model), {**TRITON, "triton_ops": {}}, "float32")
    assert not forced.problem, forced


def test_the_fused_operations_change_no_token(tiny_model: Path) -> None:
    assert tokens_of(tiny_model, {"triton_ops": {}}) == tokens_of(tiny_model, {})


def test_what_the_interpreter_cannot_do_is_refused(tiny_model: Path) -> None:
    sets: list[Any] = [TRITON, {"triton_ops": {}}]
    for plugins in sets:
        with pytest.raises(PluginError, match="Triton's interpreter cannot multiply bfloat16"):
            LLM(str(tiny_model), dtype="bfloat16", plugins=plugins)


def test_heads_that_are_too_large_are_refused() -> None:
    answer = asked(LayerSpec(2, 1, 288, 0.1), "triton")
    assert isinstance(answer, Refusal)
    assert answer.reasons == ("the Triton kernels take heads of up to 256 elements, not of 288",)
