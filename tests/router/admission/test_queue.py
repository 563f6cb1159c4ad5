"""The admission queue against a plain list: sums, bounds, nothing lost or counted twice, memory, cost."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scripted.examples import examples
from tidepool_router.admission import Limits, Queue, Refusal, Ticket


def ticket(
    priority: int = 0, body_bytes: int = 1, offered_at: float = 0.0, deadline: float = 60.0, **more: Any
) -> Ticket:
    facts = {"prompt_tokens": 10, "output_tokens": 5} | more
    return Ticket(priority=priority, body_bytes=body_bytes, offered_at=offered_at, deadline=deadline, **facts)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: Queue[Ticket] = Queue(Limits(max_waiting=8, max_bytes=100))
        self.waiting: list[Ticket] = []  # in the order of offers
        self.gone: list[Ticket] = []
        self.now = 0.0

    @rule(
        priority=st.integers(-2, 2),
        tenant=st.sampled_from([None, "a", "b"]),
        size=st.integers(0, 30),
        patience=st.integers(0, 20),
        work=st.integers(0, 5000),
    )
    def offer(self, priority: int, tenant: str | None, size: int, patience: int, work: int) -> None:
        new = ticket(priority, size, self.now, self.now + patience, prompt_tokens=work, tenant=tenant)
        full_count = len(self.waiting) >= 8
        full_bytes = sum(t.body_bytes for t in self.waiting) + size > 100
        reason = self.queue.offer(new)
        if full_count:
            assert reason is Refusal.COUNT
        elif full_bytes:
            assert reason is Refusal.BYTES
        else:
            assert reason is None
        if reason is None:
            self.waiting.append(new)
            return
        victim = self.queue.make_room(new)
        if victim is not None:
            assert victim in self.waiting
            assert victim.priority <= priority
            self._left([victim])
            assert self.queue.offer(new) is None  # else nobody should have left
            self.waiting.append(new)

    @rule(times=st.integers(0, 4))
    def serve(self, times: int) -> None:
        for _ in range(min(times, len(self.waiting))):
            chosen = self.queue.next(self.now)
            assert chosen is not None
            assert self.queue.next(self.now) is chosen  # asking changes nothing
            assert chosen in self.waiting
            self.queue.went(chosen)
            self._left([chosen])

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), took=st.integers(0, 9000))
    def settle(self, data: st.DataObject, took: int) -> None:
        self.queue.settle(data.draw(st.sampled_from(self.gone)), took)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(self.waiting))
        assert self.queue.remove(leaver) is True
        self._left([leaver])

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def remove_again(self, data: st.DataObject) -> None:
        assert self.queue.remove(data.draw(st.sampled_from(self.gone))) is False

    @rule(seconds=st.integers(0, 15))
    def expire(self, seconds: int) -> None:
        self.now += seconds
        late = [t for t in self.waiting if t.deadline <= self.now]
        expired = self.queue.expire(self.now)
        assert set(expired) == set(late)
        assert [t.deadline for t in expired] == sorted(t.deadline for t in late)
        self._left(late)

    @rule(count=st.integers(0, 12))
    def change_limits(self, count: int) -> None:
        """Whoever waits stays, whatever the new bound; put back at once so that offers can be judged."""
        self.queue.limits = Limits(count, 0)
        self.queue.limits = Limits(8, 100)

    @invariant()
    def sums_are_those_of_who_waits(self) -> None:
        assert self.queue.held == len(self.waiting)
        assert self.queue.held_bytes == sum(t.body_bytes for t in self.waiting)
        assert self.queue.held_prompt_tokens == sum(t.prompt_tokens for t in self.waiting)
        assert self.queue.held_output_tokens == 5 * len(self.waiting)
        assert self.queue.oldest_offered_at() == min((t.offered_at for t in self.waiting), default=None)
        assert (self.queue.next(self.now) is None) == (not self.waiting)

    @invariant()
    def work_before_is_no_more_than_waits(self) -> None:
        lowest = self.queue.work_before(-3, None, 1)
        assert lowest == sum(t.work_tokens for t in self.waiting)
        assert self.queue.work_before(3, None, 1) == 0
        for work in (1, 100, 100_000):
            assert 0 <= self.queue.work_before(0, "a", work) <= lowest
        assert self.queue.work_before(0, "a", 1) <= self.queue.work_before(0, "a", 100_000)

    def teardown(self) -> None:
        served = []
        while (chosen := self.queue.next(self.now)) is not None:
            self.queue.went(chosen)
            served.append(chosen)
        assert set(served) == set(self.waiting)
        assert len(served) == len(self.waiting)
        assert (self.queue.held, self.queue.held_bytes, self.queue.held_work_tokens) == (0, 0, 0)

    def _left(self, tickets: list[Ticket]) -> None:
        self.gone += tickets
        self.waiting = [t for t in self.waiting if t not in tickets]


QueueMachine.TestCase.settings = examples(20, stateful_step_count=40)
TestQueue = QueueMachine.TestCase


def test_both_bounds_hold_to_the_last_one() -> None:
    queue: Queue[Ticket] = Queue(Limits(max_waiting=3, max_bytes=100))
    first = ticket(body_bytes=30)

    assert [queue.offer(t) for t in (first, ticket(body_bytes=30), ticket(body_bytes=30))] == [None] * 3
    assert queue.offer(ticket(body_bytes=0)) is Refusal.COUNT
    queue.went(first)
    assert queue.offer(ticket(body_bytes=41)) is Refusal.BYTES
    assert queue.offer(ticket(body_bytes=40)) is None


def test_a_queue_of_no_places_refuses() -> None:
    queue: Queue[Ticket] = Queue(Limits(max_waiting=0, max_bytes=100))

    assert queue.offer(ticket()) is Refusal.COUNT
    assert queue.make_room(ticket(priority=100)) is None


@pytest.mark.parametrize(
    ("priority", "tenant", "leaves", "why"),
    [
        (1, "flood", "batch", "a lower priority leaves first, whoever it is"),
        (0, "flood", None, "its own tenant has filled the queue"),
        (0, "quiet", "youngest of the flood", "one tenant must not fill the queue for all"),
        (-1, "quiet", None, "a lower priority displaces nobody"),
    ],
)
def test_who_leaves_a_full_queue_for_whom(priority: int, tenant: str, leaves: str | None, why: str) -> None:
    queue: Queue[Ticket] = Queue(Limits(max_waiting=5, max_bytes=100))
    flood = [ticket(tenant="flood", offered_at=at) for at in range(4)]
    for one in flood:
        queue.offer(one)
    batch = ticket(priority=-1 if leaves == "batch" else 0, tenant="other")
    queue.offer(batch)

    victim = queue.make_room(ticket(priority=priority, tenant=tenant))

    assert victim is {"batch": batch, "youngest of the flood": flood[-1], None: None}[leaves], why


def test_a_large_body_does_not_empty_the_queue() -> None:
    queue: Queue[Ticket] = Queue(Limits(max_waiting=5, max_bytes=100))
    for _ in range(3):
        queue.offer(ticket(body_bytes=30))

    assert queue.make_room(ticket(priority=9, body_bytes=60)) is None  # one leaving is not enough
    assert queue.held == 3
    assert queue.make_room(ticket(priority=9, body_bytes=40)) is not None


def test_memory_stays_bounded_when_clients_come_and_go() -> None:
    """A ticket that left must not be kept until it would have been its turn."""
    queue: Queue[Ticket] = Queue(Limits(10, 1000))
    queue.offer(ticket(priority=5))
    for number in range(10_000):
        leaver = ticket(priority=5, tenant=f"t{number % 7}")
        queue.offer(leaver)
        queue.remove(leaver)

    assert queue.held == 1
    assert queue.kept < 200


def test_memory_stays_bounded_when_each_request_is_another_tenants() -> None:
    queue: Queue[Ticket] = Queue(Limits(10, 1000))
    for number in range(20_000):
        queue.offer(ticket(tenant=f"t{number}"))
        chosen = queue.next(0.0)
        assert chosen is not None
        queue.went(chosen)

    assert queue.kept < 5000


def lines_run(work: Callable[[], None]) -> int:
    """Lines of Python that it ran: a cost that does not depend on the machine."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("tenants", [1, 1_000_000])
def test_a_request_costs_the_same_in_a_queue_sixty_times_as_long(tenants: int) -> None:
    def cost(length: int) -> float:
        queue: Queue[Ticket] = Queue(Limits(length + 1, 1 << 40))
        number = 0

        def one(now: float) -> Ticket:
            nonlocal number
            number += 1
            return ticket(
                number % 3,
                1,
                now,
                now + 60 + number % 7,
                tenant=f"t{number % tenants}",
                prompt_tokens=number % 999,
            )

        for _ in range(length):
            queue.offer(one(0.0))

        def turn() -> None:
            for step in range(200):
                queue.offer(one(step))
                queue.remove(one(step))
                queue.expire(0.0)
                chosen = queue.next(step)
                assert chosen is not None
                queue.went(chosen)

        return lines_run(turn) / 200

    assert cost(12_000) < 1.5 * cost(200)
