"""Teacher-forced equivalence: silent about rounding, loud about a real difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from switchgear.core.config import PluginConfig
from switchgear.core.errors import ConfigError
from switchgear.core.hooks import hookimpl
from switchgear.core.records import TOKEN_EQUAL
from switchgear.core.testing.equivalence import Oracle
from switchgear.core.testing.teacher_forced import NUM_OUTPUT, PROMPT_LENGTHS, compare_forced

RECOMMENDED: dict[str, dict[str, Any]] = {"continuous_batching": {}, "paged_kv": {"block_size": 4}, "prefix_cache": {}}
NUM_TOKENS = 2 * len(PROMPT_LENGTHS) * NUM_OUTPUT


class ShiftedHead:
    """Multiplies the head's weights by a matrix of noise: a lossy quantizer that says it is none."""

    name = "shifted_head"
    equivalence = TOKEN_EQUAL
    requires = ()
    conflicts = ()

    class Config(PluginConfig):
        scale: float = 0.0
        """Size of the noise on every logit."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def wrap_linear(self, spec: Any, linear: Any) -> Any:
        if spec.kind != "head":
            return linear

        def shifted(x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = linear(x)
            noise = torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(0)) * self.config.scale
            return logits + noise.to(logits.dtype)

        return shifted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plugins_that_change_nothing_are_equal(tiny_model: Path, dtype: str) -> None:
    forced = compare_forced(str(tiny_model), RECOMMENDED, dtype)
    assert forced.problem == "" and forced.num_tokens == NUM_TOKENS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_difference_beyond_rounding_is_named(tiny_model: Path, dtype: str) -> None:
    forced = compare_forced(str(tiny_model), {"shifted_head": {"scale": 1.0}}, dtype, [ShiftedHead])
    assert "everything-off has" in forced.problem


def test_less_than_rounding_is_excused(tiny_model: Path) -> None:
    forced = compare_forced(str(tiny_model), {"shifted_head": {"scale": 1e-6}}, "float32", [ShiftedHead])
    assert forced.problem == ""


class NoDoubles(ShiftedHead):
    """The same, and refuses float64: the kit has to read its outputs."""

    name = "no_doubles"

    @hookimpl
    def wrap_linear(self, spec: Any, linear: Any) -> Any:
        return super().wrap_linear(spec, linear)

    @hookimpl
    def fused_ops(self, op: str, device: Any) -> None:
        if device.dtype == "float64":
            raise ConfigError("no_doubles runs in float32 and bfloat16 only: choose another dtype")


@pytest.mark.parametrize(("scale", "kind"), [(0.0, "equal"), (1.0, "differs")])
def test_a_set_that_refuses_float64_is_read(oracle: Oracle, scale: float, kind: str) -> None:
    verdict = oracle.verdict({"no_doubles": {"scale": scale}}, [NoDoubles])
    assert verdict.kind == kind and "in float32" in verdict.text
