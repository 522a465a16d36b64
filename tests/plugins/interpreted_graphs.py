"""cuda_graphs over the Triton kernels, by Triton's interpreter. Run by `test_cuda_graphs.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from switchgear import SamplingParams
from switchgear.core.testing.tiny import make_tiny_model

from .test_cuda_graphs import engine
from .test_flash_attention import MIXED

PROMPTS = [[3, 17, 40, 41, 7], [5], [9, 9, 200]]
PARAMS = [SamplingParams(max_tokens=count, temperature=0, ignore_eos=True) for count in (6, 4, 2)]


def test_replayed_kernels_say_what_everything_off_says(tmp_path: Path) -> None:
    # layers with a window and without one, and scores that are capped
    model = make_tiny_model(tmp_path / "model", family="gemma2", sliding_window=5)
    on: Any = {**MIXED, "flash_attention": {"backend": "triton"}, "triton_ops": {}, "cuda_graphs": {"memory_bytes": 0}}
    options: Any = {"max_model_len": 24, "max_num_seqs": 3}
    with engine(model, {}, **options) as off, engine(model, on, **options) as llm:
        given, expected = ([result.token_ids for result in each.generate(PROMPTS, PARAMS)] for each in (llm, off))
        assert given == expected
        stats = llm.stats()["cuda_graphs"]
        assert stats["captured_steps"] >= 4 and stats["eager_steps"] >= 1
