"""A request at the engine's door: refused with the numbers if it can never run, else made into sequences."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from ..errors import RequestError
from ..records import IntArray, KVView, Limits, Pooling
from ..sampling_params import SamplingParams
from .block_keys import root_key
from .driver import empty_tables
from .sequence import IntBuffer, Sequence, Timing
from .stopping import stop_ids


def check_request(prompt: IntArray, params: SamplingParams, limits: Limits, kv: KVView, vocab_size: int) -> None:
    """Raise RequestError, one sentence with the numbers, for a request that could never be served."""
    if not len(prompt):
        raise RequestError("the prompt is empty: send at least one token")
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab_size:
        raise RequestError(
            f"token id {low if low < 0 else high} is out of range: this model's ids go from 0 to {vocab_size - 1}"
        )
    if len(prompt) >= limits.max_model_len:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, and prompt and output together may have {limits.max_model_len}: "
            "shorten the prompt or raise max_model_len"
        )
    total = len(prompt) + (params.max_tokens or 1)
    if total > limits.max_model_len:
        raise RequestError(
            f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) together exceed max_model_len "
            f"({limits.max_model_len}): set max_tokens to {limits.max_model_len - len(prompt)} or less"
        )
    # the last token is never computed
    num_blocks = -(-(total - 1) // kv.block_size)
    if num_blocks > kv.num_blocks:
        raise RequestError(
            f"the request needs {num_blocks} KV blocks of {kv.block_size} tokens and the pool has {kv.num_blocks}: "
            "lower max_tokens, shorten the prompt or raise kv_bytes"
        )
    params.check_vocabulary(vocab_size)


def new_sequences(
    request: str,
    prompt: IntArray,
    params: SamplingParams,
    *,
    rows: Rows[int],
    num_groups: int,
    now: float,
    seed: int,
    eos_ids: frozenset[int],
    tenant: str,
    model: str,
    priority: int,
    pooling: Pooling = "",
) -> list[Sequence]:
    """One sequence for each row; children share the seed and differ in their index."""
    prompt = prompt.astype(np.int64)
    root = root_key(tenant=tenant, model=model)
    return [
        Sequence(
            row=row,
            request=request,
            child=child,
            params=params,
            seed=seed,
            tokens=IntBuffer(prompt),
            num_prompt=len(prompt),
            timing=Timing(arrival=now),
            tenant=tenant,
            priority=priority,
            pooling=pooling,
            tables=empty_tables(num_groups),
            root_key=root,
            stops=stop_ids(params, eos_ids),
        )
        for child, row in enumerate(rows)
    ]
