"""Records a computation on the CPU: native kernels as a program, what PyTorch computes between them as calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .program import Program
from .working_memory import Lease, Pieces

ALLOCATIONS = {
    *("aten::empty", "aten::empty_like", "aten::empty_strided"),
    *("aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted"),
}
"""What makes a tensor and computes nothing."""


class NotRecordable(Exception):
    """A computation that cannot be done again without the host; the text says what it does."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation of PyTorch, and where its results go."""

    operation: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    places: tuple[torch.Tensor | None, ...]
    """For each tensor that it returns where that goes; None for one that lies there already."""

    def again(self) -> list[torch.Tensor]:
        return tensors(self.operation(*self.args, **self.kwargs))

    def replay(self) -> None:
        for place, computed in zip(self.places, self.again(), strict=True):
            if place is not None:
                place.copy_(computed)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of the program that follow each other."""

    program: Program
    first: int
    last: int

    def replay(self) -> None:
        self.program.run(self.first, self.last)


class Recording:
    """What was computed once, and how to compute it again from what is in the same tensors now."""

    def __init__(self, parts: list[Call | Stretch], output: torch.Tensor, kept: Sequence[torch.Tensor] = ()) -> None:
        """kept: tensors whose memory native kernels name, and that nobody else keeps."""
        self.output, self.kept = output, kept
        last = parts[-1] if parts else None
        self.last = last if isinstance(last, Call) and len(last.places) == 1 and last.places[0] is output else None
        """The call that makes the output, whose result then need not be copied."""
        self.parts = parts[:-1] if self.last else parts

    def replay(self) -> torch.Tensor:
        """The output, which is the caller's."""
        for part in self.parts:
            part.replay()
        if self.last is None:
            return self.output.clone()
        return self.last.again()[0]


def record(compute: Callable[[], torch.Tensor], pieces: Pieces) -> tuple[Recording, torch.Tensor]:
    """Compute, and keep how; what came out is the caller's. Raises NotRecordable."""
    lease = Lease(pieces)
    recorder = Recorder(lease)
    try:
        with recorder.program.recording(), recorder, HostReads():
            output = compute()
        recorder.end_stretch()
        return Recording(recorder.parts, output, recorder.constants), output.clone()
    finally:
        lease.end()


class HostReads(TorchFunctionMode):
    """Sees what reads a tensor's numbers without an operation of PyTorch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            raise NotRecordable(f"Tensor.{func.__name__} leaves to the host what is computed next")
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Sees every operation of PyTorch that runs in this thread, and gives what it makes a place that stays."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lease = lease
        self.program = Program()
        self.parts: list[Call | Stretch] = []
        self.num_steps = 0
        """Of the program that are in `parts`."""
        self.constants: list[torch.Tensor] = []
        """Made of numbers of the host, which stay what they were."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would import PyTorch's compiler, a second at the start of a server that never compiles."""
        return False

    def end_stretch(self) -> None:
        if len(self.program) > self.num_steps:
            self.parts.append(Stretch(self.program, self.num_steps, len(self.program)))
            self.num_steps = len(self.program)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if asks_the_host(func, args):
            raise NotRecordable(f"{func} leaves to the host what is computed next")
        # an operation may call native kernels itself: then it is the operation that is called again
        with self.program.pause():
            result = func(*args, **kwargs)
        if func._schema.name == "aten::lift_fresh":
            self.constants.append(result)
        if func._schema.name in ALLOCATIONS:
            return self.lease.tensor(result)
        known = {storage_of(tensor) for tensor in tensors((args, kwargs))}
        places = tuple(None if storage_of(tensor) in known else self._place(tensor) for tensor in tensors(result))
        if not func._schema.is_mutable and not any(place is not None for place in places):
            return result  # a view: the memory stays where it is
        self.end_stretch()
        self.parts.append(Call(func, args, kwargs, places))
        following = iter(places)
        return tree_map(lambda leaf: moved(leaf, following) if isinstance(leaf, torch.Tensor) else leaf, result)

    def _place(self, computed: torch.Tensor) -> torch.Tensor:
        return self.lease.tensor(computed).copy_(computed)


def moved(tensor: torch.Tensor, places: Iterator[torch.Tensor | None]) -> torch.Tensor:
    place = next(places)
    return tensor if place is None else place


def asks_the_host(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether what comes out is a number for Python, or a tensor whose shape depends on what is in another."""
    if torch.Tag.data_dependent_output in operation.tags:
        return True
    if torch.Tag.dynamic_output_shape not in operation.tags:
        return False
    is_lookup = operation._schema.name == "aten::index"
    return not is_lookup or any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors(args[1]))


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor: torch.Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place
