"""Loading a checkpoint takes its weights once: they go from the memory map straight into their final layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from switchgear.core.testing.tiny import make_tiny_model

PROGRAM = """
import sys
from switchgear import LLM, SamplingParams

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

# a first engine brings in every module, thread pool and buffer that is not weights
with LLM(sys.argv[1], dtype="float32", plugins={}, kv_bytes=1 << 24) as warm:
    warm.generate([[5, 6, 7]], SamplingParams(max_tokens=2))
before = anonymous()
llm = LLM(sys.argv[2], dtype="float32", plugins={}, kv_bytes=1 << 24)
print(anonymous() - before, llm._engine.executor.worker.weight_bytes)
"""


def test_anonymous_memory_is_at_most_the_weights_and_a_fifth(tmp_path: Path) -> None:
    small = make_tiny_model(tmp_path / "small")
    large = make_tiny_model(
        tmp_path / "large", hidden_size=512, intermediate_size=2048, num_hidden_layers=8, head_dim=64
    )
    run = [sys.executable, "-c", PROGRAM, str(small), str(large)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    taken, weights = map(int, done.stdout.split())
    assert weights > 90e6
    assert taken <= 1.2 * weights
