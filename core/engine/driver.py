"""Turns a policy's wish into work that fits: validates and clamps plans, allocates KV, picks victims.

What every policy gets for free: somebody runs whenever somebody can, no step exceeds its budget, no prompt is split
unless a modifier split it, nobody waits for ever, and a row without room preempts the last admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..errors import PluginFault
from ..interfaces import KVAllocator, Modifier, Policy, matches_prefixes, shares_blocks, trims_blocks
from ..records import NO_ROWS, BlockCopy, BoolArray, Hit, KVSpec, KVView, Limits, Plan, Slots, StepView
from ..registry import Bound
from .block_keys import extend_keys
from .plan_checks import checked, drafts_of, lowered, read_only
from .requests import Requests
from .sequence import IntBuffer, Sequence, State


@dataclass(slots=True)
class Chosen:
    """A sequence that runs in this step, and for how many known tokens and drafts."""

    sequence: Sequence
    num_tokens: int
    num_drafts: int = 0

    @property
    def is_last_chunk(self) -> bool:
        """After this step every known token is computed."""
        return self.sequence.num_computed + self.num_tokens == self.sequence.num_tokens

    @property
    def samples(self) -> bool:
        """The row's next token follows from this step."""
        return self.is_last_chunk and not self.sequence.pooling


class Driver:
    def __init__(
        self,
        requests: Requests,
        limits: Limits,
        policy: Bound[Policy],
        modifiers: list[Bound[Modifier]],
        allocator: Bound[KVAllocator],
        kv: KVView,
        kv_spec: KVSpec,
        *,
        proposer: str | None,
        on_preempt: Callable[[Sequence], None],
    ) -> None:
        self.requests = requests
        self.limits = limits
        self.policy = policy
        self.modifiers = modifiers
        self.allocator = allocator
        self.kv = kv
        self.kv_spec = kv_spec
        self.proposer = proposer
        """The plugin that drafts, the only one whose modifier may ask for drafts."""
        self.on_preempt = on_preempt
        matcher = allocator.value
        self.matcher = matcher if matches_prefixes(matcher) else None
        self.separates_tenants = self.matcher is None or self.matcher.key_scope == "tenant"
        self.can_fork = shares_blocks(matcher)
        has_windows = any(group.window is not None for group in kv_spec)
        self.trimmer = matcher if has_windows and trims_blocks(matcher) else None
        self.expecting: list[Sequence] = []
        """Rows of which the last view said what they will find."""
        self.num_preempted = 0
        self.fork_copies: list[BlockCopy] = []
        """What forks since the last step have to copy before anybody writes."""

    # -- plan -------------------------------------------------------------------------------------------------------

    def view(self, offered: list[Sequence], step: int, now: float, seed: int) -> StepView:
        kv = KVView(self.kv.block_size, self.kv.num_blocks, self.allocator.value.num_free())
        self._expect_prefixes(offered, kv.num_free)
        return self.requests.view(offered, step, now, seed, self.limits, kv)

    def plan(self, view: StepView) -> Plan:
        """The policy's plan after every modifier: each may reorder and lower, none may add or raise."""
        plan = checked(self.policy.value.plan(view), view, self.policy.plugin, "plan")
        if self.policy.plugin != self.proposer and len(plan.num_drafts):
            plan = replace(plan, num_drafts=NO_ROWS)
        for modifier in self.modifiers:
            before = plan
            plan = checked(modifier.value.revise(read_only(plan), view), view, modifier.plugin, "revise")
            plan = lowered(before, plan)
            if modifier.plugin != self.proposer and (len(before.num_drafts) or len(plan.num_drafts)):
                plan = replace(plan, num_drafts=drafts_of(before, plan.order))
        return plan

    # -- fit --------------------------------------------------------------------------------------------------------

    def fit(self, plan: Plan, view: StepView) -> list[Chosen]:
        """Who runs: the plan in its order, as far as slots and the token budget go."""
        budget = self.limits.max_step_tokens
        if plan.token_budget is not None:
            budget = min(budget, max(1, plan.token_budget))
        left, num_running, is_blocked = budget, len(self.requests.running), False
        chosen: list[Chosen] = []
        for wish in self._in_order(within_reach(plan, view, self.limits.max_num_seqs - num_running), view):
            is_waiting = wish.sequence.state is State.WAITING
            if is_waiting and (is_blocked or num_running >= self.limits.max_num_seqs):
                continue
            has_turn = not chosen or (is_waiting and num_running == len(self.requests.running))
            if wish.num_tokens > budget and has_turn:
                # the core splits nothing: what exceeds the budget runs, once it is its turn, alone
                return [wish]
            if wish.num_tokens > left:
                # a row that does not fit blocks those behind it, or short ones would overtake it for ever
                is_blocked = is_blocked or is_waiting
                continue
            left -= wish.num_tokens
            num_running += is_waiting
            chosen.append(wish)
        for wish in chosen if len(plan.num_drafts) else ():
            # drafts take what known tokens leave: a guess never costs another row its turn
            wish.num_drafts = min(wish.num_drafts, left)
            left -= wish.num_drafts
        return chosen

    def _in_order(self, plan: Plan, view: StepView) -> list[Chosen]:
        """The plan's wishes, clamped to what is pending; the first row offered if the plan wishes nothing."""
        sequences = [self.requests.by_row[row] for row in plan.order.tolist()]
        wishes = [
            Chosen(sequence, min(count, sequence.num_pending))
            for sequence, count in zip(sequences, plan.num_tokens.tolist(), strict=True)
        ]
        for wish, num_drafts in zip(wishes, plan.num_drafts.tolist(), strict=False):
            wish.num_drafts = draft_room(wish, num_drafts)
        wishes = [wish for wish in wishes if wish.num_tokens > 0]
        if not wishes:
            # progress is not asked of a policy
            first = self.requests.by_row[int(view.rows[0])]
            wishes = [Chosen(first, first.num_pending)]
        return wishes

    # -- grow -------------------------------------------------------------------------------------------------------

    def grow(self, chosen: list[Chosen], plan: Plan) -> tuple[list[Chosen], list[BlockCopy]]:
        """Give each chosen row its KV, preempting where there is none; who got nothing does not run."""
        granted: dict[int, Chosen] = {}
        copies: dict[int, tuple[BlockCopy, ...]] = {}
        num_preempted = self.num_preempted
        is_full = False
        running = [wish for wish in chosen if wish.sequence.state is State.RUNNING]
        newcomers = [wish for wish in chosen if wish.sequence.state is State.WAITING]
        # those who run come first: what a newcomer takes before them, one of them might have to give up
        for wish in [*running, *newcomers]:
            sequence = wish.sequence
            if sequence.state is State.WAITING:
                # a newcomer never takes from those who run, and nobody passes it in the queue
                if is_full or self.num_preempted > num_preempted:
                    continue
                if not self._adopt_prefix(wish):
                    is_full = True
                    continue
            taken = self._grow_row(wish, plan, granted)
            if taken is not None:
                granted[sequence.row] = wish
                if taken:
                    copies[sequence.row] = taken
            elif sequence.state is State.WAITING:
                self._give_back(sequence)
                is_full = True
        for wish in newcomers:
            if wish.sequence.row in granted:
                if not wish.sequence.num_preemptions:
                    # of a later admission, what it finds may be its own
                    wish.sequence.num_cached = wish.sequence.num_computed
                self.requests.admit(wish.sequence)
        if not granted:
            return [], []
        forked, self.fork_copies = self.fork_copies, []
        own = [copy for row, row_copies in copies.items() if row in granted for copy in row_copies]
        return list(granted.values()), forked + own

    def _grow_row(self, wish: Chosen, plan: Plan, granted: dict[int, Chosen]) -> tuple[BlockCopy, ...] | None:
        sequence = wish.sequence
        if sequence.state is State.WAITING and not wish.is_last_chunk and not self._has_room_for_all(sequence):
            # a prompt that comes in pieces would take what there is and have to give it back
            return None
        total = sequence.num_computed + sequence.num_in_flight + wish.num_tokens + wish.num_drafts
        while True:
            slots = self.allocator.value.grow(sequence.row, total)
            if slots is not None:
                return self._taken(sequence, slots, total)
            if sequence.state is State.WAITING:
                return None
            victim = self._victim(plan, sequence)
            granted.pop(victim.row, None)
            self.preempt(victim)
            if victim is sequence:
                return None

    def _taken(self, sequence: Sequence, slots: Slots, total: int) -> tuple[BlockCopy, ...]:
        """Enter what `grow` answered, if it is what was asked for."""
        try:
            copies = apply_slots(sequence, slots.blocks, slots.copies)
        except (AttributeError, TypeError, ValueError) as error:
            raise PluginFault(self.allocator.plugin, "grow", f"returned {slots!r}, Slots are needed") from error
        for table in sequence.tables:
            # not `len`, which is a call more for every row of every step
            room = table.length * self.kv.block_size
            if room < total:
                raise PluginFault(
                    self.allocator.plugin, "grow", f"returned room for {room} tokens where {total} are needed"
                )
        return copies

    def _has_room_for_all(self, sequence: Sequence) -> bool:
        """Whether KV is free for every known token, now that the row holds its cached prefix."""
        num_missing = -(-sequence.num_tokens // self.kv.block_size) - len(sequence.tables[0])
        return num_missing <= self.allocator.value.num_free()

    def _victim(self, plan: Plan, growing: Sequence) -> Sequence:
        """Who gives way: the plan's victims first, then the last admitted, at last the growing row itself."""
        running = self.requests.running
        wished = [running[int(row)] for row in plan.victims if int(row) in running]
        for victim in [*wished, *reversed(running.values())]:
            if not victim.num_in_flight:
                return victim
        return growing

    def preempt(self, sequence: Sequence) -> None:
        """Take all KV from a running row; its tokens stay, and are computed again when it is admitted again."""
        self.on_preempt(sequence)
        self.requests.preempt(sequence)
        self.num_preempted += 1
        self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        sequence.num_computed = 0
        sequence.num_trimmed = ()
        sequence.tables = empty_tables(len(sequence.tables))
        self.allocator.value.release(sequence.row)

    # -- prefixes and forks -----------------------------------------------------------------------------------------

    def _expect_prefixes(self, offered: list[Sequence], num_free: int) -> None:
        """See what waiting rows will find, so that they are planned with what is left to compute.

        In the order of the queue, as far as slots, tokens and KV go: whoever else is admitted finds its prefix then.
        """
        for sequence in self.expecting:
            sequence.num_expected = 0
        self.expecting.clear()
        num_slots, num_tokens = self.limits.max_num_seqs - len(self.requests.running), self.limits.max_step_tokens
        for sequence in offered if self.matcher is not None else ():
            if num_slots <= 0 or num_tokens <= 0 or num_free <= 0:
                return
            if sequence.state is State.WAITING:
                sequence.num_expected = self._match(sequence).num_tokens
                self.expecting.append(sequence)
                num_slots -= 1
                num_free -= -(-sequence.num_pending // self.kv.block_size)
            num_tokens -= sequence.num_pending

    def _match(self, sequence: Sequence) -> Hit:
        """What is cached of a waiting row's tokens; the last one is always computed."""
        if self.matcher is None or sequence.needs_whole_prompt:
            return NO_HIT
        extend_keys(sequence.root_key, sequence.keys, sequence.tokens.view, self.kv.block_size)
        usable = (sequence.num_tokens - 1) // self.kv.block_size
        return self.matcher.match(tuple(sequence.keys[:usable]))

    def _adopt_prefix(self, wish: Chosen) -> bool:
        """Start a waiting row on the cached blocks of its prefix. False: what it was planned with is gone.

        Only for room that others took in this very step: it waits for the next one, whose plan knows better.
        """
        sequence = wish.sequence
        hit = self._match(sequence)
        num_expected, sequence.num_expected = sequence.num_expected, 0
        if hit.num_tokens < num_expected:
            return False
        if hit.num_tokens:
            assert shares_blocks(self.allocator.value), "who finds prefixes can adopt them"
            self.allocator.value.adopt(sequence.row, hit.blocks)
            apply_slots(sequence, hit.blocks, ())
            sequence.num_computed = hit.num_tokens
            wish.num_tokens = min(wish.num_tokens, sequence.num_pending)
        return True

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Let a sibling start from the parent's prompt, whose last token it computes itself. False: it recomputes."""
        if not self.can_fork or len(self.requests.running) >= self.limits.max_num_seqs:
            return False
        assert shares_blocks(self.allocator.value)
        slots = self.allocator.value.fork(parent.row, child.row, parent.num_prompt - 1)
        if slots is None:
            return False
        self.fork_copies += apply_slots(child, slots.blocks, slots.copies)
        child.num_computed = parent.num_prompt - 1
        self.requests.admit(child)
        return True

    def commit(self, sequence: Sequence) -> None:
        """Tell the allocator what is computed and accepted; only now may it be found by others."""
        keys: tuple[bytes, ...] = ()
        if self.matcher is not None:
            if sequence.num_tokens >= (len(sequence.keys) + 1) * self.kv.block_size:
                # asked first, since most steps fill no block and a view of the tokens is made for the call
                extend_keys(sequence.root_key, sequence.keys, sequence.tokens.view, self.kv.block_size)
            keys = tuple(sequence.keys[: sequence.num_computed // self.kv.block_size])
        self.allocator.value.commit(sequence.row, sequence.num_computed, keys)
        self._trim(sequence)

    def _trim(self, sequence: Sequence) -> None:
        """Give back what lies behind the windows, up to what the last computed token saw: a sibling may start there."""
        if self.trimmer is None:
            return
        last, block_size = sequence.num_computed - 1, self.kv.block_size
        num_trimmed = tuple(group.num_unseen(last, block_size) for group in self.kv_spec)
        if any(num_trimmed) and num_trimmed != sequence.num_trimmed:
            sequence.num_trimmed = num_trimmed
            self.trimmer.trim(sequence.row, num_trimmed)

    def release(self, sequence: Sequence) -> None:
        """A row is gone for good; releasing it again does nothing."""
        self.allocator.value.release(sequence.row)


# -- pure parts -----------------------------------------------------------------------------------------------------

NO_HIT = Hit((), 0)


def empty_tables(num_groups: int) -> tuple[IntBuffer, ...]:
    return tuple(IntBuffer(NO_ROWS) for _ in range(num_groups))


def apply_slots(
    sequence: Sequence, blocks: tuple[tuple[int, ...], ...], copies: tuple[BlockCopy, ...]
) -> tuple[BlockCopy, ...]:
    """Enter what the allocator gave into the row's block tables; returns the copies to make."""
    if any(blocks):
        for table, new in zip(sequence.tables, blocks, strict=True):
            # where the row holds nothing any number will do, since nothing is read there
            table.extend(tuple(max(0, block) for block in new))
    for copy in copies:
        sequence.tables[copy.group].replace(copy.source, copy.target)
    return copies


def draft_room(wish: Chosen, num_drafts: int) -> int:
    """Drafts follow a row that is in decode, and end before its last token."""
    sequence = wish.sequence
    if sequence.num_computed < sequence.num_prompt or not wish.is_last_chunk:
        return 0
    return max(0, min(num_drafts, sequence.params.max_tokens - sequence.num_output - 1))


def running_part(plan: Plan, view: StepView) -> Plan:
    """What the plan wants of the rows that run already."""
    return part_of(plan, np.isin(plan.order, view.rows[: view.num_running]))


def within_reach(plan: Plan, view: StepView, num_slots: int) -> Plan:
    """The plan without waiting rows that cannot have a turn: of those before each takes a slot, or blocks the rest."""
    if len(plan.order) <= view.num_running + num_slots:
        return plan
    plan = part_of(plan, plan.num_tokens > 0)
    waits = ~np.isin(plan.order, view.rows[: view.num_running])
    return part_of(plan, ~waits | (np.cumsum(waits) <= num_slots + 1))


def part_of(plan: Plan, chosen: BoolArray) -> Plan:
    num_drafts = plan.num_drafts[chosen] if len(plan.num_drafts) else plan.num_drafts
    return replace(plan, order=plan.order[chosen], num_tokens=plan.num_tokens[chosen], num_drafts=num_drafts)
