"""Step times that others published, as cost models."""

from __future__ import annotations

from switchgear.core.lab.cost_model import CostModel, Curve

# -- OPT-13B on one A100-80GB ---------------------------------------------------------------------------------------
# DistServe (OSDI'24, 2401.09670), Apache-2.0: simdistserve/estimators/profile_data in github.com/LLMServe/DistServe,
# profiler-a100-80g.distserve.json (commit 7057aef), "facebook/opt-13b", tensor parallelism 1, in milliseconds, and
# max_num_tokens.csv (commit 8d46822).

PREFILL = (16.456860431694288, 0.09264750660897617, 6.474785740229194e-06)
"""Of a step of whole prompts: constant, per token, per square of a prompt's length."""
DECODE = (19.934702624895458, 0.0006269356524350583, 0.03850697740828398)
"""Of a step of fewer than 95 rows that decode: constant, per token of context, per row."""
KV_TOKENS = 66_144
"""Tokens of KV that fit beside the weights."""


def opt_13b_a100() -> CostModel:
    """One formula for both: the tokens cost what the larger of the two lines says, and a mix of them both parts.

    A prompt's squared length is twice its pairs less its tokens. In decode there is a pair for each token of context.
    """
    prefill, decode = ([term / 1e3 for term in terms] for terms in (PREFILL, DECODE))
    per_pair = 2 * prefill[2]
    per_context = decode[1] - per_pair
    slope = prefill[1] - prefill[2] - per_context
    crossing = round((decode[0] - prefill[0]) / (slope - decode[2]))
    end = 16_384
    return CostModel(
        name="OPT-13B",
        source="DistServe's profile (profiler-a100-80g.distserve.json, commit 7057aef), tensor parallelism 1",
        machine="one A100-80GB",
        per_context=per_context,
        per_pair=per_pair,
        tokens=Curve(
            (1, crossing, end),
            (decode[0] + decode[2], decode[0] + decode[2] * crossing, prefill[0] + slope * end),
        ),
    )
