"""The admission queue against a plain list: order, bounds, and nothing lost or counted twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidepool_router.admission import Limits, Queue, Refusal, Ticket, Verdict


def ticket(priority: int = 0, body_bytes: int = 1, offered_at: float = 0.0, deadline: float = 60.0) -> Ticket:
    return Ticket(
        priority=priority, body_bytes=body_bytes, prompt_tokens=10, offered_at=offered_at, deadline=deadline
    )


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: Queue[Ticket] = Queue(Limits(max_waiting=8, max_bytes=100))
        self.waiting: list[Ticket] = []  # in the order of offers
        self.gone: list[Ticket] = []
        self.now = 0.0

    @rule(priority=st.integers(-2, 2), size=st.integers(0, 30), patience=st.integers(0, 20))
    def offer(self, priority: int, size: int, patience: int) -> None:
        new = ticket(priority, size, self.now, self.now + patience)
        full_count = len(self.waiting) >= 8
        full_bytes = sum(t.body_bytes for t in self.waiting) + size > 100
        verdict, reason = self.queue.offer(new)
        if full_count:
            assert (verdict, reason) == (Verdict.REFUSE, Refusal.COUNT)
        elif full_bytes:
            assert (verdict, reason) == (Verdict.REFUSE, Refusal.BYTES)
        else:
            assert (verdict, reason) == (Verdict.WAIT, None)
            self.waiting.append(new)

    @rule(free=st.integers(0, 4))
    def take(self, free: int) -> None:
        wanted = sorted(self.waiting, key=lambda t: -t.priority)[:free]  # sorted() is stable: older ones first
        assert self.queue.take(free) == wanted
        self._left(wanted)

    @rule(free=st.integers(1, 3))
    def take_and_put_back(self, free: int) -> None:
        for taken in self.queue.take(free):
            self.queue.put_back(taken)

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
        assert self.queue.held_prompt_tokens == 10 * len(self.waiting)
        assert self.queue.oldest_offered_at() == min((t.offered_at for t in self.waiting), default=None)

    def teardown(self) -> None:
        wanted = sorted(self.waiting, key=lambda t: -t.priority)
        assert self.queue.take(1000) == wanted
        assert (self.queue.held, self.queue.held_bytes, self.queue.held_prompt_tokens) == (0, 0, 0)

    def _left(self, tickets: list[Ticket]) -> None:
        self.gone += tickets
        self.waiting = [t for t in self.waiting if t not in tickets]


QueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase


def test_both_bounds_hold_to_the_last_one() -> None:
    queue: Queue[Ticket] = Queue(Limits(max_waiting=3, max_bytes=100))

    assert [queue.offer(ticket(body_bytes=30))[0] for _ in range(3)] == [Verdict.WAIT] * 3
    assert queue.offer(ticket(body_bytes=0)) == (Verdict.REFUSE, Refusal.COUNT)
    queue.take(1)
    assert queue.offer(ticket(body_bytes=41)) == (Verdict.REFUSE, Refusal.BYTES)
    assert queue.offer(ticket(body_bytes=40)) == (Verdict.WAIT, None)


def test_a_queue_of_no_places_refuses() -> None:
    queue: Queue[Ticket] = Queue(Limits(max_waiting=0, max_bytes=100))

    assert queue.offer(ticket()) == (Verdict.REFUSE, Refusal.COUNT)


def test_an_offer_never_overtakes_who_waits() -> None:
    queue: Queue[Ticket] = Queue(Limits(10, 1000))

    assert queue.offer(ticket(), free=1) == (Verdict.ADMIT, None)
    queue.offer(ticket())
    assert queue.offer(ticket(priority=100), free=1) == (Verdict.WAIT, None)


def test_memory_stays_bounded_when_clients_come_and_go() -> None:
    """A ticket that left must not be kept until it would have been its turn."""
    queue: Queue[Ticket] = Queue(Limits(10, 1000))
    queue.offer(ticket(priority=5))
    for _ in range(10_000):
        leaver = ticket()
        queue.offer(leaver)
        queue.remove(leaver)

    assert queue.held == 1
    assert queue.kept < 100
