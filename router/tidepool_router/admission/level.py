"""The requests of one priority that wait: tenants take turns by the tokens that they were given.

Each tenant has a counter of tokens, as in the virtual token counter of Sheng et al., "Fairness in Serving Large
Language Models" (OSDI 2024), with weight 1 for prompt and output alike; the lowest goes next and is charged at
once with the estimate, and with the truth when that is known (`settle`). Who comes back after a pause starts
where the others stand (start-time fair queueing, Goyal et al. 1996), so nobody saves up turns while away. Of two
tenants that both wait all the time, neither gets ahead by more than the longest request of either.
"""

import heapq
from typing import Final, Generic, TypeVar

from tidepool_router.admission.line import Line
from tidepool_router.admission.ticket import Ticket

# Tenants whose counters are remembered while nothing of them waits; one that is forgotten starts where all stand.
_MOST_TENANTS: Final = 4096

T = TypeVar("T", bound=Ticket)
Tenant = str | None


class Level(Generic[T]):
    """O(log tenants) a call. `credit` is for the queue, which gives lower levels their part of the tokens."""

    __slots__ = (
        "_counters",
        "_entries",
        "_fullest",
        "_lines",
        "_turns",
        "_virtual",
        "credit",
        "length",
        "priority",
        "work_tokens",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.length = 0
        self.work_tokens = 0
        self.credit = 0.0
        self._lines: dict[Tenant, Line[T]] = {}  # of those that wait
        self._counters: dict[Tenant, float] = {}
        self._virtual = 0.0  # counter of who went last, before it was charged
        # Heaps with entries that are out of date: an entry counts when its number is the tenant's number now. The
        # second number is that of the entry: of equals the first one that was made, and names are never compared.
        self._entries = 0
        self._turns: list[tuple[float, int, Tenant]] = []
        self._fullest: list[tuple[int, int, Tenant]] = []

    @property
    def tenants(self) -> int:
        """Those that have something waiting."""
        return len(self._lines)

    @property
    def kept(self) -> int:
        """Tickets, turns and counters in memory."""
        lines = sum(line.kept for line in self._lines.values())
        return lines + len(self._turns) + len(self._fullest) + len(self._counters)

    def line(self, tenant: Tenant) -> Line[T] | None:
        """What waits of a tenant; None when nothing does."""
        return self._lines.get(tenant)

    def add(self, ticket: T) -> None:
        """It waits behind its tenant's others."""
        tenant = ticket.tenant
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = Line()
            self._count(tenant, max(self._counters.get(tenant, 0.0), self._virtual))
        line.add(ticket)
        self.length += 1
        self.work_tokens += ticket.work_tokens
        self._note_length(tenant, line)

    def next(self, now: float) -> T:
        """Who goes next. The level must not be empty; nothing changes until `went`."""
        turns = self._turns
        while True:
            counter, _, tenant = turns[0]
            line = self._lines.get(tenant)
            if line is not None and self._counters[tenant] == counter:
                return line.next(now)
            heapq.heappop(turns)

    def went(self, ticket: T) -> None:
        """One was served: its tenant is charged with the estimate."""
        tenant = ticket.tenant
        counter = self._counters[tenant]
        self._virtual = max(self._virtual, counter)
        self._lines[tenant].went(ticket)
        self.left(ticket)
        self._count(tenant, counter + ticket.work_tokens)

    def left(self, ticket: T) -> None:
        """One waits no more."""
        line = self._lines[ticket.tenant]
        line.left(ticket)
        self.length -= 1
        self.work_tokens -= ticket.work_tokens
        if line.length:
            self._note_length(ticket.tenant, line)
        else:
            del self._lines[ticket.tenant]
        if not self.length:
            self.credit = 0.0
            self._turns.clear()
            self._fullest.clear()

    def settle(self, tenant: Tenant, tokens: int) -> None:
        """A served request took so many tokens more (less, below zero) than its tenant was charged."""
        counter = self._counters.get(tenant)
        if counter is not None and tokens:
            self._count(tenant, counter + tokens)

    def fullest(self) -> Tenant:
        """The tenant with the most requests waiting; the level must not be empty."""
        heap = self._fullest
        while True:
            length, _, tenant = heap[0]
            line = self._lines.get(tenant)
            if line is not None and line.length == -length:
                return tenant
            heapq.heappop(heap)

    def _note_length(self, tenant: Tenant, line: Line[T]) -> None:
        self._entries += 1
        if len(self._fullest) > 4 * len(self._lines) + 64:
            self._fullest = [(-waits.length, n, name) for n, (name, waits) in enumerate(self._lines.items())]
            heapq.heapify(self._fullest)
        else:
            heapq.heappush(self._fullest, (-line.length, self._entries, tenant))

    def _count(self, tenant: Tenant, counter: float) -> None:
        self._counters[tenant] = counter
        if tenant in self._lines:
            self._entries += 1
            if len(self._turns) > 4 * len(self._lines) + 64:
                self._turns = [(self._counters[name], n, name) for n, name in enumerate(self._lines)]
                heapq.heapify(self._turns)
            else:
                heapq.heappush(self._turns, (counter, self._entries, tenant))
        if len(self._counters) > _MOST_TENANTS + len(self._lines):
            self._forget_tenants()

    def _forget_tenants(self) -> None:
        """Half of those of whom nothing waits, the lowest counters first: most of them say nothing any more."""
        away = [name for name in self._counters if name not in self._lines]
        away.sort(key=self._counters.__getitem__)
        for name in away[: len(away) // 2 + 1]:
            del self._counters[name]
