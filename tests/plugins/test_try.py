from __future__ import annotations
from switchgear.plugins.chunked_prefill import ChunkedPrefill
from switchgear.plugins.continuous_batching import ContinuousBatching
from switchgear.plugins.paged_kv import PagedKV
from switchgear.plugins.prefix_cache import PrefixCache
from switchgear.core.sampling_params import SamplingParams
from ..core.engine.build import virtual_engine, add, drain, executor_of, Heard, step
from ..core.engine.virtual import tokens_alone

def test_x() -> None:
    for cls in ([ContinuousBatching, PagedKV, ChunkedPrefill],[ContinuousBatching, PagedKV, PrefixCache, ChunkedPrefill]):
        e = virtual_engine(*cls, plugins={"paged_kv": {"block_size": 4}, "chunked_prefill": {"max_num_batched_tokens": 8}}, num_blocks=16, block_size=4, max_num_seqs=4)
        h = Heard()
        p = SamplingParams(max_tokens=30, seed=1, ignore_eos=True)
        add(e, "a", [5]*10, p)
        step(e, h); step(e,h)
        add(e, "b", [6]*50, SamplingParams(max_tokens=10, seed=1, ignore_eos=True))
        drain(e, h)
        ex = executor_of(e)
        print(ex.num_step_tokens, sum(ex.num_step_tokens), h.finals["b",0][0].num_preemptions, h.finals["b",0][0].num_cached)
        assert h.output("a") == tokens_alone([5]*10, p)
