"""Whatever comes, in whatever order, under whatever policy: the books balance and every request gets its own tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from switchgear.core.engine.engine import Engine
from switchgear.core.errors import RequestError
from switchgear.core.records import IntArray
from switchgear.core.sampling_params import SamplingParams

from .build import Heard, add, drain, executor_of, step, virtual_engine
from .drafting import drafting
from .paged import PagedBlocks, PagedKV
from .prefix import CachedBlocks, PrefixCache
from .schedulers import AnyModifier, AnyPolicy, Continuous
from .virtual import VOCAB_SIZE, digest_alone, logits_of, prompt_logprobs_alone, tokens_alone

POLICIES: tuple[type | None, ...] = (None, Continuous, AnyPolicy)
TICKETS = ("kv", "grammar")

params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    min_tokens=st.just(0) | st.just(1),
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.sampled_from([0, 5]),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    seed=st.integers(0, 5),
    stop_token_ids=st.sampled_from([(), (7, 8)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
    n=st.sampled_from([1, 1, 1, 2, 3]),
)


def plausible(num_groups: int, tokens: IntArray, num_drafts: int) -> list[int]:
    """Some of what a greedy row will say, then some of what it will not."""
    drafts: list[int] = []
    for place in range(num_drafts):
        logits = logits_of([digest_alone(np.concatenate([tokens, drafts]).astype(np.int64), num_groups)])
        drafts.append(int(logits.argmax()) if (len(tokens) + place) % 3 else int(tokens[0]))
    return drafts[: int(tokens[-1]) % (num_drafts + 1)]


class EngineMachine(RuleBasedStateMachine):
    engine: Engine

    @initialize(
        allocator=st.sampled_from(["contiguous", "paged", "prefix"]),
        copies_at_fork=st.booleans(),
        policy=st.sampled_from(POLICIES),
        has_modifier=st.booleans(),
        has_drafts=st.booleans(),
        block_size=st.sampled_from([4, 8, 16]),
        num_tokens=st.integers(24, 128),
        num_groups=st.sampled_from([1, 2]),
        max_in_flight=st.sampled_from([1, 1, 2]),
        max_num_seqs=st.integers(1, 6),
        max_step_tokens=st.integers(6, 40),
        max_overtaken=st.integers(1, 5),
        seed=st.integers(0, 2**16),
    )
    def build(
        self,
        allocator: str,
        copies_at_fork: bool,
        policy: type | None,
        has_modifier: bool,
        has_drafts: bool,
        block_size: int,
        num_tokens: int,
        num_groups: int,
        seed: int,
        **limits: Any,
    ) -> None:
        classes: list[type] = [policy] if policy else []
        options: dict[str, dict[str, Any]] = {"any_policy": {"seed": seed}} if policy is AnyPolicy else {}
        if has_modifier:
            classes.append(AnyModifier)
            options["any_modifier"] = {"seed": seed}
        if has_drafts:
            classes.append(drafting(lambda tokens, count: plausible(num_groups, tokens, count)))
        pool: dict[str, int] = {}
        if allocator != "contiguous":
            classes += [PagedKV, PrefixCache][: 1 if allocator == "paged" else 2]
            options["paged"] = {"block_size": block_size, "copies_at_fork": copies_at_fork}
            pool = {"num_blocks": num_tokens // block_size + 1, "block_size": block_size}
        self.engine = virtual_engine(*classes, plugins=options, num_groups=num_groups, seed=seed, **pool, **limits)
        self.max_step_tokens = limits["max_step_tokens"]
        self.num_groups = num_groups
        self.heard = Heard()
        self.prompts: dict[str, tuple[list[int], SamplingParams]] = {}
        self.aborted: set[tuple[str, int]] = set()

    @rule(
        length=st.integers(1, 30),
        first=st.integers(0, 2),
        params=params,
        hold=st.sampled_from([None, None, None, *TICKETS]),
    )
    def arrive(self, length: int, first: int, params: SamplingParams, hold: str | None) -> None:
        # prompts share beginnings, so that there is something to find
        prompt = [(first + place) % (VOCAB_SIZE - 3) + 3 for place in range(length)]
        request = f"r{len(self.prompts)}"
        try:
            add(self.engine, request, prompt, params, hold=hold)
        except RequestError as error:
            assert "KV blocks" in str(error)
        else:
            self.prompts[request] = prompt, params

    @rule(count=st.integers(1, 6))
    def run(self, count: int) -> None:
        for _ in range(count):
            step(self.engine, self.heard)

    @precondition(lambda self: self.prompts)
    @rule(which=st.integers(0, 10**6), child=st.sampled_from([None, 0, 1, 2]))
    def abort(self, which: int, child: int | None) -> None:
        request = f"r{which % len(self.prompts)}"
        children = range(self.prompts[request][1].n) if child is None else [child]
        self.engine.abort(request, child)
        self.aborted |= {(request, index) for index in children}

    @rule()
    def preempt_all(self) -> None:
        self.engine.preempt_all()

    @rule(ticket=st.sampled_from([*TICKETS, "unknown"]))
    def complete(self, ticket: str) -> None:
        self.engine.complete(ticket)

    @invariant()
    def books_balance(self) -> None:
        assert self.engine.audit() == []
        tables = {
            sequence.row: [table.view.tolist() for table in sequence.tables]
            for sequence in self.engine.requests
            if len(sequence.tables[0])
        }
        allocator = self.engine.driver.allocator.value
        paged = allocator.inner if isinstance(allocator, CachedBlocks) else allocator
        if isinstance(paged, PagedBlocks):
            assert tables == {row: held for row, held in paged.tables.items() if held[0]}

    @invariant()
    def budget_is_kept(self) -> None:
        executor = executor_of(self.engine)
        for num_rows, num_tokens in zip(executor.num_rows, executor.num_step_tokens, strict=True):
            assert num_rows == 1 or num_tokens <= self.max_step_tokens
        executor.num_rows.clear()
        executor.num_step_tokens.clear()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for ticket in TICKETS:
            self.engine.complete(ticket)
        drain(self.engine, self.heard)
        assert self.engine.num_restarts == 0
        for request, (prompt, params) in self.prompts.items():
            for child in range(params.n):
                self._check(request, child, prompt, params)

    def _check(self, request: str, child: int, prompt: list[int], params: SamplingParams) -> None:
        key = request, child
        (final,) = self.heard.finals[key]
        expected = tokens_alone(prompt, params, child, self.num_groups)
        output = self.heard.output(*key)
        assert final.finish_reason in (("stop", "length", "abort") if key in self.aborted else ("stop", "length"))
        if final.finish_reason == "abort":
            expected = expected[: len(output)]
        assert output == expected
        assert len(self.heard.logprobs[key]) == (len(output) if params.logprobs is not None else 0)
        scores = self.heard.prompt_logprobs[key]
        if params.prompt_logprobs is None or child:
            assert scores == []
        elif output:
            assert scores == pytest.approx(prompt_logprobs_alone(prompt, self.num_groups))


EngineMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
test_any_history = EngineMachine.TestCase
