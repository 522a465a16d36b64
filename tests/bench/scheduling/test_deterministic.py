"""The commands whose figures repeat exactly keep their targets: they are tests as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
COMMANDS = {
    "KV utilisation of contiguous slots and of blocks": ["kv_utilisation.py", "--every", "4"],
    "sequences at once in the same KV bytes": ["paged_concurrency.py", "--requests", "150"],
    "hits of the Mooncake conversation trace": ["prefix_cache_mooncake.py"],
    "tenants do not share prefixes": ["tenant_isolation.py"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_targets_are_met(shared_data: Path, command: list[str]) -> None:
    script, *options = command
    data = [] if script == "tenant_isolation.py" else ["--data", str(shared_data)]
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *options, *data], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout and "FAIL" not in done.stdout
