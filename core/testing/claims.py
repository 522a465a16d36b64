"""What a plugin may promise beyond its contract: `claims = ("NAME", ...)` on its class makes the kit hold it to it."""

from __future__ import annotations

from collections.abc import Mapping

CLAIMS: Mapping[str, str] = {
    "joins_and_leaves_at_once": "a request runs in the next step that has a slot, KV and budget for it, leaves with "
    "its last token, and whoever came first has had the most steps",
    "keeps_token_budget": "no step has more tokens than the plan's token_budget, whatever prompts arrive",
    "never_stalls_decodes": "each running sequence that has one token to compute computes it in every step, and "
    "prompts that were begun go before new ones",
    "wastes_less_than_a_block": "room is found if enough blocks are free, wherever they lie, and a sequence leaves "
    "fewer slots unused than a block has",
    "finds_prefixes_and_evicts_the_oldest": "full blocks are found again until their memory is needed, the least "
    "recently used go first, and of one sequence the last",
}
