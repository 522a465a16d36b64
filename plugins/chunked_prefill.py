"""Long prompts in pieces beside the decodes, so that no step takes longer than its token budget.

Buys short gaps between tokens while long prompts arrive, and steps of even size. Costs time to first token of the long
prompt itself, whose earlier KV every chunk reads again. Sarathi-Serve (OSDI'24, 2403.02310), section 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np

from ..core.config import PluginConfig
from ..core.errors import ConfigError
from ..core.hooks import hookimpl
from ..core.interfaces import Modifier
from ..core.records import TOKEN_EQUAL, Limits, Plan, StepView


class ChunkedPrefill:
    """Holds every step to a token budget: decodes first, then partial prefills, then new requests."""

    name = "chunked_prefill"
    equivalence = TOKEN_EQUAL
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ("keeps_token_budget", "never_stalls_decodes")
    hook_api = (1, 0)

    class Config(PluginConfig):
        max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=1)] = 512
        """Tokens in one step, decodes included; `[engine] max_step_tokens` bounds them too."""
        max_partial_prefills: Annotated[int, msgspec.Meta(ge=1)] = 1
        """Prompts that may be split over steps at the same time; what decodes leave is shared evenly among them."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @hookimpl
    def schedule_step(self, limits: Limits) -> Modifier:
        if self.config.max_num_batched_tokens < limits.max_num_seqs:
            raise ConfigError(
                f"[plugins.chunked_prefill] max_num_batched_tokens = {self.config.max_num_batched_tokens} cannot give "
                f"each of max_num_seqs = {limits.max_num_seqs} running sequences its token: raise the one or lower the "
                "other"
            )
        return self

    def revise(self, plan: Plan, view: StepView) -> Plan:
        """The plan's rows with counts that sum to the budget at most; what is left of a prompt waits for later."""
        budgets = (self.config.max_num_batched_tokens, view.limits.max_step_tokens, plan.token_budget)
        # a chunk above any of them would run alone, and past every decode
        budget = min(budget for budget in budgets if budget is not None)
        entry = np.argsort(view.rows)[np.searchsorted(np.sort(view.rows), plan.order)]
        is_running = entry < view.num_running
        is_decode = is_running & (view.num_pending[entry] == 1)
        # stable: within each of the three groups the policy's order stands
        order = np.argsort(np.where(is_decode, 0, np.where(is_running, 1, 2)), kind="stable")
        num_tokens = plan.num_tokens[order]
        num_decodes = int(is_decode.sum())
        num_slots = max(0, view.limits.max_num_seqs - view.num_running)
        # who finds no slot gets no share: nobody would use it
        first, end = num_decodes, int(is_running.sum()) + num_slots
        num_tokens[first:end] = self._chunks(num_tokens[first:end].tolist(), budget - int(num_tokens[:first].sum()))
        num_tokens[end:] = 0
        num_drafts = plan.num_drafts[order] if len(plan.num_drafts) else plan.num_drafts
        return replace(plan, order=plan.order[order], num_tokens=num_tokens, num_drafts=num_drafts, token_budget=budget)

    def _chunks(self, wanted: list[int], left: int) -> list[int]:
        """Tokens for each prompt, in order: whole ones while they fit, and at most so many that are split.

        Those at the head share evenly; whoever needs less than its share leaves the rest, and its place, to others.
        """
        chunks = [0] * len(wanted)
        unserved = [index for index, count in enumerate(wanted) if count]
        while left > 0 and unserved:
            sharing = unserved[: self.config.max_partial_prefills]
            whole = [index for index in sharing if wanted[index] * len(sharing) <= left]
            for index in whole:
                chunks[index] = wanted[index]
                left -= wanted[index]
            for place, index in enumerate(() if whole else sharing):
                chunks[index] = -(-left // (len(sharing) - place))
                left -= chunks[index]
            unserved = [index for index in sharing if not chunks[index]] + unserved[len(sharing) :]
        return chunks
