"""Bytes and operations against closed forms, and against what torch counts while our decoder runs."""

from pathlib import Path

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.lab.work import StepShape, Work, step_work, weight_bytes
from switchgear.core.model.architectures import model_spec
from switchgear.core.model.spec import ModelSpec
from switchgear.core.testing.tiny import tiny_config
from torch.utils.flop_counter import FlopCounterMode

LAYERS, E, F, V, H, K, D = 2, 64, 128, 512, 4, 2, 16
"""Of the tiny model, whose cells are written out below."""
LAYER_WEIGHTS = E * (H + 2 * K) * D + H * D * E + 3 * E * F
FLOAT32 = 4


def spec_of(family: str = "llama", **overrides: object) -> ModelSpec:
    return model_spec("tiny", tiny_config(family, **overrides), frozenset({2}))


def test_a_decode_step_reads_the_weights_and_the_kv_once() -> None:
    num_rows, before = 3, 40
    work = step_work(spec_of(), FLOAT32, StepShape(num_rows, 1, before))
    kv = num_rows * (before + 1) * LAYERS * 2 * K * D
    weights = LAYERS * LAYER_WEIGHTS + E * V
    assert work.num_bytes == FLOAT32 * (weights + kv)
    assert work.num_flops == num_rows * (2 * weights + LAYERS * 4 * H * D * (before + 1))


def test_a_prompt_attends_to_what_is_before_and_has_one_row_of_logits() -> None:
    length = 10
    work = step_work(spec_of(), FLOAT32, StepShape(1, length))
    linears = length * LAYERS * 2 * LAYER_WEIGHTS + 2 * E * V
    assert work.num_flops == linears + LAYERS * 4 * H * D * length * (length + 1) // 2
    assert work.num_bytes == FLOAT32 * (LAYERS * LAYER_WEIGHTS + E * V + length * LAYERS * 2 * K * D)


def test_a_chunk_costs_what_the_prompt_costs_less_the_first_part() -> None:
    spec, whole = spec_of(), StepShape(1, 30)
    first, rest = StepShape(1, 12), StepShape(1, 18, 12)
    head = 2 * E * V
    flops = [step_work(spec, FLOAT32, shape).num_flops for shape in (whole, first, rest)]
    assert flops[0] == flops[1] + flops[2] - head


def test_a_window_bounds_what_is_seen_and_read() -> None:
    window = 24
    spec = spec_of("mistral")
    work = step_work(spec, FLOAT32, StepShape(1, 1, 100))
    assert work == step_work(spec, FLOAT32, StepShape(1, 1, 300))
    seen = step_work(spec_of(), FLOAT32, StepShape(1, 1, window - 1))
    assert work == seen


def test_a_tied_head_is_read_and_an_embedding_is_not() -> None:
    assert weight_bytes(spec_of(tie_word_embeddings=True), 2) == 2 * (LAYERS * LAYER_WEIGHTS + E * V)
    assert weight_bytes(spec_of(), 2) == 2 * (LAYERS * LAYER_WEIGHTS + E * V)


def test_experts_are_read_as_far_as_tokens_choose_them() -> None:
    spec = spec_of("mixtral")
    attention, router, expert = E * (H + 2 * K) * D + H * D * E, 4 * E, 3 * E * F

    def layer_bytes(num_tokens: int) -> float:
        kv = num_tokens * LAYERS * 2 * K * D
        work = step_work(spec, FLOAT32, StepShape(num_tokens, 1))
        return (work.num_bytes / FLOAT32 - kv - E * V) / LAYERS

    assert layer_bytes(1) == pytest.approx(attention + router + 2 * expert)
    assert layer_bytes(2) == pytest.approx(attention + router + 3 * expert)
    assert layer_bytes(1000) == pytest.approx(attention + router + 4 * expert)
    flops = step_work(spec, FLOAT32, StepShape(1, 1)).num_flops
    assert flops == pytest.approx(2 * (LAYERS * (attention + router + 2 * expert) + E * V) + LAYERS * 4 * H * D)


def test_torch_counts_the_same_operations(tiny_model: Path) -> None:
    """Our plain attention computes the whole square of scores, of which the work counts the half that is seen."""
    num_rows, length, spec = 3, 13, spec_of()
    counts = []
    with LLM(str(tiny_model), dtype="float32", plugins={}) as llm:
        for num_outputs in (1, 2):
            params = SamplingParams(max_tokens=num_outputs, ignore_eos=True, temperature=0.0)
            with FlopCounterMode(display=False) as counter:
                llm.generate([list(range(5, 5 + length))] * num_rows, params)
            counts.append(counter.get_total_flops())
    unseen = num_rows * LAYERS * 4 * H * D * (length * length - length * (length + 1) // 2)
    assert counts[0] - unseen == step_work(spec, FLOAT32, StepShape(num_rows, length)).num_flops
    assert counts[1] - counts[0] == step_work(spec, FLOAT32, StepShape(num_rows, 1, length)).num_flops


def test_work_adds_up() -> None:
    assert sum((Work(1, 2), Work(3, 4)), Work(0, 0)) == Work(4, 6)
