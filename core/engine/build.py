"""From a config to an engine, in two halves: what can be found without torch, and what is made with it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import VERSION
from ..config import Config
from ..defaults import make_registry
from ..interfaces import Control, IngressStage
from ..model.architectures import model_spec
from ..model.files import ModelFiles
from ..model.spec import ModelSpec
from ..model.store import resolve
from ..model.tokenizer import Tokenizer
from ..model.vocabulary import read_vocabulary
from ..plan import EffectivePlan, effective_plan
from ..records import Device, Limits
from ..registry import Bound, Registry
from .device import choose_device, choose_dtype, device_of

if TYPE_CHECKING:
    from .engine import Engine


@dataclass(frozen=True, slots=True)
class Found:
    """What a config names, found and checked: its plugins, its model's files and shape, and where it will run."""

    config: Config
    registry: Registry
    files: ModelFiles
    tokenizer: Tokenizer
    spec: ModelSpec
    device: Device
    dtype_reason: str


@dataclass(frozen=True, slots=True)
class Built:
    """An engine that has not loaded its weights, and what was made on the way. `engine.start` loads them."""

    engine: Engine
    registry: Registry
    plan: EffectivePlan
    files: ModelFiles
    tokenizer: Tokenizer
    spec: ModelSpec
    limits: Limits
    controls: list[Bound[Control]]
    stages: list[Bound[IngressStage]]
    """Empty where another process has them."""


def build_engine(
    config: Config,
    classes: tuple[type, ...] = (),
    cache: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Built:
    """The engine of a config, all of it in this process. classes: plugins that are not installed.

    Raises ConfigError, ModelError or PluginError, one sentence each.
    """
    return build(find(config, classes, cache), clock)


def find(config: Config, classes: tuple[type, ...] = (), cache: Path | None = None) -> Found:
    """Load the plugins, fetch and read the model's files. Imports no torch unless a plugin or a conversion does."""
    device = choose_device(config.model.device)
    dtype, dtype_reason = choose_dtype(config.model.dtype, device)
    # before anything is fetched for a plugin that does not exist
    registry = make_registry(config, classes)
    files = resolve(config.model.name, dtype, cache=cache, progress=sys.stderr.isatty())
    tokenizer = Tokenizer(files)
    spec = model_spec(config.model.name, files.config, tokenizer.eos_ids)
    return Found(config, registry, files, tokenizer, spec, device_of(dtype, device), dtype_reason)


def build(found: Found, clock: Callable[[], float] = time.monotonic, *, has_ingress: bool = True) -> Built:
    """Ask every hook and make the plan. has_ingress: whether requests come in through this process."""
    from ..model.weights import SafetensorsReader
    from .assemble import assemble

    registry, spec = found.registry, found.spec
    reader = lambda: SafetensorsReader(found.files.weights)  # noqa: E731
    vocabulary = partial(read_vocabulary, found.tokenizer, spec.vocab_size)
    parts = assemble(found.config, registry, spec, reader, found.device, clock=clock, vocabulary=vocabulary)
    stages = registry.every("on_ingress", model=spec) if has_ingress else registry.leave("on_ingress")
    controls = registry.every("control", engine=parts.engine)
    plan = effective_plan(
        found.config,
        registry,
        version=VERSION,
        architecture=spec.architecture,
        dtype_reason=found.dtype_reason,
        device=parts.device,
        limits=parts.limits,
        kv=parts.kv,
        kv_spec=parts.kv_spec,
    )
    return Built(parts.engine, registry, plan, found.files, found.tokenizer, spec, parts.limits, controls, stages)
