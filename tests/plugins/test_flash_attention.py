"""flash_attention: what everything-off computes, without its score matrix, and the plan says by whom."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.defaults import StoredAsComputed
from switchgear.core.errors import PluginError
from switchgear.core.records import Device, LayerSpec, Refusal
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.plugins.flash_attention import FlashAttention, sdpa

from .ragged import Row, make_step

KINDS = {
    "as many kv heads as heads": LayerSpec(4, 4, 16, 0.25),
    "groups of three": LayerSpec(6, 2, 16, 0.25),
    "one kv head": LayerSpec(5, 1, 20, 0.3),
    "a window": LayerSpec(4, 2, 16, 0.25, window=7),
    "a window of one": LayerSpec(4, 2, 16, 0.25, window=1),
    "an odd head size": LayerSpec(4, 2, 13, 0.2, window=30),
}
STEPS: dict[str, list[Row]] = {
    "prompts": [(1, 1), (17, 17), (5, 5), (17, 17), (33, 33)],
    "decode": [(1, 9), (1, 40), (1, 2), (1, 40), (1, 17)],
    "chunks behind a context": [(8, 21), (8, 40), (1, 3), (20, 51)],
    "drafts": [(4, 12), (3, 30), (4, 29), (1, 8)],
    "everything": [(1, 30), (16, 16), (6, 18), (1, 1), (16, 16), (6, 6), (40, 41)],
}
MIXED: Any = {"continuous_batching": {}, "paged_kv": {"block_size": 4}, "prefix_cache": {}}
MIXED |= {"chunked_prefill": {"max_num_batched_tokens": 11, "max_partial_prefills": 2}}


def impl_of(layer: LayerSpec, backend: str = "auto", dtype: str = "float64") -> Any:
    answer = asked(layer, backend, dtype)
    assert not isinstance(answer, Refusal)
    return answer


def asked(layer: LayerSpec, backend: str = "auto", dtype: str = "float64", device: str = "cpu") -> Any:
    """What the hook answers."""
    codec: Any = StoredAsComputed(dtype)
    plugin: Any = FlashAttention(FlashAttention.Config(backend=backend))  # type: ignore[arg-type]
    return plugin.attention_impl(layer, codec, Device(device, dtype))


# -- one layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", STEPS)
@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_it_computes_what_everything_off_computes(kind: str, rows: str, block_size: int) -> None:
    step = make_step(KINDS[kind], STEPS[rows], block_size=block_size)
    torch.testing.assert_close(step.run(impl_of(step.layer)), step.exact(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("max_mask", "stretch"), [(1, 3), (1, 64), (100, 8), (400, 5)])
def test_where_it_cuts_changes_nothing(kind: str, max_mask: int, stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "MAX_MASK", max_mask)
    monkeypatch.setattr(sdpa, "STRETCH", stretch)
    for rows in STEPS.values():
        step = make_step(KINDS[kind], rows)
        torch.testing.assert_close(step.run(impl_of(step.layer)), step.exact(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [1, 1e4])
def test_it_is_as_exact_as_the_eager_form(dtype: str, size: float) -> None:
    """The authors' own criterion, also where scores are in the ten thousands."""
    for kind, layer in KINDS.items():
        for seed, rows in enumerate(STEPS.values()):
            step = make_step(layer, rows, dtype=dtype, seed=seed, by=size)
            exact = step.exact()
            error = (step.run(impl_of(layer, dtype=dtype)) - exact).abs().max()
            eager = (step.run(step.eager(dtype)) - exact).abs().max()
            # the eager form multiplies before it scales, and float16 has no room for that
            allowed = 2 * eager + 1e-5 if eager.isfinite() else 4e-3
            assert error <= allowed, (kind, rows)


def test_who_else_is_in_the_step_and_in_which_order_changes_nothing() -> None:
    rows = STEPS["everything"]
    step = make_step(KINDS["groups of three"], rows)
    impl = impl_of(step.layer)
    whole = step.run(impl)
    for order in ([3], [6, 2, 0], [5, 4, 3, 2, 1, 0, 6]):
        some, tokens = step.of(order)
        torch.testing.assert_close(some.run(impl), whole[tokens], rtol=1e-12, atol=1e-12)


def test_kv_that_lies_in_a_line_is_read_in_place() -> None:
    layer = KINDS["groups of three"]
    step = make_step(layer, [(1, 40)], block_size=64)
    [part] = impl_of(layer).plan(step.batch, 0)[1]
    assert isinstance(part.slots, slice) and part.mask is None


# -- the engine -----------------------------------------------------------------------------------------------------


def tokens_of(model: Path, plugins: Any, **options: Any) -> list[Any]:
    """Outputs and log probabilities of ragged prompts that begin alike, twice over."""
    generator = np.random.default_rng(0)
    shared = generator.integers(3, 500, 30).tolist()
    prompts = [[*shared, *generator.integers(3, 500, length).tolist()] for length in (0, 1, 9, 33)] + [[7], [7] * 60]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, n=1)
    with LLM(str(model), dtype="float64", plugins=plugins, max_num_seqs=4, **options) as llm:
        results = [*llm.generate(prompts, params), *llm.generate(prompts, params)]
        assert llm.audit() == []
        return [result.token_ids for result in results]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96, "head_dim": 20}),
        ("gemma3", {}),
        ("mistral", {"num_key_value_heads": 1}),
    ],
)
def test_every_family_says_what_it_says_with_everything_off(
    tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    model = make_tiny_model(tmp_path / family, family=family, **config)
    expected = tokens_of(model, {})
    assert tokens_of(model, {"flash_attention": {}}) == expected
    # so little KV that rows are preempted
    assert tokens_of(model, {**MIXED, "flash_attention": {}}, kv_bytes=160 * kv_bytes(model)) == expected


def kv_bytes(model: Path) -> int:
    """Of one token, in float64."""
    with LLM(str(model), dtype="float64", plugins={}, max_num_seqs=1) as llm:
        return llm.plan.kv_bytes // (llm.plan.kv_block_size * llm.plan.kv_num_blocks)


# -- the plan -------------------------------------------------------------------------------------------------------


def test_the_plan_says_whose_kernels_and_why(tiny_model: Path) -> None:
    def line(options: dict[str, Any]) -> tuple[str, str]:
        with LLM(str(tiny_model), plugins={"flash_attention": options}) as llm:
            [found] = [line for line in llm.plan.hooks if line.hook == "attention_impl"]
            return found.owner, found.reason

    assert line({}) == ("flash_attention", "sdpa, as this is a CPU")
    assert line({"backend": "sdpa"}) == ("flash_attention", "sdpa, as the config says")


def test_scores_that_are_capped_are_refused_and_not_computed_by_another(tmp_path: Path) -> None:
    model = str(make_tiny_model(tmp_path, family="gemma2"))
    reason = "PyTorch's fused attention cannot cap scores, and this model caps them at 8"
    with pytest.raises(PluginError, match=reason):
        LLM(model, plugins={"flash_attention": {}})


def test_sdpa_is_for_the_cpu() -> None:
    answer = asked(KINDS["a window"], "sdpa", device="cuda")
    assert isinstance(answer, Refusal) and "sdpa is for the CPU, not for cuda" in answer.reasons[0]


# -- memory ---------------------------------------------------------------------------------------------------------

PEAKS = """
import json, sys
from pathlib import Path
import torch
from switchgear import LLM, SamplingParams

model, lengths, plugins = json.loads(sys.argv[1])
torch.set_num_threads(1)

def kilobytes(name):
    return int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0])

peaks = []
params = SamplingParams(max_tokens=1, temperature=0)
with LLM(model, dtype="float32", plugins=plugins, max_num_seqs=1, kv_bytes=32 << 20) as llm:
    for length in lengths:
        Path("/proc/self/clear_refs").write_text("5")
        before = kilobytes("VmRSS")
        llm.generate([[5] * length], params)
        peaks.append(kilobytes("VmHWM") - before)
print(json.dumps(peaks))
"""
"""Kilobytes that each prompt takes at its peak, beside what is there before."""


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("long"), max_position_embeddings=8192))


def peaks(model: str, lengths: list[int], plugins: dict[str, Any]) -> list[int]:
    arguments = [sys.executable, "-c", PEAKS, json.dumps([model, lengths, plugins])]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured: list[int] = json.loads(done.stdout)
    return measured


def test_memory_grows_with_the_prompt_and_without_it_with_its_square(long_model: str) -> None:
    _, eager, eager_twice = peaks(long_model, [64, 1024, 2048], {})
    _, flash, flash_twice = peaks(long_model, [64, 2000, 4000], {"flash_attention": {}})
    assert eager_twice > 2.6 * eager
    # a prompt of 4,000 tokens takes less than one of 1,024 did
    assert flash_twice < eager and flash_twice < 2.2 * flash + NOISE


NOISE = 8 << 10
"""Kilobytes by which an allocator may differ between two runs."""


def test_memory_behind_a_context_is_bounded_by_its_stretches() -> None:
    """A chunk of 2,048 behind 2,048: its scores would be eight million."""
    layer = LayerSpec(4, 2, 16, 0.25)
    step = make_step(layer, [(2048, 4096)], block_size=64, dtype="float32")
    _, parts = impl_of(layer, dtype="float32").plan(step.batch, 0)
    masks = {part.mask.untyped_storage().data_ptr(): part.mask.untyped_storage().nbytes() for part in parts}
    assert len(parts) == 8 and sum(masks.values()) == 4 * sdpa.STRETCH * (4096 + sdpa.STRETCH)
