"""A bounded queue of requests that wait: by priority, within it by tenant, within that by size and age.

A higher priority goes first, but not always: for each token that goes past a lower one, that earns a sixteenth, so
it gets at least a seventeenth of what is served while it waits, and nothing starves. Bounded by count, by bytes of
bodies and, for each ticket, by time. At a bound of count or bytes the one who comes takes the place of one who
should have come less: of a lower priority, or of a tenant that has more waiting; so one who floods a queue fills
only their own part of it.
"""

import heapq
from bisect import insort
from collections import deque
from typing import Final, Generic, TypeVar

from tidepool_router.admission.level import Level, Tenant
from tidepool_router.admission.ticket import Limits, Refusal, Ticket

LOWER_SHARE: Final = 1.0 / 16.0
# Priorities are few (a pool names at most 16); levels that are empty are forgotten beyond this.
_MOST_LEVELS: Final = 64

T = TypeVar("T", bound=Ticket)


class Queue(Generic[T]):
    """Tickets that wait, with the sums that are reported as demand. Each call is O(log n), amortised.

    Invariant: `held` and its companions are sums over the tickets that wait; a ticket that was offered and taken
    in leaves exactly once, by `went`, `remove`, `expire`, or displaced by an `offer`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.held_bytes = 0
        self.held_prompt_tokens = 0
        self.held_output_tokens = 0
        self._sequence = 0
        self._levels: dict[int, Level[T]] = {}
        self._order: list[int] = []  # of the levels with something in them, negative: the highest priority first
        # Lazy deletion, as in a line.
        self._deadlines: list[tuple[float, int, T]] = []
        self._by_age: deque[T] = deque()

    def offer(self, ticket: T) -> Refusal | None:
        """Take a ticket in; else say which bound it met. Nobody leaves for it: see `make_room`."""
        limits = self.limits
        if self.held >= limits.max_waiting:
            return Refusal.COUNT
        if self.held_bytes + ticket.body_bytes > limits.max_bytes:
            return Refusal.BYTES
        self._sequence += 1
        ticket.sequence = self._sequence
        ticket.waiting = True
        self._level(ticket.priority).add(ticket)
        self._sum(ticket, 1)
        self._by_age.append(ticket)
        heapq.heappush(self._deadlines, (ticket.deadline, ticket.sequence, ticket))
        return None

    def make_room(self, ticket: T) -> T | None:
        """Who leaves so that this one fits, if one is enough and is entitled to less; it no longer waits.

        That is the youngest of the lowest priority, and of its tenant with the most waiting. Of an equal priority
        only one whose tenant has more waiting than this one's would have then.
        """
        if not self._order:
            return None
        lowest = self._levels[-self._order[-1]]
        if lowest.priority > ticket.priority:
            return None
        line = lowest.line(lowest.fullest())
        if line is None:
            return None
        if lowest.priority == ticket.priority:
            own = lowest.line(ticket.tenant)
            if line.length <= (own.length if own is not None else 0) + 1:
                return None
        victim = line.youngest()
        limits = self.limits
        fits = self.held <= limits.max_waiting and (
            self.held_bytes - victim.body_bytes + ticket.body_bytes <= limits.max_bytes
        )
        return victim if fits and self.remove(victim) else None

    def next(self, now: float) -> T | None:
        """Who goes next; it waits until `went` says that it did. None when nobody waits."""
        if not self._order:
            return None
        levels = self._levels
        for negative in self._order[1:]:
            level = levels[-negative]
            if level.credit >= 1.0:
                ticket = level.next(now)
                if level.credit >= ticket.work_tokens:
                    return ticket
        return levels[-self._order[0]].next(now)

    def went(self, ticket: T) -> None:
        """The one that `next` named is served; it waits no more."""
        level = self._levels[ticket.priority]
        above = -ticket.priority
        paid = float(ticket.work_tokens)
        if self._order[0] != above:
            level.credit -= paid
        for negative in self._order:
            if negative > above:
                self._levels[-negative].credit += paid * LOWER_SHARE
        level.went(ticket)
        self._gone(ticket, level)

    def remove(self, ticket: T) -> bool:
        """A ticket's client has gone; False when it did not wait here."""
        if not ticket.waiting:
            return False
        level = self._levels[ticket.priority]
        level.left(ticket)
        self._gone(ticket, level)
        return True

    def expire(self, now: float) -> list[T]:
        """Tickets whose deadline has come, oldest deadline first; they no longer wait."""
        late: list[T] = []
        heap = self._deadlines
        while heap and (heap[0][0] <= now or not heap[0][2].waiting):
            ticket = heapq.heappop(heap)[2]
            if self.remove(ticket):
                late.append(ticket)
        return late

    def settle(self, ticket: T, work_tokens: int) -> None:
        """One that went is over and took so many tokens: its tenant is charged the difference to the estimate."""
        level = self._levels.get(ticket.priority)
        if level is not None:
            level.settle(ticket.tenant, work_tokens - ticket.work_tokens)

    def work_before(self, priority: int, tenant: Tenant, work_tokens: int) -> int:
        """Tokens that go before one of so many that comes now, as those that wait now stand.

        All of higher priority; of its own level what goes before it in its tenant's line, as often as there are
        tenants that take turns, or the whole level if that is less.
        """
        ahead = 0
        for level in self._levels.values():
            if level.priority > priority:
                ahead += level.work_tokens
        own = self._levels.get(priority)
        line = None if own is None else own.line(tenant)
        if own is None or line is None:
            return ahead
        return ahead + min(own.work_tokens, line.work_before(work_tokens) * own.tenants)

    @property
    def held_work_tokens(self) -> int:
        """Tokens that whoever waits will take."""
        return self.held_prompt_tokens + self.held_output_tokens

    @property
    def kept(self) -> int:
        """Objects in memory, those of tickets that left and are not yet dropped among them."""
        return len(self._by_age) + len(self._deadlines) + sum(level.kept for level in self._levels.values())

    def oldest_offered_at(self) -> float | None:
        """When the ticket that waits longest was offered; None with none waiting."""
        line = self._by_age
        while line and not line[0].waiting:
            line.popleft()
        return line[0].offered_at if line else None

    def _level(self, priority: int) -> Level[T]:
        level = self._levels.get(priority)
        if level is None:
            if len(self._levels) >= _MOST_LEVELS:
                self._levels = {number: kept for number, kept in self._levels.items() if kept.length}
            level = self._levels[priority] = Level(priority)
        if not level.length:
            insort(self._order, -priority)
        return level

    def _gone(self, ticket: T, level: Level[T]) -> None:
        self._sum(ticket, -1)
        if not level.length:
            self._order.remove(-level.priority)
        if max(len(self._by_age), len(self._deadlines)) > 2 * self.held + 16:
            self._drop_those_that_left()

    def _drop_those_that_left(self) -> None:
        self._by_age = deque(ticket for ticket in self._by_age if ticket.waiting)
        self._deadlines = [entry for entry in self._deadlines if entry[2].waiting]
        heapq.heapify(self._deadlines)

    def _sum(self, ticket: T, sign: int) -> None:
        self.held += sign
        self.held_bytes += sign * ticket.body_bytes
        self.held_prompt_tokens += sign * ticket.prompt_tokens
        self.held_output_tokens += sign * ticket.output_tokens
