from collections.abc import Sequence

from switchgear.core.lab.agenda import Agenda
from switchgear.core.lab.workload import ALONE, Ask, Workload


def agenda(*asks: tuple[float, int], num_clients: int | None = None) -> Agenda:
    """Of (arrival, conversation)."""
    made = tuple(Ask(arrival, 1, text="x", conversation=conversation) for arrival, conversation in asks)
    return Agenda(Workload("test", made, num_clients))


def taken(of: Agenda, now: float) -> Sequence[tuple[int, float]]:
    return [(due.index, due.time) for due in of.take(now)]


def test_open_requests_come_when_they_arrive_and_wait_for_nobody() -> None:
    plan = agenda((0.0, ALONE), (1.0, ALONE), (1.0, ALONE), (2.5, ALONE))
    assert taken(plan, 0.0) == [(0, 0.0)]
    assert plan.next_due == 1.0
    assert taken(plan, 0.9) == []
    assert taken(plan, 1.7) == [(1, 1.0), (2, 1.0)]
    assert taken(plan, 9.0) == [(3, 2.5)]
    assert plan.next_due is None and not plan.is_over
    for index in (3, 0, 2):
        plan.answer(index, 10.0)
    assert not plan.is_over
    plan.answer(1, 11.0)
    assert plan.is_over


def test_a_turn_is_due_at_its_arrival_but_not_before_the_answer_ahead_of_it() -> None:
    plan = agenda((0.0, 7), (0.5, ALONE), (1.0, 7), (9.0, 7))
    assert taken(plan, 5.0) == [(0, 0.0), (1, 0.5)]
    assert plan.next_due is None
    assert plan.has_next(0) and not plan.has_next(1)
    plan.answer(0, 5.0)
    assert taken(plan, 5.0) == [(2, 5.0)]
    plan.answer(2, 6.0)
    assert plan.next_due == 9.0


def test_in_a_closed_loop_a_client_asks_when_it_is_answered() -> None:
    plan = agenda(*[(0.0, ALONE)] * 4, num_clients=2)
    assert taken(plan, 0.0) == [(0, 0.0), (1, 0.0)]
    assert plan.next_due is None
    plan.answer(1, 3.0)
    assert taken(plan, 3.5) == [(2, 3.0)]
    plan.answer(0, 4.0)
    assert taken(plan, 4.0) == [(3, 4.0)]


def test_a_client_leads_its_conversation_to_the_end() -> None:
    plan = agenda((0.0, 1), (0.0, 1), (0.0, 2), (0.0, 2), num_clients=1)
    order = []
    now = 0.0
    while not plan.is_over:
        (due,) = plan.take(now)
        order.append(due.index)
        now += 1.0
        plan.answer(due.index, now)
    assert order == [0, 1, 2, 3]


def test_a_conversation_that_fails_is_not_gone_on_with_and_its_client_takes_another() -> None:
    plan = agenda((0.0, 1), (0.0, 1), (0.0, 1), (0.0, ALONE), num_clients=1)
    taken(plan, 0.0)
    assert plan.fail(0, 2.0) == [1, 2]
    assert taken(plan, 2.0) == [(3, 2.0)]
    assert plan.fail(3, 3.0) == []
    assert plan.is_over


def test_more_clients_than_requests_is_fine() -> None:
    plan = agenda((0.0, ALONE), num_clients=5)
    assert taken(plan, 0.0) == [(0, 0.0)]
