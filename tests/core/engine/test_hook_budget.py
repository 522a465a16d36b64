"""What plugins cost: pluggy is never called in a step, and hot methods once a step, row or layer, but not a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.testing.tiny import make_tiny_model

from . import faulty

PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PLUGINS = [
    faulty.FaultyPolicy,
    faulty.FaultyModifier,
    faulty.FaultyAllocator,
    faulty.FaultyProposer,
    faulty.FaultyExecutor,
    faulty.FaultyLogits,
    faulty.FaultyAttention,
    faulty.FaultyLinears,
    faulty.FaultyWrappedLinears,
    faulty.FaultyCodec,
    faulty.FaultyOps,
    faulty.FaultySink,
    faulty.FaultyStage,
    faulty.FaultyControl,
]
"""One for every hook; nothing is armed, they only count."""

ALL = [type(cls.__name__, (cls,), {"name": cls.__name__, "__doc__": cls.__doc__}) for cls in PLUGINS]
PER_LAYER = {
    ("FaultyAttention", "write"): (1, 0),
    ("FaultyAttention", "forward"): (1, 0),
    ("FaultyCodec", "encode"): (2, 0),
    ("FaultyCodec", "decode"): (2, 0),
    ("FaultyLinears", "linear"): (4, 2),
    ("FaultyWrappedLinears", "around"): (4, 2),
    ("FaultyOps", "rms_norm"): (2, 1),
    ("FaultyOps", "rope"): (2, 0),
    ("FaultyOps", "act_mul"): (1, 0),
}
"""Calls for each layer, and beside the layers: K and V, queries and keys; embedding and head, the last norm."""

Counts = Counter[tuple[str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, LLM]]:
    """By number of layers."""
    made = {}
    for num_layers in (2, 6):
        model = make_tiny_model(tmp_path_factory.mktemp("layers") / str(num_layers), num_hidden_layers=num_layers)
        plugins: dict[str, dict[str, object]] = {cls.name: {} for cls in ALL}  # type: ignore[attr-defined]
        made[num_layers] = LLM(
            str(model), dtype="float32", plugins=plugins, plugin_classes=ALL, max_num_seqs=8, max_model_len=128
        )
    yield made
    for llm in made.values():
        llm.close()


def counts_of(llm: LLM) -> Counts:
    counts: Counts = Counter()
    for plugin in llm._registry.plugins:
        assert isinstance(plugin.instance, faulty.Faulty)
        counts.update({(plugin.name, method): count for method, count in plugin.instance.trap.counts.items()})
    return counts


def steps(llm: LLM, prompt_lens: list[int]) -> tuple[Counts, Counts]:
    """What was called in the first two steps, prefill and decode, of requests with prompts of these lengths."""
    for index, length in enumerate(prompt_lens):
        llm._engine.add(f"r{index}", llm.prompts.encode([5 + index] * length), PARAMS)
    counts = [counts_of(llm)]
    while llm._engine.has_work:
        llm._engine.step()
        counts.append(counts_of(llm))
    return counts[1] - counts[0], counts[2] - counts[1]


def test_pluggy_is_not_called_in_a_step(models: dict[int, LLM]) -> None:
    calls: list[str] = []
    manager = models[2]._registry.manager
    undo = manager.add_hookcall_monitoring(
        lambda name, impls, arguments: calls.append(name), lambda outcome, name, impls, arguments: None
    )
    try:
        models[2].generate([[5, 6, 7], [8, 9]], PARAMS)
        assert calls == []
        manager.hook.observe()
        assert calls == ["observe"], "the monitor sees what there is to see"
    finally:
        undo()


def test_calls_of_a_step_do_not_depend_on_layers(models: dict[int, LLM]) -> None:
    few, many = (steps(models[num_layers], [5, 9]) for num_layers in (2, 6))
    for step_of_few, step_of_many in zip(few, many, strict=True):
        for key in step_of_few.keys() | step_of_many.keys():
            if key not in PER_LAYER:
                assert step_of_few[key] == step_of_many[key], key


@pytest.mark.parametrize("num_layers", [2, 6])
def test_calls_for_a_layer_are_these(models: dict[int, LLM], num_layers: int) -> None:
    """In every step alike, in prefill as in decode; eager attention decodes once for each length of query."""
    for counts in steps(models[num_layers], [5, 5]):
        for key, (for_each_layer, besides) in PER_LAYER.items():
            assert counts[key] == for_each_layer * num_layers + besides, key


def test_calls_of_a_step_do_not_depend_on_tokens(models: dict[int, LLM]) -> None:
    short, long = (steps(models[2], [length, length]) for length in (4, 90))
    assert short == long


def test_calls_of_a_step_are_these(models: dict[int, LLM]) -> None:
    """For each row: its slots, the commit of its tokens, their entry in a grammar. For the step: one of each."""
    per_row = {("FaultyAllocator", "grow"), ("FaultyAllocator", "commit"), ("FaultyLogits", "advance")}
    per_step = {
        ("FaultyPolicy", "plan"),
        ("FaultyModifier", "revise"),
        ("FaultyAllocator", "num_free"),
        ("FaultyProposer", "commit"),
        ("FaultyExecutor", "submit"),
        ("FaultyExecutor", "collect"),
        ("FaultyAttention", "plan"),
        ("FaultyLogits", "mask"),
        ("FaultyOps", "argmax"),
        ("FaultySink", "on_events"),
    }
    in_decode = {("FaultyProposer", "propose")}
    for num_rows in (1, 4):
        prefill, decode = steps(models[2], [5] * num_rows)
        assert {key: count for key, count in prefill.items() if key not in PER_LAYER} == {
            **dict.fromkeys(per_row, num_rows),
            **dict.fromkeys(per_step, 1),
        }
        assert {key: count for key, count in decode.items() if key not in PER_LAYER} == {
            **dict.fromkeys(per_row, num_rows),
            **dict.fromkeys(per_step | in_decode, 1),
        }
