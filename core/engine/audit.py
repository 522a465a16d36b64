"""The books of the engine: every block, row and queue entry belongs to exactly one living sequence."""

from __future__ import annotations

from ..interfaces import KVAllocator
from .requests import Requests
from .sampler import Sampler
from .sequence import State


def audit_engine(requests: Requests, allocator: KVAllocator, sampler: Sampler) -> list[str]:
    """Everything that is lost, held twice or held by the dead, one sentence each; empty when all is well."""
    audit = allocator.audit()
    problems = list(audit.problems)
    if not audit.is_clean and not problems:
        problems.append(
            f"{audit.total} blocks in all, but {audit.free} free + {audit.held} held + {audit.evictable} evictable"
        )
    held_rows = {row for sequences in requests.held.values() for row in sequences}
    places = [set(requests.running), set(requests.waiting), held_rows]
    if sum(map(len, places)) != len(requests.by_row) or set().union(*places) != set(requests.by_row):
        problems.append("a sequence stands in two queues or in none")
    for sequence in requests:
        if sequence.state is State.WAITING and sequence.num_computed:
            problems.append(f"row {sequence.row} waits and holds KV of {sequence.num_computed} tokens")
    if sampler.rows != frozenset(requests.by_row):
        problems.append("the sampler knows rows that do not live, or misses some")
    if audit.held and not any(len(table) for sequence in requests for table in sequence.tables):
        problems.append(f"{audit.held} blocks are held by no sequence that lives")
    return problems
