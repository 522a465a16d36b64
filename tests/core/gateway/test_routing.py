"""Who decides where a request goes."""

from __future__ import annotations

from switchgear.core.config import build_config
from switchgear.core.defaults import make_registry
from switchgear.core.gateway.routing import Routing, least_loaded
from switchgear.core.records import Decision, Event, IngressRequest, PoolView
from switchgear.core.registry import Bound

REQUEST = IngressRequest(id="request", prompt=(1, 2, 3))


def pool(name: str, num_running: int = 0, num_waiting: int = 0, kv_usage: float = 0.0) -> PoolView:
    return PoolView(name, True, num_running, num_waiting, kv_usage)


class Fixed:
    def __init__(self, target: str | None) -> None:
        self.target = target
        self.events: list[Event] = []

    def pick(self, request: IngressRequest, pools: tuple[PoolView, ...]) -> Decision | None:
        return None if self.target is None else Decision(self.target, "always")

    def observe(self, event: Event) -> None:
        self.events.append(event)


def routing(*routers: Fixed) -> Routing:
    registry = make_registry(build_config(recipe="all_off"))
    return Routing(registry, [Bound(f"router {number}", router) for number, router in enumerate(routers)])


def test_the_least_loaded_is_who_has_fewest_requests_then_most_room_then_comes_first() -> None:
    assert least_loaded([pool("a", 2), pool("b", 1, 2), pool("c", 1)]).name == "c"
    assert least_loaded([pool("a", 1, 1, 0.5), pool("b", 2, 0, 0.25)]).name == "b"
    assert least_loaded([pool("a"), pool("b")]).name == "a"


def test_the_first_decision_counts() -> None:
    pools = (pool("a"), pool("b"), pool("c"))
    assert routing(Fixed(None), Fixed("c"), Fixed("b")).pick(REQUEST, pools).pool == "c"


def test_where_nobody_decides_it_is_the_least_loaded() -> None:
    decision = routing(Fixed(None)).pick(REQUEST, (pool("a", 1), pool("b")))
    assert (decision.pool, decision.reason) == ("b", "the least loaded pool")


def test_every_router_hears_of_everything() -> None:
    routers = Fixed("a"), Fixed(None)
    event = Event("queued", 1.0, row=3)
    routing(*routers).observe(event)
    assert [router.events for router in routers] == [[event], [event]]
