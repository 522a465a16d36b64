"""flash_attention: what everything-off computes, without its score matrix, and the plan says by whom."""

from __future__ import annotations

from dataclasses import replace
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
from switchgear.kernels.cpu import build
from switchgear.kernels.cpu.library import NotBuilt, Unusable, native
from switchgear.plugins.flash_attention import FlashAttention, sdpa
from switchgear.plugins.flash_attention.native import SHORTEST_PART, NativeAttention
from switchgear.plugins.flash_attention.sdpa import FusedAttention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .ragged import Row, make_step

KINDS = {
    "as many kv heads as heads": LayerSpec(4, 4, 16, 0.25),
    "groups of three": LayerSpec(6, 2, 16, 0.25),
    "one kv head": LayerSpec(5, 1, 20, 0.3),
    "a window": LayerSpec(4, 2, 16, 0.25, window=7),
    "a window of one": LayerSpec(4, 2, 16, 0.25, window=1),
    "an odd head size": LayerSpec(4, 2, 13, 0.2, window=30),
}
CAPPED = {"a soft cap": LayerSpec(6, 2, 16, 0.25, soft_cap=8.0), "both": LayerSpec(4, 2, 16, 0.25, 7, 8.0)}
STEPS: dict[str, list[Row]] = {
    "prompts": [(1, 1), (17, 17), (5, 5), (17, 17), (33, 33)],
    "decode": [(1, 9), (1, 40), (1, 2), (1, 40), (1, 17)],
    "chunks behind a context": [(8, 21), (8, 40), (1, 3), (20, 51)],
    "drafts": [(4, 12), (3, 30), (4, 29), (1, 8)],
    "everything": [(1, 30), (16, 16), (6, 18), (1, 1), (16, 16), (6, 6), (40, 41)],
}
MIXED: Any = {"continuous_batching": {}, "paged_kv": {"block_size": 4}, "prefix_cache": {}}
MIXED |= {"chunked_prefill": {"max_num_batched_tokens": 11, "max_partial_prefills": 2}}


@pytest.fixture(params=["native", "sdpa"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that this machine has. Whoever could build the native kernels and did not is told."""
    try:
        native()
    except Unusable as reason:
        if isinstance(reason, NotBuilt) and build.find_compiler():
            raise
        if request.param == "native":
            pytest.skip(str(reason))
    return str(request.param)


def kinds_for(backend: str) -> dict[str, LayerSpec]:
    return {**KINDS, **CAPPED} if backend == "native" else KINDS


def impl_of(layer: LayerSpec, backend: str = "auto", dtype: str = "float64") -> Any:
    answer = asked(layer, backend, dtype)
    assert not isinstance(answer, Refusal)
    return answer


def asked(
    layer: LayerSpec, backend: str = "auto", dtype: str = "float64", device: str = "cpu", codec: Any = None
) -> Any:
    """What the hook answers."""
    codec = codec or StoredAsComputed(dtype)
    plugin: Any = FlashAttention(FlashAttention.Config(backend=backend))  # type: ignore[arg-type]
    return plugin.attention_impl(layer, codec, Device(device, dtype))


# -- one layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", STEPS)
@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_it_computes_what_everything_off_computes(rows: str, block_size: int, backend: str) -> None:
    for layer in kinds_for(backend).values():
        step = make_step(layer, STEPS[rows], block_size=block_size)
        torch.testing.assert_close(step.run(impl_of(layer, backend)), step.exact(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("max_mask", "stretch"), [(1, 3), (1, 64), (100, 8), (400, 5)])
def test_where_it_cuts_prompts_changes_nothing(
    max_mask: int, stretch: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdpa, "MAX_MASK", max_mask)
    monkeypatch.setattr(sdpa, "STRETCH", stretch)
    for layer in KINDS.values():
        for rows in STEPS.values():
            step = make_step(layer, rows)
            torch.testing.assert_close(step.run(impl_of(layer, backend)), step.exact(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_where_it_cuts_contexts_changes_nothing(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(asked(KINDS["one kv head"], "native"), Refusal):
        pytest.skip("there are no native kernels here")
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    for layer in (KINDS["groups of three"], CAPPED["both"]):
        step = make_step(layer, [(1, 900), (2, 300), (1, 5)], block_size=16)
        impl = impl_of(layer, "native")
        parts = impl.plan(step.batch, 0).merges[:, 2]
        assert parts.max() == (1 if layer.window else -(-900 // max(SHORTEST_PART, -(-1504 // (4 * num_threads)))))
        torch.testing.assert_close(step.run(impl), step.exact(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [1, 1e4])
def test_it_is_as_exact_as_the_eager_form(dtype: str, size: float, backend: str) -> None:
    """The authors' own criterion, also where scores are in the ten thousands."""
    if (backend, dtype) == ("native", "float16"):
        pytest.skip("there are no native kernels for float16")
    for kind, layer in kinds_for(backend).items():
        for seed, rows in enumerate(STEPS.values()):
            step = make_step(layer, rows, dtype=dtype, seed=seed, by=size)
            exact = step.exact()
            error = (step.run(impl_of(layer, backend, dtype)) - exact).abs().max()
            eager = (step.run(step.eager(dtype)) - exact).abs().max()
            # the eager form multiplies before it scales, and float16 has no room for that
            allowed = 2 * eager + 1e-5 if eager.isfinite() else 4e-3
            assert error <= allowed, (kind, rows)


def test_who_else_is_in_the_step_and_in_which_order_changes_nothing(backend: str) -> None:
    rows = STEPS["everything"]
    step = make_step(KINDS["groups of three"], rows)
    impl = impl_of(step.layer, backend)
    whole = step.run(impl)
    for order in ([3], [6, 2, 0], [5, 4, 3, 2, 1, 0, 6]):
        some, tokens = step.of(order)
        torch.testing.assert_close(some.run(impl), whole[tokens], rtol=1e-12, atol=1e-12)


def test_kv_that_lies_in_a_line_is_read_in_place() -> None:
    layer = KINDS["groups of three"]
    step = make_step(layer, [(1, 40)], block_size=64)
    [part] = impl_of(layer, "sdpa").plan(step.batch, 0)[1]
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
        ("gemma2", {}),
        pytest.param("gemma3", {}, marks=pytest.mark.slow),
        pytest.param("mistral", {"num_key_value_heads": 1}, marks=pytest.mark.slow),
    ],
)
def test_every_family_says_what_it_says_with_everything_off(
    tmp_path: Path, family: str, config: dict[str, Any], backend: str
) -> None:
    if (backend, family) == ("sdpa", "gemma2"):
        pytest.skip("PyTorch's fused attention cannot cap scores")
    model = make_tiny_model(tmp_path / family, family=family, **config)
    expected = tokens_of(model, {})
    on: Any = {"flash_attention": {"backend": backend}}
    assert tokens_of(model, on) == expected
    # so little KV that rows are preempted
    assert tokens_of(model, {**MIXED, **on}, kv_bytes=160 * kv_bytes(model)) == expected


def kv_bytes(model: Path) -> int:
    """Of one token, in float64."""
    with LLM(str(model), dtype="float64", plugins={}, max_num_seqs=1) as llm:
        return llm.plan.kv_bytes // (llm.plan.kv_block_size * llm.plan.kv_num_blocks)


# -- the plan -------------------------------------------------------------------------------------------------------


def line_of(model: Path, options: dict[str, Any], **engine: Any) -> tuple[str, str]:
    """Who computes attention, and why, as the plan has it."""
    with LLM(str(model), plugins={"flash_attention": options}, **engine) as llm:
        [found] = [line for line in llm.plan.hooks if line.hook == "attention_impl"]
        return found.owner, found.reason


def test_the_plan_says_whose_kernels_and_why(tiny_model: Path, backend: str) -> None:
    reason = f"{backend}, as the config says"
    assert line_of(tiny_model, {"backend": backend}) == ("flash_attention", reason)
    if backend == "native":
        assert line_of(tiny_model, {}) == ("flash_attention", "native, as this is a CPU")
        reason = "sdpa, since there are no native kernels for float16"
        assert line_of(tiny_model, {}, dtype="float16") == ("flash_attention", reason)


@pytest.mark.usefixtures("_no_library")
def test_without_a_compiler_pytorch_serves_and_the_plan_says_so(tiny_model: Path) -> None:
    owner, reason = line_of(tiny_model, {})
    assert owner == "flash_attention" and reason.startswith("sdpa, since the native kernels are not built; ")
    assert isinstance(impl_of(KINDS["a window"]), FusedAttention)
    with pytest.raises(PluginError, match="the native kernels are not built"):
        LLM(str(tiny_model), plugins={"flash_attention": {"backend": "native"}})


def test_scores_that_are_capped_are_computed_by_the_native_kernels_alone(tmp_path: Path, backend: str) -> None:
    model = make_tiny_model(tmp_path, family="gemma2")
    lack = "PyTorch's fused attention cannot cap scores, and this model caps them at 8"
    if backend == "sdpa":
        with pytest.raises(PluginError, match=lack):
            LLM(str(model), plugins={"flash_attention": {"backend": backend}})
    else:
        assert line_of(model, {}) == ("flash_attention", "native, as this is a CPU")


def test_what_no_backend_can_compute_is_refused_with_the_reasons_of_all(
    _no_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asked(CAPPED["a soft cap"])
    assert isinstance(answer, Refusal) and len(answer.reasons) == 2
    assert "are not built" in answer.reasons[0] and "cannot cap scores" in answer.reasons[1]


def test_kv_in_another_form_is_for_sdpa_alone() -> None:
    codec: Any = StoredAsComputed("float32", name="halved")
    layer, stored = KINDS["a window"], "read KV as it was computed, and here it is stored as halved"
    assert any(stored in reason for reason in asked(layer, "native", "float32", codec=codec).reasons)
    assert any(stored in reason for reason in asked(layer, "triton", "float32", codec=codec).reasons)
    answer = asked(layer, dtype="float32", codec=codec)
    assert isinstance(answer, FusedAttention) and stored in answer.reason


def test_the_kernels_for_the_cpu_refuse_other_devices() -> None:
    for backend, reason in (("sdpa", "sdpa is for the CPU"), ("native", "the native kernels are for the CPU")):
        answer = asked(KINDS["a window"], backend, device="cuda")
        assert isinstance(answer, Refusal) and f"{reason}, not for cuda" in answer.reasons[0]


# -- memory ---------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """How many elements the largest tensor has that any operation of PyTorch makes."""

    num_elements: int = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self.num_elements = max(self.num_elements, each.numel())
        return result


def largest(layer: LayerSpec, row: Row, impl: Any) -> int:
    """Elements of the largest tensor of one step of one layer, the step's plan included."""
    step = make_step(layer, [row], block_size=64, dtype="float32")
    with Largest() as seen:
        step.run(impl)
    return int(seen.num_elements)


@pytest.mark.parametrize("row", [(320, 320), (200, 320)], ids=["prompt", "chunk behind a context"])
@pytest.mark.parametrize("kind", ["groups of three", "an odd head size", "a soft cap"])
def test_the_score_matrix_never_exists(kind: str, row: Row, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the tokens take twice the memory, where the eager form takes four times as much."""
    if (backend, kind) == ("sdpa", "a soft cap"):
        pytest.skip("PyTorch's fused attention cannot cap scores")
    monkeypatch.setattr(sdpa, "MAX_MASK", 1 << 12)
    monkeypatch.setattr(sdpa, "STRETCH", 32)
    layer, twice = replace({**KINDS, **CAPPED}[kind], window=None), (2 * row[0], 2 * row[1])
    impl, eager = impl_of(layer, backend, "float32"), make_step(layer, [(1, 1)]).eager("float32")
    scores = layer.num_heads * row[0] * row[1]
    assert largest(layer, row, eager) >= scores and largest(layer, twice, eager) >= 4 * scores
    assert largest(layer, row, impl) <= scores / 4
    assert largest(layer, twice, impl) <= 2.2 * largest(layer, row, impl)


def test_an_engine_never_holds_the_score_matrix(tmp_path: Path, backend: str) -> None:
    model = str(make_tiny_model(tmp_path, max_position_embeddings=2048, num_hidden_layers=1))
    plugins: dict[str, Any] = {"flash_attention": {"backend": backend}}

    def elements(length: int, plugins: Any) -> int:
        params = SamplingParams(max_tokens=1, temperature=0)
        options: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": length + 1}
        with LLM(model, dtype="float32", plugins=plugins, **options) as llm, Largest() as seen:
            llm.generate([[5] * length], params)
        return int(seen.num_elements)

    assert elements(600, {}) >= 4 * 600**2
    once = elements(600, plugins)
    assert once < 600**2 and elements(1200, plugins) <= 2.2 * once


def test_memory_behind_a_context_is_bounded_by_its_stretches() -> None:
    """A chunk of 2,048 behind 2,048: its scores would be eight million."""
    layer = LayerSpec(4, 2, 16, 0.25)
    step = make_step(layer, [(2048, 4096)], block_size=64, dtype="float32")
    _, parts = impl_of(layer, "sdpa", "float32").plan(step.batch, 0)
    masks = {part.mask.untyped_storage().data_ptr(): part.mask.untyped_storage().nbytes() for part in parts}
    assert len(parts) == 8 and sum(masks.values()) == 4 * sdpa.STRETCH * (4096 + sdpa.STRETCH)


def test_the_native_kernels_take_memory_by_the_query_and_the_thread(backend: str) -> None:
    """Whatever the context: a state for each query, and for each part of a context that is divided."""
    if backend != "native":
        pytest.skip("its working memory is PyTorch's own")
    layer = KINDS["groups of three"]
    impl = impl_of(layer, "native", "bfloat16")
    assert isinstance(impl, NativeAttention)
    for context in (2000, 64000):
        step = make_step(layer, [(1, context)] * 3, block_size=64, dtype="bfloat16")
        states = impl.new_states(impl.plan(step.batch, 0))
        assert len(states) <= 3 + 4 * torch.get_num_threads() and states.shape[1:] == (6, 2 * 16 + 2)
