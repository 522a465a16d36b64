"""Models of many experts: both layouts of their checkpoints, the plain operation, and what plugins get to see."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from switchgear import LLM
from switchgear.core.config import PluginConfig
from switchgear.core.errors import ModelError
from switchgear.core.hooks import hookimpl
from switchgear.core.interfaces import Linear
from switchgear.core.model import ops
from switchgear.core.records import TOKEN_EQUAL, LinearSpec
from switchgear.core.testing.tiny import make_tiny_model

from .reference import all_logits, make_reference, reference_logits, save

PROMPT = [list(range(5, 60))]
PARTS = {
    "mixtral": (
        "block_sparse_moe.experts.{e}.w1",
        "block_sparse_moe.experts.{e}.w3",
        "block_sparse_moe.experts.{e}.w2",
    ),
    "qwen3_moe": ("mlp.experts.{e}.gate_proj", "mlp.experts.{e}.up_proj", "mlp.experts.{e}.down_proj"),
}


def stacked(family: str, source: Path, directory: Path) -> Path:
    """The same checkpoint with the experts of a layer in two tensors, as transformers has them in memory."""
    shutil.copytree(source, directory)
    weights = load_file(source / "model.safetensors")
    for layer in (0, 1):
        prefix = f"model.layers.{layer}."
        first = f"{prefix}{PARTS[family][0].format(e=0)}.weight"
        if first in weights:
            gate, up, down = (
                torch.stack([weights.pop(f"{prefix}{part.format(e=expert)}.weight") for expert in range(4)])
                for part in PARTS[family]
            )
            weights[f"{prefix}mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
            weights[f"{prefix}mlp.experts.down_proj"] = down
    renamed = {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in weights.items()}
    save_file(renamed, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("family", PARTS)
def test_stacked_experts_are_the_same_model(family: str, tmp_path: Path) -> None:
    apart = make_tiny_model(tmp_path / "apart", family=family)
    together = stacked(family, apart, tmp_path / "together")
    assert "model.layers.1.mlp.experts.down_proj" in load_file(together / "model.safetensors")
    with (
        LLM(str(apart), dtype="float32", plugins={}) as one,
        LLM(str(together), dtype="float32", plugins={}) as other,
    ):
        assert torch.equal(all_logits(one, PROMPT)[0], all_logits(other, PROMPT)[0])


def test_a_stack_of_another_number_of_experts_is_refused(tmp_path: Path) -> None:
    together = stacked("mixtral", make_tiny_model(tmp_path / "apart", family="mixtral"), tmp_path / "together")
    config = together / "config.json"
    config.write_text(config.read_text().replace('"num_local_experts": 4', '"num_local_experts": 3'))
    with pytest.raises(ModelError, match=r"is \[4, 64\] where config.json means \[3, 64\]"):
        LLM(str(together), dtype="float32", plugins={})


@pytest.mark.parametrize("renormalize", [False, True])
def test_weights_are_renormalised_where_the_config_says_so(renormalize: bool, tmp_path: Path, tiny_model: Path) -> None:
    model = make_reference(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        norm_topk_prob=renormalize,
    )
    path = save(model, tmp_path / "model", tiny_model)
    with LLM(str(path), dtype="float32", plugins={}) as llm:
        torch.testing.assert_close(all_logits(llm, PROMPT)[0], reference_logits(model, PROMPT[0]), atol=1e-4, rtol=0)


def linears(generator: torch.Generator, count: int, rows: int, columns: int) -> tuple[list[Linear], torch.Tensor]:
    weights = torch.randn(count, rows, columns, dtype=torch.float64, generator=generator)
    return [partial(product, weight) for weight in weights], weights


def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


@pytest.mark.parametrize("renormalize", [False, True])
def test_the_plain_operation_is_its_formula(renormalize: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, 6, dtype=torch.float64, generator=generator)
    router_logits = torch.randn(7, 5, dtype=torch.float64, generator=generator)
    gate_up, gate_up_weights = linears(generator, 5, 8, 6)
    down, down_weights = linears(generator, 5, 6, 4)
    out = ops.experts(x, router_logits, gate_up, down, 3, renormalize, "silu")
    for token in range(7):
        probabilities = torch.softmax(router_logits[token], -1)
        chosen = probabilities.argsort(descending=True)[:3]
        weights = probabilities[chosen] / (probabilities[chosen].sum() if renormalize else 1.0)
        expected = sum(
            weight * (down_weights[expert] @ ops.act_mul(gate_up_weights[expert] @ x[token], "silu"))
            for weight, expert in zip(weights, chosen.tolist(), strict=True)
        )
        torch.testing.assert_close(out[token], expected)


def test_a_token_does_not_depend_on_those_beside_it() -> None:
    generator = torch.Generator().manual_seed(2)
    x, router_logits = torch.randn(9, 6, generator=generator), torch.randn(9, 5, generator=generator)
    gate_up, _ = linears(generator, 5, 8, 6)
    down, _ = linears(generator, 5, 6, 4)
    together = ops.experts(x.double(), router_logits.double(), gate_up, down, 2, True, "silu")
    for token in range(9):
        alone = ops.experts(
            x[token : token + 1].double(), router_logits[token : token + 1].double(), gate_up, down, 2, True, "silu"
        )
        torch.testing.assert_close(alone[0], together[token])


class Seen:
    """Answers `fused_ops` and `wrap_linear` with the plain thing, and remembers what it was asked for."""

    name = "seen"
    equivalence = TOKEN_EQUAL

    class Config(PluginConfig):
        pass

    def __init__(self, config: Config) -> None:
        self.ops: list[str] = []
        self.num_calls = 0
        self.quantized: list[str] = []
        self.wrapped: list[LinearSpec] = []
        self.used: set[str] = set()

    @hookimpl
    def fused_ops(self, op: str) -> Any:
        self.ops.append(op)
        return self.experts if op == "experts" else None

    def experts(self, *arguments: Any) -> torch.Tensor:
        self.num_calls += 1
        return ops.experts(*arguments)

    @hookimpl
    def quantize(self, spec: LinearSpec) -> None:
        self.quantized.append(spec.path)

    @hookimpl
    def wrap_linear(self, spec: LinearSpec, linear: Linear) -> Linear:
        self.wrapped.append(spec)

        def around(x: torch.Tensor) -> torch.Tensor:
            self.used.add(spec.path)
            return linear(x)

        return around


def seen_by(llm: LLM) -> Seen:
    (seen,) = (plugin.instance for plugin in llm._registry.plugins if plugin.name == "seen")
    assert isinstance(seen, Seen)
    return seen


def test_plugins_see_the_operation_and_every_linear(tmp_path: Path) -> None:
    path = str(make_tiny_model(tmp_path / "model", family="qwen3_moe"))
    with LLM(path, dtype="float32", plugins={}) as plain:
        expected = all_logits(plain, PROMPT)[0]
    with LLM(path, dtype="float32", plugins={"seen": {}}, plugin_classes=(Seen,)) as llm:
        seen = seen_by(llm)
        assert torch.equal(all_logits(llm, PROMPT)[0], expected)
        assert seen.ops.count("experts") == seen.num_calls == 1
        paths = [spec.path for spec in seen.wrapped]
        assert paths == seen.quantized and len(paths) == len(set(paths)) == 2 + 4 + 2 + 1 + 2 * 4
        assert seen.used == set(paths)
        assert {spec.kind for spec in seen.wrapped} >= {"router", "experts", "gate_up", "down"}


def test_a_dense_model_does_not_ask_for_experts(tiny_model: Path) -> None:
    with LLM(str(tiny_model), dtype="float32", plugins={"seen": {}}, plugin_classes=(Seen,)) as llm:
        assert "act_mul" in seen_by(llm).ops and "experts" not in seen_by(llm).ops
