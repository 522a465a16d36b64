"""Named, complete sets of plugins. What a recipe holds may depend on the machine; the plan says what is on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Plugins = dict[str, dict[str, Any]]
"""Options by plugin, in the order in which they apply."""

GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""What a GPU's driver leaves on Linux: NVIDIA's, AMD's, and Windows' for its guests."""
SCHEDULING: Mapping[str, dict[str, Any]] = {
    name: {} for name in ("continuous_batching", "paged_kv", "prefix_cache", "chunked_prefill")
}
"""Who runs when, and where their KV lies: recommended on every machine."""
REPLAYING = frozenset({"cpu_graphs", "cuda_graphs"})
"""Plugins that replay a worker's steps; where an executor stands in for it there are none to replay."""
NATIVE_DTYPES = ("auto", "bfloat16", "float32", "float64")


def all_off(model: Mapping[str, Any]) -> Plugins:
    """No technique at all: the oracle of every plugin."""
    return {}


def recommended(model: Mapping[str, Any]) -> Plugins:
    """What we would switch on for you; `model` is the `[model]` section as written. Grows with the plugins that ship.

    The native kernels are in it where they run: on a CPU that has them built, in a precision that they know. What of it
    a model has no use for stands in the plan, and nothing fails for it.
    """
    plugins = {name: dict(options) for name, options in SCHEDULING.items()}
    if is_for_cpu(model) and model.get("dtype", "auto") in NATIVE_DTYPES and not lack_of("native_cpu"):
        plugins |= {"flash_attention": {}, "native_cpu": {}, "cpu_graphs": {}}
    return plugins


RECIPES: Mapping[str, Callable[[Mapping[str, Any]], Plugins]] = {"all_off": all_off, "recommended": recommended}


def is_for_cpu(model: Mapping[str, Any]) -> bool:
    """Whether the processor computes; asked without PyTorch, which takes a second to load."""
    device = model.get("device", "auto")
    return device == "cpu" or (device == "auto" and not any(path.exists() for path in GPU_DEVICES))


def without_requirements(plugins: Mapping[str, Any], optional: frozenset[str]) -> list[str]:
    """Those of the optional plugins that require one which is not on."""
    from .registry import available, import_plugin

    known = available()
    return [
        name
        for name in plugins
        if name in optional and not set(getattr(import_plugin(known[name]), "requires", ())) <= set(plugins)
    ]


def lack_of(plugin: str) -> str:
    """Why this machine cannot run a plugin that comes with the engine; empty if it can."""
    from .registry import available, import_plugin

    reason: str = import_plugin(available()[plugin]).unavailable()
    return reason
