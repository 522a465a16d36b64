"""cpu_graphs: replayed steps are those that would have been computed, to the last bit, and what cannot be is told."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from switchgear.core.model import ops
from switchgear.core.records import TOKEN_EQUAL, Batch, LinearSpec, Refusal
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.plugins.cpu_graphs import CPUGraphs, widened

from .test_cuda_graphs import (
    PARAMS,
    PROMPTS,
    Between,
    check_that_samples_agree,
    decode_batch,
    executor_of,
    tokens,
)
from .test_flash_attention import MIXED, kv_bytes

Plugins = Mapping[str, Mapping[str, Any]]
AT_ONCE: Mapping[str, Any] = {"record_after": 0}
ON: Plugins = {"flash_attention": {}, "native_cpu": {}, "cpu_graphs": AT_ONCE}


@pytest.fixture(autouse=True)
def _where_native_kernels_run(request: pytest.FixtureRequest) -> None:
    reason = "" if "_no_library" in request.fixturenames else CPUGraphs.unavailable()
    if reason:
        pytest.skip(reason)


def engine(model: Path, plugins: Plugins = ON, **options: Any) -> LLM:
    return LLM(str(model), plugins=plugins, **{"dtype": "float64", "max_num_seqs": 4, **options})


# -- the same tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen2"])
@pytest.mark.parametrize("beside", ["alone", "mixed"])
def test_replayed_steps_say_what_everything_off_says(tmp_path: Path, family: str, beside: str) -> None:
    model = make_tiny_model(tmp_path / "model", family=family)
    with engine(model, {}) as llm:
        expected = tokens(llm)
    plugins = ON if beside == "alone" else {**MIXED, **ON}
    # so little KV that rows are preempted
    options = {} if beside == "alone" else {"kv_bytes": 120 * kv_bytes(model)}
    with engine(model, plugins, **options) as llm:
        assert tokens(llm) == expected
        stats = llm.stats()["cpu_graphs"]
    assert stats["replayed_steps"] > stats["eager_steps"] > 0 and not stats["is_off"]
    assert 3 <= stats["graphs"] == stats["recorded_steps"] <= 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tokens_are_those_of_the_same_kernels_without_recordings(tiny_model: Path, dtype: str) -> None:
    answers = []
    for plugins in (ON, {"flash_attention": {}, "native_cpu": {}}):
        with engine(tiny_model, plugins, dtype=dtype) as llm:
            answers.append(tokens(llm))
    assert answers[0] == answers[1]


def test_without_native_linears_what_pytorch_computes_is_replayed(tiny_model: Path) -> None:
    with engine(tiny_model, {}) as llm:
        expected = tokens(llm)
    with engine(tiny_model, {"flash_attention": {}, "cpu_graphs": AT_ONCE}) as llm:
        assert tokens(llm) == expected
        assert llm.stats()["cpu_graphs"]["replayed_steps"] > 20


def test_sampled_tokens_and_their_probabilities_are_the_same(tiny_model: Path) -> None:
    check_that_samples_agree(engine(tiny_model, plugins) for plugins in ({}, ON))


def test_what_asks_for_more_than_logits_is_not_replayed(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        # a prompt of one token is a decode step, unless it is scored or pooled
        one = SamplingParams(max_tokens=1, temperature=0)
        for _ in range(3):
            llm.generate([[7]], one)
        stats = executor_of(llm).stats()
        # of one row a step was recorded at the start
        assert (stats["recorded_steps"], stats["replayed_steps"], stats["eager_steps"]) == (1, 3, 0)
        executor = executor_of(llm)
        # a chunk of one token whose prompt is scored
        scored = replace(decode_batch(1, 9), scored=np.array([0]), targets=np.array([5]))
        assert executor.collect(executor.submit(scored)).scores is not None
        llm.embed([[7]])
        stats = executor.stats()
        assert (stats["recorded_steps"], stats["replayed_steps"], stats["eager_steps"]) == (1, 3, 2)


# -- what a replay reads and writes ---------------------------------------------------------------------------------


def steps_of(num_steps: int, seed: int = 0, most_rows: int = 4) -> list[Batch]:
    """Decode steps of changing numbers of rows, contexts and tokens."""
    random = np.random.default_rng(seed)
    return [
        decode_batch(int(random.integers(1, most_rows + 1)), step, context=int(random.integers(1, 400)))
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_logits_are_those_of_the_step_itself_to_the_last_bit(tiny_model: Path, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with (
            engine(tiny_model, dtype="bfloat16", max_model_len=512) as llm,
            engine(
                tiny_model, {"flash_attention": {}, "native_cpu": {}}, dtype="bfloat16", max_model_len=512
            ) as without,
        ):
            replaying, eager = executor_of(llm), executor_of(without)
            for cache in replaying.worker.caches:
                # these contexts were never computed: they are what lies there, and a step was tried at the start
                cache.k.zero_()
                cache.v.zero_()
            for batch in steps_of(60):
                logits = replaying.collect(replaying.submit(batch)).logits
                assert torch.equal(logits, eager.collect(eager.submit(batch)).logits)
            assert replaying.stats()["replayed_steps"] == 57
            for one, other in zip(replaying.worker.caches, eager.worker.caches, strict=True):
                assert torch.equal(one.k, other.k) and torch.equal(one.v, other.v)
    finally:
        torch.set_num_threads(before)


def test_a_step_keeps_its_logits_when_the_next_is_replayed(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        executor = executor_of(llm)
        batches = [decode_batch(3, 0), decode_batch(2, 1), decode_batch(3, 2), decode_batch(3, 3), decode_batch(2, 4)]
        batches.append(replace(decode_batch(4, 5), outputs=np.array([1, 3])))
        batches.append(replace(decode_batch(4, 6), outputs=np.array([0])))
        expected = [executor.worker.run(batch).logits for batch in batches]
        tickets = [executor.submit(batch) for batch in batches]
        for ticket, logits in zip(tickets, expected, strict=True):
            assert torch.equal(executor.collect(ticket).logits, logits)
        assert executor.results == {}


def test_numbers_of_a_step_may_change_once_it_is_submitted(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        executor = executor_of(llm)
        expected = executor.worker.run(decode_batch(2, 5)).logits
        first = decode_batch(2, 0)
        executor.submit(first)
        for array in (first.token_ids, first.positions, *first.slots, *first.block_tables):
            array.fill(0)
        assert torch.equal(executor.collect(executor.submit(decode_batch(2, 5))).logits, expected)


def test_recordings_share_their_working_memory(tiny_model: Path) -> None:
    with engine(tiny_model, max_num_seqs=32) as llm:
        executor = executor_of(llm)
        executor.collect(executor.submit(decode_batch(32, 0)))
        alone = executor.stats()["working_bytes"]
        for num_rows in range(1, 33):
            executor.collect(executor.submit(decode_batch(num_rows, num_rows)))
        stats = executor.stats()
        # sizes are powers of two: all smaller ones together are no larger than the largest
        assert stats["graphs"] == 32 and stats["working_bytes"] < 2.5 * alone


def test_the_least_used_recording_goes_first(tiny_model: Path) -> None:
    with engine(tiny_model, {**ON, "cpu_graphs": {**AT_ONCE, "max_graphs": 2}}) as llm:
        executor = executor_of(llm)
        for step, num_rows in enumerate([1, 2, 1, 3, 1, 2]):
            executor.collect(executor.submit(decode_batch(num_rows, step)))
        assert [key[0] for key in executor.graphs] == [1, 2]
        assert (executor.stats()["recorded_steps"], executor.stats()["replayed_steps"]) == (4, 3)


def test_tables_have_few_widths(tiny_model: Path) -> None:
    with engine(tiny_model, {"paged_kv": {"block_size": 1}, **ON}, max_model_len=300) as llm:
        widths = {widened(np.zeros((2, width), dtype=np.int64), 300).shape[1] for width in range(1, 301)}
        assert widths == {64, 128, 256, 300}
        assert executor_of(llm).max_width == 300


# -- what cannot be replayed is told ----------------------------------------------------------------------------------


def refusal(model: Path, plugins: Plugins, *classes: type) -> str:
    with pytest.raises(PluginError) as error:
        engine(model, plugins, plugin_classes=(CPUGraphs, *classes))
    return str(error.value)


class Plain:
    """A plugin without options."""

    equivalence = TOKEN_EQUAL
    hook_api = (1, 0)

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None: ...


class Around(Plain):
    """Puts something around a linear that says it can be recorded."""

    name = "around"
    make: Callable[[Linear], Linear]

    @hookimpl
    def wrap_linear(self, spec: LinearSpec, linear: Linear) -> Any:
        if spec.kind != "o" or spec.layer != 1:
            return None
        around = type(self).make(linear)
        around.is_capturable = True  # type: ignore[attr-defined]
        return around


def by_the_host(linear: Linear) -> Linear:
    """Doubles by arithmetic that neither PyTorch nor the library sees."""

    def around(x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        numbers = np.ctypeslib.as_array(ctypes.cast(y.data_ptr(), ctypes.POINTER(ctypes.c_double)), y.shape)
        np.multiply(numbers, 2.0, out=numbers)
        return y

    return around


def by_a_number(linear: Linear) -> Linear:
    """Asks for a number of the step."""

    def around(x: torch.Tensor) -> torch.Tensor:
        return linear(x) * (2.0 if x.sum().item() > 0 else 3.0)

    return around


def by_pytorch(linear: Linear) -> Linear:
    """Operations of PyTorch of every kind: new tensors, views, in place, constants."""

    def around(x: torch.Tensor) -> torch.Tensor:
        y = linear(x).clone()
        y[:, ::2] += torch.tensor([0.5], dtype=y.dtype)
        values, places = y.view(len(y), -1).max(-1, keepdim=True)
        y.scatter_(1, places, values * 2)
        first, second = (torch.relu(part) for part in y.chunk(2, -1))
        return torch.cat((first, second, torch.zeros(len(y), 0, dtype=y.dtype)), -1).reshape(y.shape)

    return around


def around(make: Callable[[Linear], Linear]) -> type:
    return type("Around", (Around,), {"make": staticmethod(make)})


WITH_AROUND: Plugins = {"around": {}, **ON}


def test_work_that_is_not_seen_is_found_out_at_start(tiny_model: Path) -> None:
    text = refusal(tiny_model, WITH_AROUND, around(by_the_host))
    assert text.startswith("plugin 'cpu_graphs' cannot replay a step: something in the step is neither a native kernel")
    assert text.endswith("switch it off")


def test_a_number_for_the_host_is_found_out_at_start(tiny_model: Path) -> None:
    text = refusal(tiny_model, WITH_AROUND, around(by_a_number))
    assert "cannot record a step: aten.item.default leaves to the host what is computed next" in text


def test_whatever_pytorch_computes_is_replayed(tiny_model: Path) -> None:
    made = around(by_pytorch)
    with engine(tiny_model, {"around": {}}, plugin_classes=(made,)) as llm:
        expected = tokens(llm)
    with engine(tiny_model, WITH_AROUND, plugin_classes=(CPUGraphs, made)) as llm:
        assert tokens(llm) == expected
        assert llm.stats()["cpu_graphs"]["replayed_steps"] > 20 and not llm.stats()["cpu_graphs"]["is_off"]


@pytest.mark.parametrize("make", [by_the_host, by_a_number])
def test_what_shows_only_with_more_rows_ends_all_replays(
    tiny_model: Path, make: Callable[[Linear], Linear], caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens stay right: those of the step that gave it away, and of all after it."""

    def from_three_rows(linear: Linear) -> Linear:
        other = make(linear)
        return lambda x: other(x) if len(x) == 3 else linear(x)

    made = around(from_three_rows)
    with engine(tiny_model, {"around": {}}, plugin_classes=(made,)) as llm:
        expected = tokens(llm)
    with engine(tiny_model, WITH_AROUND, plugin_classes=(CPUGraphs, made)) as llm:
        assert tokens(llm) == expected
        assert llm.stats()["cpu_graphs"]["is_off"]
    [record] = [record for record in caplog.records if record.name.endswith("cpu_graphs")]
    assert record.message.startswith("cpu_graphs replays no more steps: ")


def test_attention_that_goes_by_each_steps_shapes(tiny_model: Path) -> None:
    text = refusal(tiny_model, {"flash_attention": {"backend": "sdpa"}, "cpu_graphs": {}})
    assert "has no effect here: the attention of flash_attention goes by each step's own shapes" in text


def test_an_executor_whose_steps_would_be_taken_from_it(tiny_model: Path) -> None:
    assert "no wrapper of `execute` before them" in refusal(tiny_model, {"between": {}, **ON}, Between)
    # around it, it sees them all
    with engine(tiny_model, {**ON, "between": {}}, plugin_classes=(CPUGraphs, Between)) as llm:
        llm.generate(PROMPTS[:1], PARAMS)
        assert llm.stats()["cpu_graphs"]["replayed_steps"] == 11


@pytest.mark.usefixtures("_no_library")
def test_without_the_library_it_says_what_helps(tiny_model: Path) -> None:
    text = refusal(tiny_model, {"flash_attention": {}, "cpu_graphs": {}})
    assert "the native kernels are not built; with a C++ compiler at hand, run:" in text


def test_a_gpu_is_refused(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        inner = executor_of(llm).inner
        worker = inner.worker
        device = worker.device
        worker.device = replace(device, type="cuda")
        answer = CPUGraphs(CPUGraphs.Config()).execute(inner)
        worker.device = device
    assert isinstance(answer, Refusal)
    assert answer.reasons == ("native kernels are recorded, and those are for the CPU, not for cuda",)


def test_the_plan_says_what_is_replayed(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        [line] = [line for line in llm.plan.hooks if line.hook == "execute" and line.owner == "cpu_graphs"]
        assert line.reason.startswith("decode steps, each number of rows from its second time on; other steps without")
    with engine(tiny_model, {**ON, "cpu_graphs": {}}) as llm:
        assert "decode steps, each number of rows once it came 16 times; other steps without" in str(llm.plan)


def test_a_step_is_recorded_once_it_came_often(tiny_model: Path) -> None:
    with engine(tiny_model, {**ON, "cpu_graphs": {"record_after": 3}}) as llm:
        executor = executor_of(llm)
        # of one row a step was recorded at the start
        counts = []
        for step in range(8):
            executor.collect(executor.submit(decode_batch(2, step)))
            counts.append(tuple(executor.stats()[f"{kind}_steps"] for kind in ("eager", "recorded", "replayed")))
        assert counts == [(1, 1, 0), (2, 1, 0), (3, 1, 0), (3, 2, 0), (3, 2, 1), (3, 2, 2), (3, 2, 3), (3, 2, 4)]
        executor.collect(executor.submit(decode_batch(1, 9)))
        assert executor.stats()["replayed_steps"] == 5


def test_another_number_of_threads_is_another_recording(tiny_model: Path) -> None:
    before = torch.get_num_threads()
    with engine(tiny_model) as llm:
        executor = executor_of(llm)
        try:
            for step, num_threads in enumerate([1, 2, 1, 2, 1, 2, 3, 3]):
                torch.set_num_threads(num_threads)
                batch = decode_batch(2, step)
                logits = executor.collect(executor.submit(batch)).logits
                assert torch.equal(logits, executor.worker.run(batch).logits)
        finally:
            torch.set_num_threads(before)
        assert (executor.stats()["recorded_steps"], executor.stats()["replayed_steps"]) == (4, 5)


class Cached(Plain):
    """Multiplies by a table that it makes when it is first asked."""

    name = "cached"
    table: torch.Tensor | None = None

    @hookimpl
    def wrap_linear(self, spec: LinearSpec, linear: Linear) -> Any:
        if spec.kind != "o":
            return None

        def around(x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)
            return linear(x * self.table)

        around.is_capturable = True  # type: ignore[attr-defined]
        return around


def test_what_a_plugin_makes_once_and_keeps_is_not_working_memory(tiny_model: Path) -> None:
    with engine(tiny_model, {"cached": {}}, plugin_classes=(Cached,)) as llm:
        expected = tokens(llm)
    with engine(tiny_model, {"cached": {}, **ON}, plugin_classes=(CPUGraphs, Cached)) as llm:
        assert tokens(llm) == expected
        assert llm.stats()["cpu_graphs"]["replayed_steps"] > 20 and not llm.stats()["cpu_graphs"]["is_off"]


def test_a_kernel_on_queries_alone_that_is_not_seen_is_found_out(tiny_model: Path) -> None:
    """Which no step of a single key could tell."""

    class Turned(Plain):
        name = "turned"

        @hookimpl
        def fused_ops(self, op: str) -> Any:
            if op != "rope_and_cache":
                return None

            def rope_and_cache(
                q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *rest: Any
            ) -> torch.Tensor:
                k_cache, v_cache, slots = rest
                ops.rope_and_cache(q, k, v, cos, sin, k_cache.transpose(1, 2), v_cache.transpose(1, 2), slots)
                turned = ops.rope(q, cos, sin).clone()
                out = torch.empty_like(turned)
                ctypes.memmove(out.data_ptr(), turned.data_ptr(), out.nbytes)
                return out

            rope_and_cache.layouts = ("NSKD",)  # type: ignore[attr-defined]
            return rope_and_cache

    text = refusal(tiny_model, {"turned": {}, **ON}, Turned)
    assert "cannot replay a step" in text
