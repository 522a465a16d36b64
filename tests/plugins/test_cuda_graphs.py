"""cuda_graphs: decode steps are replayed, padded and refilled, and nobody gets another token for it.

There is no GPU here: the recorder of these tests calls again what was recorded. What CUDA makes of it is for
`tests/gpu/run.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.config import PluginConfig
from switchgear.core.errors import PluginError
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import Linear
from switchgear.core.records import TOKEN_EQUAL, Batch, LinearSpec
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.plugins import cuda_graphs
from switchgear.plugins.cuda_graphs import CudaGraphs, CudaRecorder, default_sizes

from .recorded import CLASSES, ON, GraphsOnCPU
from .test_flash_attention import MIXED, kv_bytes

TESTS = Path(__file__).resolve().parents[1]
PROMPTS = [[3 + 7 * index % 450 for index in range(length)] for length in (14, 17, 1, 40, 2)]
PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


def engine(model: Path, plugins: Any = ON, **options: Any) -> LLM:
    options = {"dtype": "float64", "max_num_seqs": 4, **options}
    classes = (*CLASSES, *options.pop("classes", ()))
    return LLM(str(model), plugins=plugins, plugin_classes=classes, **options)


def tokens(llm: LLM) -> list[Any]:
    """Twice, so that a cache is warm the second time; rows begin and end at different steps."""
    lengths = [replace(PARAMS, max_tokens=count) for count in (12, 3, 9, 5, 12)]
    results = [*llm.generate(PROMPTS, lengths), *llm.generate(PROMPTS, lengths)]
    assert llm.audit() == []
    return [(result.error, result.token_ids) for result in results]


def executor_of(llm: LLM) -> Any:
    return llm._engine.executor


# -- the same tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen2"])
@pytest.mark.parametrize("beside", ["alone", "mixed"])
def test_replayed_steps_say_what_everything_off_says(tmp_path: Path, family: str, beside: str) -> None:
    model = make_tiny_model(tmp_path / "model", family=family)
    with LLM(str(model), dtype="float64", plugins={}, max_num_seqs=4) as llm:
        expected = tokens(llm)
    plugins = ON if beside == "alone" else {**MIXED, **ON}
    # so little KV that rows are preempted
    options = {} if beside == "alone" else {"kv_bytes": 120 * kv_bytes(model)}
    with engine(model, plugins, **options) as llm:
        assert tokens(llm) == expected
        stats = executor_of(llm).stats()
    assert stats["graphs"] == 3 and stats["captured_steps"] > stats["eager_steps"] > 0 and stats["padded_rows"] > 0


def check_that_samples_agree(engines: Iterable[LLM]) -> None:
    """Of two engines: the same seeded tokens, and nearly the same log probabilities."""
    params = SamplingParams(max_tokens=8, temperature=0.8, seed=5, n=3, logprobs=2, ignore_eos=True)
    answers = []
    for each in engines:
        with each as llm:
            [result] = llm.generate([PROMPTS[0]], params)
            answers.append([(choice.token_ids, choice.logprobs) for choice in result.choices])
    for off, on in zip(*answers, strict=True):
        assert off[0] == on[0]
        for one, other in zip(off[1], on[1], strict=True):
            assert abs(one.chosen.logprob - other.chosen.logprob) < 1e-9


def test_sampled_tokens_and_their_probabilities_are_the_same(tiny_model: Path) -> None:
    check_that_samples_agree(engine(tiny_model, plugins) for plugins in ({}, ON))


def test_more_rows_than_any_graph_has_run_without_one(tiny_model: Path) -> None:
    on: Any = {**ON, "cuda_graphs": {**ON["cuda_graphs"], "batch_sizes": [2, 1, 2]}}
    with engine(tiny_model, {}) as off, engine(tiny_model, on) as llm:
        assert off.generate(PROMPTS[:4], PARAMS)[3].token_ids == llm.generate(PROMPTS[:4], PARAMS)[3].token_ids
        stats = executor_of(llm).stats()
        assert (stats["captured_steps"], stats["eager_steps"], stats["graphs"]) == (0, 12, 2)
        llm.generate(PROMPTS[:2], PARAMS)
        assert executor_of(llm).stats()["captured_steps"] == 11


def test_what_asks_for_more_than_logits_runs_without_a_graph(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        scoring = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
        # a prompt of one token is a decode step, unless it is scored or pooled
        llm.generate([[7]], replace(scoring, prompt_logprobs=None))
        assert executor_of(llm).stats()["captured_steps"] == 1
        llm.generate([[7, 8]], scoring)
        llm.embed([[7]])
        assert (executor_of(llm).stats()["captured_steps"], executor_of(llm).stats()["eager_steps"]) == (1, 2)


# -- what a replay reads and writes ---------------------------------------------------------------------------------


def decode_batch(num_rows: int, step: int, context: int = 5, block_size: int = 512) -> Batch:
    """Rows in slots of their own, the last token of each computed now."""
    ones = np.ones(num_rows, dtype=np.int64)
    return Batch(
        step=step,
        rows=np.arange(num_rows),
        token_ids=np.arange(num_rows) + 30 + step,
        positions=ones * (context - 1),
        query_start=np.arange(num_rows + 1),
        context_lens=ones * context,
        num_drafts=ones * 0,
        block_tables=(np.arange(num_rows)[:, None],),
        slots=(np.arange(num_rows) * block_size + context - 1,),
        block_size=block_size,
        copies=(),
        outputs=np.arange(num_rows),
        scored=ones[:0],
        targets=ones[:0],
    )


def test_rows_of_padding_write_into_the_scratch_block_and_nowhere_else(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        executor = executor_of(llm)
        caches = executor.worker.caches
        num_blocks = llm.plan.kv_num_blocks
        assert executor.scratch == (num_blocks,) and len(caches[0].k) == num_blocks + 1
        executor.collect(executor.submit(decode_batch(3, 0)))
        for cache in caches:
            written = [int(cache.k[block].any(-1).any(-1).sum()) for block in range(num_blocks)]
            assert written == [1, 1, 1, *[0] * (num_blocks - 3)]
            assert cache.k[num_blocks, 0].any()


def test_a_step_keeps_its_logits_when_the_next_is_replayed(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        executor = executor_of(llm)
        eager = executor.worker.run
        first, second = decode_batch(3, 0), decode_batch(2, 1)
        some = replace(decode_batch(4, 2), outputs=np.array([1, 3]))
        expected = [eager(batch).logits for batch in (first, second, some)]
        tickets = [executor.submit(batch) for batch in (first, second, some)]
        for ticket, logits in zip(tickets, expected, strict=True):
            torch.testing.assert_close(executor.collect(ticket).logits, logits, rtol=1e-12, atol=1e-12)
        assert executor.results == {}


# -- sizes, memory, the plan ----------------------------------------------------------------------------------------


def test_sizes_leave_little_padding() -> None:
    assert default_sizes(1) == (1,) and default_sizes(3) == (1, 2, 3)
    assert default_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    for most in (100, 256, 1000):
        sizes = default_sizes(most)
        assert sizes[-1] == most and list(sizes) == sorted(set(sizes))
        assert all(larger - size <= max(8, size / 8) for size, larger in pairwise(sizes))


def test_the_plan_says_which_steps_are_replayed_and_pays_for_them_from_the_kv(tiny_model: Path) -> None:
    kv = 40 * kv_bytes(tiny_model) * 16
    paged: Any = {"paged_kv": {"block_size": 16}}
    with engine(tiny_model, {**paged, "masked": {}}, kv_bytes=kv) as llm:
        assert llm.plan.kv_num_blocks == 40
        block_bytes = llm.plan.kv_bytes // 40
    on: Any = {**paged, **ON, "cuda_graphs": {"memory_bytes": 3 * block_bytes}}
    with engine(tiny_model, on, kv_bytes=kv, max_num_seqs=8) as llm:
        assert llm.plan.kv_num_blocks == 36
        [line] = [line for line in llm.plan.hooks if line.hook == "execute" and line.owner == "cuda_graphs"]
        assert line.reason.startswith("decode steps of up to 8 rows in 4 graphs, other steps without")
        assert llm.stats()["cuda_graphs"]["graphs"] == 4


def test_graphs_that_take_more_than_they_may_are_an_error(tiny_model: Path) -> None:
    class Large(GraphsOnCPU):
        bytes_each = 100

    on: Any = {**ON, "cuda_graphs": {"memory_bytes": 250}}
    text = "took 300 bytes for the graph of 1 rows and those above, and may take 250: raise its memory_bytes"
    with pytest.raises(PluginError, match=text):
        LLM(str(tiny_model), plugins=on, plugin_classes=(CLASSES[0], Large), max_num_seqs=4)
    on["cuda_graphs"]["memory_bytes"] = 300
    with LLM(str(tiny_model), plugins=on, plugin_classes=(CLASSES[0], Large), max_num_seqs=4) as llm:
        assert llm.stats()["cuda_graphs"]["graph_bytes"] == 300


def test_more_rows_than_may_run_are_refused(tiny_model: Path) -> None:
    on: Any = {**ON, "cuda_graphs": {"batch_sizes": [1, 8]}}
    with pytest.raises(PluginError, match="batch_sizes holds 8, and at most 4 sequences run at once"):
        engine(tiny_model, on)


# -- what cannot be replayed is refused -----------------------------------------------------------------------------


def refusal(model: Path, plugins: Any, *classes: type) -> str:
    with pytest.raises(PluginError) as error:
        engine(model, plugins, classes=classes)
    return str(error.value)


def test_attention_that_goes_by_each_steps_shapes(tiny_model: Path) -> None:
    text = refusal(tiny_model, {"cuda_graphs": {}})
    assert "plugin 'cuda_graphs' is on and has no effect here: the attention of core goes by each step's own" in text
    by_pytorch = {"flash_attention": {"backend": "sdpa"}, "cuda_graphs": {}}
    assert "attention of flash_attention" in refusal(tiny_model, by_pytorch)
    with engine(tiny_model, {"cuda_graphs": {}}, allow_degrade=True) as llm:
        assert "goes by each step's own shapes" in llm.plan.degraded["cuda_graphs"]
        assert llm.stats()["cuda_graphs"] == {}


def test_experts_that_ask_the_host(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", family="mixtral")
    assert "the plain experts ask the host where each token goes" in refusal(model, ON)


class Around:
    """Puts something around a linear."""

    name = "around"
    equivalence = TOKEN_EQUAL
    hook_api = (1, 0)

    class Config(PluginConfig):
        says: bool = False
        """Whether it says that it can be recorded."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def wrap_linear(self, spec: LinearSpec, linear: Linear) -> Any:
        def around(x: torch.Tensor) -> torch.Tensor:
            return linear(x)

        around.is_capturable = self.config.says  # type: ignore[attr-defined]
        return around if spec.kind == "o" else None


def test_what_is_around_a_linear_and_does_not_say_that_it_can_be(tiny_model: Path) -> None:
    text = refusal(tiny_model, {"around": {}, **ON}, Around)
    assert "a plugin put around model.layers.0.self_attn.o_proj does not say" in text
    with engine(tiny_model, {"around": {"says": True}, **ON}, classes=(Around,)) as llm:
        assert llm.stats()["cuda_graphs"]["graphs"] == 3


class Between:
    """Stands around the executor."""

    name = "between"
    equivalence = TOKEN_EQUAL
    hook_api = (1, 0)

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...

    @hookimpl
    def execute(self, inner: Any) -> Any:
        return Outer(inner)


class Outer:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_an_executor_whose_steps_would_be_taken_from_it(tiny_model: Path) -> None:
    assert "no wrapper of `execute` before them" in refusal(tiny_model, {"between": {}, **ON}, Between)
    # around it, it sees them all
    with engine(tiny_model, {**ON, "between": {}}, classes=(Between,)) as llm:
        assert llm.stats()["cuda_graphs"]["graphs"] == 3


def test_a_processor(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on: Any = {"flash_attention": {}, "cuda_graphs": {}}
    reason = CudaGraphs.unavailable()
    if reason:
        assert reason.startswith("CUDA graphs need a CUDA device: ")
        with pytest.raises(PluginError, match=reason):
            LLM(str(tiny_model), plugins=on, plugin_classes=(CudaGraphs,))
    monkeypatch.setattr(CudaGraphs, "unavailable", staticmethod(str))
    with pytest.raises(PluginError, match=r"CUDA graphs need a CUDA device, and \[model\] device is cpu"):
        LLM(str(tiny_model), plugins=on, plugin_classes=(CudaGraphs,))


# -- CUDA, as far as it goes without ---------------------------------------------------------------------------------


class FakeCUDA:
    """What the recorder asks of `torch.cuda`, in the order in which it does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.free = iter((1000, 900, 850))
        self.CUDAGraph = lambda: self

    def Stream(self) -> FakeCUDA:
        return self

    current_stream = Stream

    def graph_pool_handle(self) -> str:
        return "pool"

    def wait_stream(self, stream: FakeCUDA) -> None:
        self.log.append("wait")

    def stream(self, stream: FakeCUDA) -> Any:
        self.log.append("side stream")
        return nullcontext()

    def graph(self, graph: FakeCUDA, pool: str, stream: FakeCUDA) -> Any:
        self.log.append(f"record into {pool}")
        return nullcontext()

    def replay(self) -> None:
        self.log.append("replay")

    def synchronize(self) -> None: ...

    def empty_cache(self) -> None: ...

    def mem_get_info(self) -> tuple[int, int]:
        return next(self.free), 2000


def test_kernels_are_loaded_before_anything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCUDA()
    monkeypatch.setattr(torch, "cuda", fake)
    recorder = CudaRecorder()

    def call() -> torch.Tensor:
        fake.log.append("call")
        return torch.ones(2)

    recording = recorder.record(call)
    assert fake.log == ["wait", "side stream", *["call"] * cuda_graphs.NUM_WARM_UPS, "wait", "record into pool", "call"]
    recording.replay()
    assert fake.log[-1] == "replay" and recording.output.tolist() == [1, 1]
    assert recorder.num_bytes() == 100
    recorder.record(call)
    assert recorder.num_bytes() == 150


@pytest.mark.slow
def test_the_triton_kernels_are_replayed_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = str(TESTS / "plugins" / "interpreted_graphs.py")
    done = subprocess.run([*arguments, file], cwd=TESTS.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
