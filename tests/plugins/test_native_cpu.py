"""native_cpu: what it takes, what it refuses, and that callers get what everything-off gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchgear import LLM, SamplingParams
from switchgear.core.cli.diagnosis import find_plugins
from switchgear.core.config import PluginConfig
from switchgear.core.defaults import GatheredAttention, PlainLinears
from switchgear.core.engine.law import NUM_CANDIDATES
from switchgear.core.engine.sampler import Sampler
from switchgear.core.errors import PluginError
from switchgear.core.hooks import hookimpl
from switchgear.core.model import ops
from switchgear.core.records import TOKEN_EQUAL, Device, LinearPart, LinearSpec, Refusal
from switchgear.core.testing.teacher_forced import MAX_UNDECIDED, compare_forced
from switchgear.core.testing.tiny import make_tiny_model
from switchgear.kernels.cpu import build
from switchgear.kernels.cpu import top_k as launcher
from switchgear.kernels.cpu.library import NotBuilt, Unusable, native
from switchgear.plugins.native_cpu import NativeCPU

CLASSES = (NativeCPU,)
ON: Mapping[str, Mapping[str, Any]] = {"native_cpu": {}}
CPU = Device("cpu", "bfloat16")
OPS = ("rms_norm", "rope", "rope_and_cache", "act_mul", "argmax", "top_k")


@pytest.fixture
def _usable() -> None:
    try:
        native()
    except Unusable as reason:
        if isinstance(reason, NotBuilt) and build.find_compiler():
            raise
        pytest.skip(str(reason))


def linear_of(kind: Any) -> LinearSpec:
    return LinearSpec("some.path", kind, 0, 64, (LinearPart("some.path", 128),))


def answers(model: Path, plugins: Mapping[str, Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """Greedy tokens to a few prompts, in float64."""
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    prompts = [[5, 6, 7, 8, 9], [3], list(range(10, 60))]
    with LLM(str(model), dtype="float64", plugins=plugins, plugin_classes=CLASSES) as llm:
        return [tuple(result.token_ids) for result in llm.generate(prompts, params)]


@pytest.fixture(scope="module", params=["llama", "odd sizes and biases"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    overrides: dict[str, Any] = {}
    if request.param != "llama":
        overrides = {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "attention_bias": True,
            "vocab_size": 515,
            "hidden_size": 90,
            "intermediate_size": 131,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 30,
        }
    return make_tiny_model(tmp_path_factory.mktemp("native"), **overrides)


@pytest.mark.usefixtures("_usable")
def test_it_takes_the_operations_and_every_linear_but_the_embedding(tiny_model: Path) -> None:
    with LLM(str(tiny_model), dtype="float32", plugins=ON, plugin_classes=CLASSES) as llm:
        lines = {(line.hook, line.owner): line.reason for line in llm.plan.hooks}
    assert lines["quantize", "core"] == "plain weights, 1 of 10"
    assert lines["quantize", "native_cpu"] == "on in the config, 9 of 10"
    assert lines["fused_ops", "native_cpu"] == "on in the config"
    plugin = NativeCPU(NativeCPU.Config())
    assert plugin.quantize(linear_of("embedding"), CPU) is None
    assert plugin.fused_ops("experts", CPU) is None


@pytest.mark.usefixtures("_usable")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_rounding_decides_where_tokens_differ(dtype: str, model: Path) -> None:
    compared = compare_forced(str(model), ON, dtype, CLASSES)
    assert not compared.problem, compared.problem
    assert compared.num_undecided <= MAX_UNDECIDED * compared.num_tokens, str(compared)


@pytest.mark.usefixtures("_usable")
def test_in_float64_the_tokens_are_the_same(model: Path) -> None:
    assert answers(model, ON) == answers(model, {})


def op_of(name: str) -> Any:
    return NativeCPU(NativeCPU.Config()).fused_ops(name, CPU)


@pytest.mark.usefixtures("_usable")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_filters_and_scores_are_the_same_to_the_last_bit(dtype: torch.dtype) -> None:
    """Also of rows so flat that they are looked at twice, and of rows with many equals."""
    options: list[dict[str, Any]] = [
        {"top_k": 1},
        {"top_k": 40, "top_p": 0.9, "logprobs": 0},
        {"top_k": 3000, "logprobs": 1},
        {"top_p": 0.5, "logprobs": 20},
        {"top_p": 0.95, "min_p": 0.01, "temperature": 0.7},
        {"top_p": 0.999, "temperature": 5.0},
        {"min_p": 0.1},
        {"temperature": 0.0, "logprobs": 5},
    ] * 3
    num_rows, vocab_size = len(options), 12_000
    logits = torch.randn(num_rows, vocab_size + 5, generator=torch.Generator().manual_seed(0)).to(dtype) * 4
    logits[8:16] = logits[8:16].bfloat16().to(dtype)
    samplers = [Sampler(vocab_size, frozenset(), *each) for each in ((), (op_of("argmax"), op_of("top_k")))]
    for sampler in samplers:
        for row, each in enumerate(options):
            sampler.add(row, SamplingParams(**each), seed=row, child=0, tokens=lambda: (np.array([1, 3]), 1))
    rows, nothing = np.arange(num_rows), np.zeros(num_rows, dtype=np.int64)
    plain, native = (
        sampler.sample(logits, rows, nothing, [nothing[:0]] * num_rows, keep_laws=True) for sampler in samplers
    )
    assert plain.token_ids.tolist() == native.token_ids.tolist() and not native.errors
    assert plain.laws is not None and native.laws is not None
    assert torch.equal(plain.laws.weights, native.laws.weights)
    one, other = (sampler.score(logits, rows, plain.token_ids) for sampler in samplers)
    assert one is not None and other is not None
    for name in ("logprobs", "ranks", "top_logprobs"):
        assert np.array_equal(getattr(one.values, name), getattr(other.values, name))
    logprobs = logits[:, :vocab_size].log_softmax(-1).numpy()[other.entries]
    assert (np.take_along_axis(logprobs, other.values.top_ids, 1) == other.values.top_logprobs).all()


@pytest.mark.usefixtures("_usable")
def test_where_nothing_is_equal_the_same_tokens_are_sampled_and_listed(model: Path) -> None:
    params = [
        SamplingParams(max_tokens=12, seed=5, ignore_eos=True, logprobs=4, prompt_logprobs=3, **options)
        for options in ({"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05, "top_k": 300}, {"temperature": 0})
    ]
    listed = []
    for plugins in ({}, ON):
        with LLM(str(model), dtype="float64", plugins=plugins, plugin_classes=CLASSES) as llm:
            results = llm.generate([[5, 6, 7, 8]] * len(params), params)
        positions = [[*(result.logprobs or ()), *filter(None, result.prompt_logprobs or ())] for result in results]
        assert all(len(row) == 12 + 3 for row in positions)
        listed.append([[[entry.token_id for entry in each.top] for each in row] for row in positions])
        listed[-1].append([list(result.token_ids) for result in results])
    assert listed[0] == listed[1]


@pytest.mark.usefixtures("_usable")
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"top_p": 0.9}, {NUM_CANDIDATES}),
        ({"logprobs": 2}, {2}),
        ({"prompt_logprobs": 3}, {3}),
        ({"logprobs": 0, "prompt_logprobs": 0}, set()),
    ],
)
def test_its_top_k_serves_filters_and_scores(
    options: dict[str, Any], asked: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: set[int] = set()

    def listening(x: torch.Tensor, k: int) -> Any:
        heard.add(k)
        return ops.top_k(x, k)

    monkeypatch.setattr(launcher, "top_k", listening)
    model = make_tiny_model(tmp_path / "model", vocab_size=NUM_CANDIDATES + 1)
    with LLM(str(model), dtype="float32", plugins=ON, plugin_classes=CLASSES) as llm:
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2, ignore_eos=True, **options))
    assert heard == asked


@pytest.mark.usefixtures("_usable")
def test_it_stores_keys_and_values_itself_where_it_knows_their_order(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*arguments: Any) -> None:
        raise AssertionError("the attention stores K and V although native_cpu could")

    plain = answers(model, {})
    monkeypatch.setattr(GatheredAttention, "write", write)
    assert answers(model, ON) == plain


@pytest.mark.usefixtures("_usable")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_sequence_is_the_same_whoever_is_beside_it(num_threads: int, tiny_model: Path) -> None:
    """Where no tiles are used, a row's sums do not depend on how many rows there are."""
    if native().level_name == "amx_bf16":
        pytest.skip("tiles sum in another order than vectors do")
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    plugin = NativeCPU(NativeCPU.Config())
    recipe = plugin.quantize(linear_of("o"), CPU)
    assert recipe is not None and not isinstance(recipe, Refusal)
    params = recipe.pack(torch.randn(128, 64, generator=torch.Generator().manual_seed(0)).bfloat16())
    x = torch.randn(30, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    alone = torch.cat([recipe.linear(x[row : row + 1], params) for row in range(len(x))])
    assert torch.equal(recipe.linear(x, params), alone)
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_usable")
def test_the_recipe_reports_the_bytes_it_holds(tiny_model: Path) -> None:
    from switchgear.core.model.weights import SafetensorsReader

    plugin = NativeCPU(NativeCPU.Config())
    name = "model.layers.0.self_attn.o_proj"
    spec = LinearSpec(name, "o", 0, 64, (LinearPart(name, 64),))
    recipe = plugin.quantize(spec, CPU)
    assert recipe is not None and not isinstance(recipe, Refusal)
    packed = recipe.load(SafetensorsReader([tiny_model / "model.safetensors"]), spec)
    assert recipe.report() == {"bytes": 64 * 64 * 2, "bits": 16.0}
    out = torch.empty(3, 64, dtype=torch.bfloat16)
    assert recipe.linear(torch.zeros(3, 64, dtype=torch.bfloat16), packed, out) is out and not out.any()


@pytest.mark.parametrize(("device", "reason"), [(Device("cuda", "bfloat16"), "CPU"), (Device("cpu", "float16"), "16")])
def test_it_refuses_what_there_is_no_kernel_for(device: Device, reason: str) -> None:
    plugin = NativeCPU(NativeCPU.Config())
    for answer in (plugin.quantize(linear_of("o"), device), *(plugin.fused_ops(op, device) for op in OPS)):
        assert isinstance(answer, Refusal) and reason in answer.reasons[0]


@pytest.mark.usefixtures("_no_library")
def test_without_a_library_it_is_an_error_unless_the_engine_may_degrade(tiny_model: Path) -> None:
    with pytest.raises(
        PluginError, match=r"'native_cpu' is on and has no effect here: the native kernels are not built"
    ):
        LLM(str(tiny_model), plugins=ON, plugin_classes=CLASSES)
    with LLM(str(tiny_model), plugins=ON, plugin_classes=CLASSES, allow_degrade=True) as llm:
        assert "are not built" in llm.plan.degraded["native_cpu"]
        (result,) = llm.generate([[3, 4]], SamplingParams(max_tokens=2, ignore_eos=True))
        assert len(result.token_ids) == 2


@pytest.mark.usefixtures("_no_library")
def test_the_doctor_says_what_it_lacks() -> None:
    lines = {finding.subject: finding for finding in find_plugins(asks_them=True)}
    assert lines["plugin native_cpu"].state == "missing"
    assert "are not built" in lines["plugin native_cpu"].value
    assert "plugin native_cpu" not in {finding.subject for finding in find_plugins(asks_them=False)}


class ClaimsTheHead:
    """A quantizer that wants one linear."""

    name = "claims_the_head"
    equivalence = TOKEN_EQUAL
    hook_api = (1, 0)

    class Config(PluginConfig):
        """Nothing to set."""

    def __init__(self, config: Config) -> None:
        self.plain = PlainLinears()

    @hookimpl
    def quantize(self, spec: LinearSpec, device: Device) -> Any:
        return self.plain.quantize(spec, device) if spec.kind == "o" else None


@pytest.mark.usefixtures("_usable")
@pytest.mark.parametrize("order", [("native_cpu", "claims_the_head"), ("claims_the_head", "native_cpu")])
def test_it_takes_only_what_no_other_plugin_wants(order: tuple[str, ...], tiny_model: Path) -> None:
    plugins: dict[str, dict[str, Any]] = {name: {} for name in order}
    with LLM(str(tiny_model), plugins=plugins, plugin_classes=(*CLASSES, ClaimsTheHead)) as llm:
        lines = {line.owner: line.reason for line in llm.plan.hooks if line.hook == "quantize"}
    assert lines["claims_the_head"] == "on in the config, 2 of 10"
    assert lines["native_cpu"] == "on in the config, 7 of 10"
