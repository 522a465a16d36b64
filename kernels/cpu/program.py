"""Native work recorded as a program and run again in one call: the same kernels on the same memory, in order.

Between two kernels lies a wait of the threads for each other, a tenth of a microsecond; a call from Python with its
views and checks, and a start of the threads, take some.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .library import native


class Program:
    """Steps of native work. Who records sees to it that all memory they name outlives the program's last run."""

    def __init__(self) -> None:
        self.functions = native().functions
        self.address = self.functions.switchgear_program_new()
        if not self.address:
            raise MemoryError("there is no memory for a program of native kernels")
        weakref.finalize(self, self.functions.switchgear_program_free, self.address).atexit = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What this thread has the kernels do meanwhile is done, and added to the program."""
        self.functions.switchgear_program_record(self.address)
        try:
            yield
        finally:
            self.functions.switchgear_program_record(None)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Within `recording`: what the kernels do meanwhile is not added."""
        self.functions.switchgear_program_record(None)
        try:
            yield
        finally:
            self.functions.switchgear_program_record(self.address)

    def __len__(self) -> int:
        """Steps so far. Raises MemoryError where one is missing."""
        length: int = self.functions.switchgear_program_length(self.address)
        if length < 0:
            raise MemoryError("there is no memory for a longer program of native kernels")
        return length

    def run(self, first: int, last: int) -> None:
        """Do the steps `[first, last)` again."""
        self.functions.switchgear_program_run(self.address, first, last, torch.get_num_threads())
