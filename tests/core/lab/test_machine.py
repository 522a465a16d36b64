import os
from pathlib import Path

import pytest
import torch
from switchgear.core import VERSION
from switchgear.core.engine.device import cpu_features
from switchgear.core.lab.machine import cache_size, this_machine, versions


def test_the_machine_is_as_the_system_says() -> None:
    machine = this_machine()
    assert (machine.num_cores, machine.num_threads) == (os.cpu_count(), torch.get_num_threads())
    assert machine.features == cpu_features()
    assert machine.memory_bytes > 2**28
    assert machine.processor in str(machine)


@pytest.mark.parametrize(("text", "size"), [("32K\n", 2**15), ("32768K", 2**25), ("300M", 300 * 2**20), ("64", 64)])
def test_cache_sizes_are_read_as_the_system_writes_them(tmp_path: Path, text: str, size: int) -> None:
    file = tmp_path / "size"
    file.write_text(text)
    assert cache_size(file) == size


def test_the_versions_are_those_that_run() -> None:
    known = versions()
    assert (known["switchgear"], known["torch"]) == (VERSION, torch.__version__)
