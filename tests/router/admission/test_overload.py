"""Goodput under overload, in a small discrete simulation of one engine behind the queue.

The engine runs 16 requests at once at 100 tokens a second each. Four of five requests are short (100 tokens), the
fifth is fifteen times as long; each is worth something only when it is done within 10 s and twice its own time.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from tidepool_router.admission import DrainRate, Limits, Queue, Ticket

SLOTS, TOKENS_PER_SECOND = 16, 100.0
CAPACITY = SLOTS * TOKENS_PER_SECOND
SECONDS = 400.0
WARM_SECONDS = 50.0


@dataclass
class Result:
    """What came of those that arrived after the warm-up; goodput in tokens a second, of requests in time."""

    offered: float = 0.0
    goodput: float = 0.0
    refused: int = 0
    told: list[float] = field(default_factory=list)
    late: int = 0
    short_waits: list[float] = field(default_factory=list)
    long_served: int = 0


def arrivals(load: float, seed: int) -> list[tuple[float, int]]:
    rng = random.Random(seed)
    now, found = 0.0, []
    mean_work = 0.8 * 100 + 0.2 * 1500
    while now < SECONDS:
        now += rng.expovariate(load * CAPACITY / mean_work)
        found.append((now, 1500 if rng.random() < 0.2 else 100))
    return found


class Simulation:
    """The engine, the queue before it, and what both did."""

    def __init__(self) -> None:
        self.queue: Queue[Ticket] = Queue(Limits(256, 1 << 30))
        self.drain = DrainRate()
        self.result = Result()
        self.running: list[float] = []  # when each ends

    def start(self, ticket: Ticket, now: float) -> None:
        work, result = ticket.work_tokens, self.result
        ends = now + work / TOKENS_PER_SECOND
        heapq.heappush(self.running, ends)
        if ticket.offered_at < WARM_SECONDS:
            return
        if ends <= ticket.deadline + work / TOKENS_PER_SECOND + 1e-9:
            result.goodput += work / (SECONDS - WARM_SECONDS)
        else:
            result.late += 1
        if work == 100:
            result.short_waits.append(now - ticket.offered_at)
        else:
            result.long_served += 1

    def until(self, now: float) -> None:
        queue = self.queue
        while self.running and self.running[0] <= now:
            at = heapq.heappop(self.running)
            self.result.refused += len(queue.expire(at))
            ticket = queue.next(at)
            if ticket is not None:
                queue.went(ticket)
                self.drain.left(ticket.work_tokens, at, empty=not queue.held)
                self.start(ticket, at)

    def arrive(self, work: int, now: float) -> None:
        queue, drain = self.queue, self.drain
        if now >= WARM_SECONDS:
            self.result.offered += work / (SECONDS - WARM_SECONDS)
        # To begin in time: 10 s and twice its own time to be done.
        deadline = now + 10.0 + work / TOKENS_PER_SECOND
        ticket = Ticket(priority=0, body_bytes=work, prompt_tokens=work, offered_at=now, deadline=deadline)
        if len(self.running) < SLOTS:
            self.start(ticket, now)
            return
        wait = drain.seconds(queue.work_before(ticket.priority, ticket.tenant, work))
        if (wait is not None and now + wait > ticket.deadline) or queue.offer(ticket) is not None:
            self.result.refused += 1
            self.result.told.append(drain.retry_after_seconds(queue.held_work_tokens))
        else:
            drain.waiting(now)


def ours(load: float, seed: int = 1) -> Result:
    simulation = Simulation()
    for now, work in arrivals(load, seed):
        simulation.until(now)
        simulation.arrive(work, now)
    simulation.until(SECONDS)
    return simulation.result


def first_come_first_served(load: float, seed: int = 1) -> float:
    """Goodput of an engine's own queue without end."""
    running: list[float] = []
    waiting: deque[tuple[float, int]] = deque()
    goodput = 0.0

    def start(came: float, work: int, now: float) -> None:
        nonlocal goodput
        ends = now + work / TOKENS_PER_SECOND
        heapq.heappush(running, ends)
        if came >= WARM_SECONDS and ends - came <= 10.0 + 2 * work / TOKENS_PER_SECOND:
            goodput += work / (SECONDS - WARM_SECONDS)

    for now, work in arrivals(load, seed):
        while running and running[0] <= now:
            at = heapq.heappop(running)
            if waiting:
                start(*waiting.popleft(), at)
        if len(running) < SLOTS:
            start(now, work, now)
        else:
            waiting.append((now, work))
    return goodput


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_goodput_stays_flat_however_much_is_offered(seed: int) -> None:
    quiet = ours(0.5, seed)
    assert quiet.goodput >= 0.97 * quiet.offered  # nothing is refused that can be served

    for load in (1.5, 2.0, 3.0):
        assert ours(load, seed).goodput >= 0.93 * CAPACITY, load


def test_without_it_goodput_collapses() -> None:
    """What the test above would see if its queue did nothing."""
    assert first_come_first_served(0.8) > 0.7 * CAPACITY
    assert first_come_first_served(2.0) < 0.3 * CAPACITY


@pytest.mark.parametrize("load", [1.5, 3.0])
def test_what_is_let_in_is_served_in_time_and_the_rest_is_told_at_once(load: float) -> None:
    result = ours(load)

    assert result.late == 0
    assert result.refused > 100
    assert 1.0 <= min(result.told) <= max(result.told) <= 45.0  # what the deadlines let in


@pytest.mark.parametrize("load", [1.5, 3.0])
def test_short_requests_pass_and_long_ones_are_served(load: float) -> None:
    result = ours(load)
    waits = sorted(result.short_waits)
    long_tokens = 1500 * result.long_served / (SECONDS - WARM_SECONDS)

    assert waits[len(waits) // 2] < 4.0  # of the 11 s in which first come, first served would keep everybody
    assert long_tokens > 0.2 * CAPACITY
