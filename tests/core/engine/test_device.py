"""Where it is computed: the choice, what the driver says, and that a GPU's tensors are all made on the GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchgear import LLM
from switchgear.core.config import build_config
from switchgear.core.defaults import make_registry
from switchgear.core.engine import cuda, device
from switchgear.core.engine.assemble import KV_SHARE, assemble
from switchgear.core.engine.build import find
from switchgear.core.engine.cuda import GPU, NoGPU, described, first_gpu
from switchgear.core.engine.device import choose_device, choose_dtype, device_of, total_memory
from switchgear.core.errors import ConfigError
from switchgear.core.model import worker
from switchgear.core.model.placing import to_device
from switchgear.core.model.weights import SafetensorsReader
from switchgear.core.records import Batch, Device, LayerSpec
from switchgear.core.testing.tiny import make_tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...plugins.ragged import make_step

HOPPER = GPU((9, 0), 141 << 30)


def with_gpu(monkeypatch: pytest.MonkeyPatch, gpu: GPU | None) -> None:
    def found() -> GPU:
        if gpu is None:
            raise NoGPU("there is no NVIDIA driver on this machine")
        return gpu

    monkeypatch.setattr(device, "first_gpu", found)


# -- the choice -----------------------------------------------------------------------------------------------------


def test_a_gpu_is_taken_where_there_is_one_and_nothing_else_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, HOPPER)
    assert [choose_device(asked) for asked in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    assert device_of("bfloat16", "cuda") == Device("cuda", "bfloat16", ("sm_90",))
    assert total_memory("cuda") == 141 << 30 and total_memory() != total_memory("cuda")
    with_gpu(monkeypatch, None)
    assert [choose_device(asked) for asked in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match=r"device = 'cuda' cannot be: there is no NVIDIA driver on this machine"):
        choose_device("cuda")


def test_the_precision_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, HOPPER)
    assert choose_dtype("auto", "cuda") == ("bfloat16", "this GPU multiplies bfloat16")
    with_gpu(monkeypatch, GPU((7, 5), 16 << 30))
    assert choose_dtype("auto", "cuda") == ("float32", "this GPU does not multiply bfloat16")
    assert choose_dtype("float16", "cuda") == ("float16", "asked for")
    monkeypatch.setattr(device, "cpu_features", lambda: ("avx2",))
    assert choose_dtype("auto") == ("float32", "this processor does not multiply bfloat16")


def test_the_config_decides_and_the_plan_says_it(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(sections={"model": {"name": str(tiny_model), "device": "cpu"}, "plugins": {}})
    with LLM.from_config(config, load=False) as llm:
        assert llm.plan.device == "cpu"
    with_gpu(monkeypatch, HOPPER)
    assert find(config).device.type == "cpu"
    automatic = build_config(sections={"model": {"name": str(tiny_model)}, "plugins": {}})
    found = find(automatic)
    assert (
        found.device == Device("cuda", "bfloat16", ("sm_90",)) and found.dtype_reason == "this GPU multiplies bfloat16"
    )
    with pytest.raises(ConfigError, match="device"):
        build_config(sections={"model": {"device": "tpu"}})


# -- the driver -----------------------------------------------------------------------------------------------------


class Driver:
    """NVIDIA's library as far as it is asked."""

    def __init__(self, count: int = 2, failing: str = "") -> None:
        self.count, self.failing = count, failing

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == object.__getattribute__(self, "failing"):
            return lambda *arguments: 100
        return object.__getattribute__(self, name)

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = 40 + ordinal
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: ctypes.c_int) -> int:
        memory._obj.value = 141 << 30
        return 0 if device.value == 40 else 1

    def cuDeviceGetAttribute(self, number: Any, which: int, device: ctypes.c_int) -> int:
        number._obj.value = {75: 9, 76: 0}[which]
        return 0 if device.value == 40 else 1


def test_what_the_driver_says_of_the_first_gpu() -> None:
    assert described(Driver()) == HOPPER


def test_a_driver_without_a_gpu() -> None:
    with pytest.raises(NoGPU, match="the NVIDIA driver shows this process no GPU"):
        described(Driver(count=0))
    with pytest.raises(NoGPU, match=r"finds no usable GPU \(cuInit returned 100\)"):
        described(Driver(failing="cuInit"))


@pytest.fixture
def _anew() -> Iterator[None]:
    first_gpu.cache_clear()
    yield
    first_gpu.cache_clear()


@pytest.mark.usefixtures("_anew")
def test_each_lack_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: False)
    with pytest.raises(NoGPU, match="this PyTorch was built without CUDA"):
        first_gpu()
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(cuda, "LIBRARY", "no_such_library.so")
    with pytest.raises(NoGPU, match="there is no NVIDIA driver on this machine"):
        first_gpu()


def test_what_torch_was_built_for_is_read_without_it() -> None:
    assert cuda.torch_has_cuda() == (torch.version.cuda is not None)
    assert cuda.BUILT_FOR.search("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    assert cuda.BUILT_FOR.search("cuda = '12.6'\n")
    assert not cuda.BUILT_FOR.search("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n")


# -- a step on a GPU that is not here -------------------------------------------------------------------------------


class OneDevice(TorchDispatchMode):
    """Refuses what computes with tensors of another device, and what brings them from there or back."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        given = (each for each in tree_leaves((args, kwargs, answer)) if isinstance(each, torch.Tensor))
        devices = {each.device.type for each in given}
        assert devices <= {"meta"}, f"{function} of tensors on {devices}"
        return answer


def step_of(layer: LayerSpec, num_groups: int) -> Batch:
    """A prompt, a chunk and a decode in contiguous slots of 64 tokens."""
    batch = make_step(layer, [(5, 5), (3, 9), (1, 30)], block_size=64).batch
    return replace(batch, block_tables=batch.block_tables * num_groups, slots=batch.slots * num_groups)


@pytest.mark.parametrize("family", ["llama", "gemma3", "granite", "olmo2", "smollm3", "qwen2"])
def test_every_tensor_of_a_step_is_made_on_the_device(tmp_path: Path, family: str) -> None:
    """On torch's device that computes shapes only; any is the same to the worker that is no CPU."""
    model = make_tiny_model(tmp_path / "model", family=family)
    found = find(build_config(sections={"model": {"name": str(model)}, "engine": {"max_model_len": 64}, "plugins": {}}))
    reader = SafetensorsReader(found.files.weights)
    parts = assemble(found.config, make_registry(found.config), found.spec, lambda: reader, Device("meta", "bfloat16"))
    executor: Any = parts.engine.executor
    its = executor.worker
    with torch.inference_mode():
        its.load()
        its.allocate((4,) * len(parts.kv_spec))
        prepared = its.prepare(step_of(found.spec.layers[0], len(parts.kv_spec)))
        with OneDevice():  # type: ignore[no-untyped-call]
            logits = its.logits(its.forward(prepared))
    assert all(cache.k.device.type == cache.v.device.type == "meta" for cache in its.caches)
    assert logits.device.type == prepared.token_ids.device.type == "meta"
    assert tuple(logits.shape) == (9, found.spec.vocab_size) and logits.dtype == torch.float32


def test_numbers_go_to_a_gpu_from_pinned_memory_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []

    class Here:
        def pin_memory(self) -> Here:
            log.append("pin")
            return self

        def to(self, *given: Any, **named: Any) -> Here:
            log.append((given, named))
            return self

    monkeypatch.setattr(torch, "from_numpy", lambda array: Here())
    to_device(np.arange(3), "cuda")
    to_device(np.arange(3), "cpu")
    assert log == ["pin", (("cuda",), {"non_blocking": True}), (("cpu",), {})]
    monkeypatch.undo()
    array = np.arange(3)
    assert to_device(array, "cpu").data_ptr() == array.ctypes.data


def test_kv_is_by_default_a_share_of_the_gpus_memory(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, GPU((9, 0), 50 << 20))
    found = find(build_config(sections={"model": {"name": str(tiny_model)}, "plugins": {"paged_kv": {}}}))
    registry = make_registry(found.config)
    parts = assemble(found.config, registry, found.spec, lambda: SafetensorsReader(found.files.weights), found.device)
    [group] = parts.kv_spec
    block_bytes = group.bytes_per_token * parts.kv.block_size
    assert group.num_blocks == (50 << 20) // KV_SHARE // block_bytes


def test_what_does_not_fit_on_the_gpu_is_said_with_the_remedy(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    config = build_config(sections={"model": {"name": str(tiny_model)}, "plugins": {}})
    found = find(config)
    registry = make_registry(config)
    parts = assemble(config, registry, found.spec, lambda: SafetensorsReader(found.files.weights), found.device)
    monkeypatch.setattr(worker, "lazy_zeros", full)
    with pytest.raises(
        ConfigError, match=r"^there is no room for the KV .*Tried .* 20 GiB.*: lower \[engine\] kv_bytes"
    ):
        parts.engine.start()
