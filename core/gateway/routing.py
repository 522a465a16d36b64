"""Which pool a request goes to: the routers in config order, and the least loaded pool where none decides."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PluginFault
from ..interfaces import Router
from ..records import Decision, Event, IngressRequest, PoolView
from ..registry import Bound, Registry


class Routing:
    """Asks the routers of one gateway."""

    def __init__(self, registry: Registry, routers: Sequence[Bound[Router]]) -> None:
        self.registry = registry
        self.routers = tuple(routers)

    def pick(self, request: IngressRequest, pools: tuple[PoolView, ...]) -> Decision:
        """The first decision. Raises PluginFault for a router that raises or names a pool that does not exist."""
        for router in self.routers:
            with self.registry.blaming():
                decision = router.value.pick(request, pools)
            if decision is None:
                continue
            if not isinstance(decision, Decision) or decision.pool not in {pool.name for pool in pools}:
                names = ", ".join(pool.name for pool in pools)
                raise PluginFault(router.plugin, "pick", f"decided {decision!r}, and the pools are {names}")
            return decision
        return Decision(least_loaded(pools).name, "the least loaded pool")

    def observe(self, event: Event) -> None:
        """Tell every router."""
        for router in self.routers:
            with self.registry.blaming():
                router.value.observe(event)


def least_loaded(pools: Sequence[PoolView]) -> PoolView:
    """The pool with the fewest requests inside, of those the one with the most KV free, of those the first."""
    return min(pools, key=lambda pool: (pool.num_running + pool.num_waiting, pool.kv_usage))
