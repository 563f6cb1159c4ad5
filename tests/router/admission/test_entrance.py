"""Who is let in to wait, who leaves for whom, who is turned away, and what each of them hears."""

import pytest

from tidepool_router.admission import Entrance, Limits, Refusal, Ticket, Turned
from tidepool_router.errors import QueueFull, QueueTimeout, TooLate


def ticket(deadline: float = 60.0, *, own: bool = False, priority: int = 0, tenant: str | None = None) -> Ticket:
    """Of 100 tokens, offered at 0."""
    made = Ticket(
        priority=priority, tenant=tenant, body_bytes=1, prompt_tokens=100, offered_at=0.0, deadline=deadline
    )
    made.by_own_deadline = own
    return made


def entrance(max_waiting: int = 10) -> Entrance[Ticket]:
    return Entrance(Limits(max_waiting, 1 << 20), "default/llama", "No pod took it")


def measured(door: Entrance[Ticket]) -> None:
    """A hundred tokens a second, and one request waits."""
    door.drain.waiting(0.0)
    door.drain.left(100, 1.0, empty=True)
    assert door.offer(ticket(1000.0), 1.0) == (None, None)


@pytest.mark.parametrize(
    ("rate", "own", "deadline", "waits", "why"),
    [
        (True, True, 2.5, True, "one goes before it: it begins in a second, and has one and a half"),
        (True, True, 1.9, False, "it would begin when its deadline is over"),
        (True, False, 1.9, True, "only the time that the pool lets it wait: what that is for"),
        (False, True, 1.1, True, "nobody knows the rate: it may go at once"),
        (False, True, 0.9, False, "whatever the rate, its deadline leaves no time"),
        (False, False, 0.9, True, "not its own deadline"),
    ],
)
def test_whose_deadline_cannot_be_met_is_told_at_once(
    rate: bool, own: bool, deadline: float, waits: bool, why: str
) -> None:
    door = entrance()
    measured(door) if rate else door.offer(ticket(1000.0), 1.0)

    turned, victim = door.offer(ticket(deadline, own=own), 1.0)

    assert (turned is None, victim) == (waits, None), why
    assert door.queue.held == 1 + waits
    if turned is not None:
        assert turned.reason is Refusal.DEADLINE
        assert isinstance(turned.error, TooLate)
        said = str(turned.error)
        assert "default/llama" in said
        assert ("At the rate of now" in said and "0.9 s" in said) if rate else "no time" in said


def test_a_full_queue_turns_away_and_says_how_many_wait_there_and_ahead_of_it() -> None:
    door = entrance(max_waiting=1)
    door.offer(ticket(), 0.0)

    turned, victim = door.offer(ticket(), 0.0, ahead=4)

    assert victim is None
    assert turned is not None
    assert turned.reason is Refusal.COUNT
    assert isinstance(turned.error, QueueFull)
    assert str(turned.error) == "5 requests wait for default/llama already and its queue is full; try later."
    assert turned.error.refusal.retry_after_seconds is not None


def test_one_with_a_better_right_takes_a_place_and_the_one_who_leaves_hears_why() -> None:
    door = entrance(max_waiting=1)
    batch, urgent = ticket(), ticket(priority=100)
    door.offer(batch, 0.0)

    assert door.offer(urgent, 0.0) == (None, batch)
    assert (door.queue.held, door.queue.next(0.0)) == (1, urgent)
    reason, error = door.displaced()
    assert reason is Refusal.DISPLACED
    assert "took the place" in str(error)


@pytest.mark.parametrize(
    ("own", "reason", "within"),
    [
        (True, Refusal.DEADLINE, "within the 1.5 s that its own deadline leaves"),
        (False, Refusal.TIMEOUT, "within 2 s"),
    ],
)
def test_who_waited_in_vain_hears_whose_time_was_over(own: bool, reason: Refusal, within: str) -> None:
    door = entrance()
    one = ticket(1.5, own=own)
    door.offer(one, 0.0)
    door.offer(ticket(5.0), 0.0)

    assert door.expire(1.4) == []
    ((late, turned),) = door.expire(1.5)

    assert late is one
    assert turned.reason is reason
    assert isinstance(turned.error, QueueTimeout)
    assert str(turned.error) == f"No pod took it {within}; try later."
    assert door.queue.held == 1


def test_what_is_served_measures_the_rate() -> None:
    door = entrance()
    for _ in range(3):
        door.offer(ticket(), 0.0)
    for at in (1.0, 2.0):
        chosen = door.queue.next(at)
        assert chosen is not None
        door.went(chosen, at)

    assert door.drain.seconds(100) == pytest.approx(1.0, rel=0.1)
    assert isinstance(door.displaced(), Turned)
