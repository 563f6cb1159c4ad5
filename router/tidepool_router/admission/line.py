"""The requests of one tenant that wait in one level: short ones are not stuck behind long ones, and none starves.

Two orders share the line. By ratio: the one whose wait is the longest for its work goes first, as in highest
response ratio next (Brinch Hansen 1971: (wait + work) / work; the rate that turns tokens into seconds is the same
for all, so tokens do). That alone starves long requests under lasting overload, where the short ones that wait are
old as well. A request that is one of many counts as the whole: by the tokens that its run still needs, and from
when that began (Chimera, arXiv 2603.22206, orders by the same; waits in proportion keep the long ones from
starving). So a quarter of the tokens goes by age: a request waits at most four times what it would first come,
first served, however many short ones arrive.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from tidepool_router.admission.ticket import Ticket

AGE_SHARE: Final = 0.25
# What going by ratio earns the oldest one, per token, until a quarter of all has gone by age.
_CREDIT: Final = AGE_SHARE / (1.0 - AGE_SHARE)
# Below this, requests differ by less than what an engine's step costs anyway.
_LEAST_WORK_BITS: Final = 6

T = TypeVar("T", bound=Ticket)


class Line(Generic[T]):
    """Every call is O(1) amortised, or O(size classes): there are at most as many as a token count has bits."""

    __slots__ = ("_by_age", "_by_size", "_credit", "_work", "length", "work_tokens")

    def __init__(self) -> None:
        self.length = 0
        self.work_tokens = 0
        # Lazy deletion: who left stays in both until it comes up, or until more than half are such.
        self._by_age: deque[T] = deque()
        # By the power of two that the work fits in: within a class the oldest has the highest ratio, within two.
        self._by_size: dict[int, deque[T]] = {}
        self._work: dict[int, int] = {}  # tokens that wait, by size class
        self._credit = 0.0  # tokens that went by ratio and have not been made good by age yet

    @property
    def kept(self) -> int:
        """Tickets in memory, those that left and are not yet dropped among them."""
        return len(self._by_age)

    def add(self, ticket: T) -> None:
        """It waits behind those of its age."""
        self.length += 1
        self.work_tokens += ticket.work_tokens
        self._by_age.append(ticket)
        size = _size_class(ticket.order_tokens)
        self._work[size] = self._work.get(size, 0) + ticket.work_tokens
        self._add_by_size(ticket)

    def work_before(self, work_tokens: int) -> int:
        """Tokens that go before one of so many that comes now: of its size and below, and what goes by age."""
        size = _size_class(work_tokens)
        shorter = sum([work for other, work in self._work.items() if other <= size])
        return min(self.work_tokens, round(shorter * (1.0 + _CREDIT)))

    def next(self, now: float) -> T:
        """Who goes next. The line must not be empty; nothing changes until `left`."""
        oldest = self.oldest()
        if self._credit >= oldest.work_tokens:
            return oldest
        best, best_ratio = oldest, -1.0
        for size in sorted(self._by_size):  # of equal ratios the shorter one
            head = self._head(size)
            if head is None:
                continue
            ratio = (now - head.since) / head.order_tokens
            if ratio > best_ratio:
                best, best_ratio = head, ratio
        return best

    def oldest(self) -> T:
        """Who has waited longest; the line must not be empty."""
        line = self._by_age
        while not line[0].waiting:
            line.popleft()
        return line[0]

    def youngest(self) -> T:
        """Who came last; the line must not be empty."""
        line = self._by_age
        while not line[-1].waiting:
            line.pop()
        return line[-1]

    def went(self, ticket: T) -> None:
        """One was served; called before `left`."""
        if ticket is not self.oldest():
            self._credit += ticket.work_tokens * _CREDIT
        elif self._credit >= ticket.work_tokens:
            self._credit -= ticket.work_tokens

    def left(self, ticket: T) -> None:
        """One waits no more, whether it went or gave up."""
        ticket.waiting = False
        self.length -= 1
        self.work_tokens -= ticket.work_tokens
        self._work[_size_class(ticket.order_tokens)] -= ticket.work_tokens
        if len(self._by_age) > 2 * self.length + 16:
            self._drop_those_that_left()

    def __iter__(self) -> Iterator[T]:
        return (ticket for ticket in self._by_age if ticket.waiting)

    def _head(self, size: int) -> T | None:
        line = self._by_size[size]
        while line and not line[0].waiting:
            line.popleft()
        if line:
            return line[0]
        del self._by_size[size]
        return None

    def _drop_those_that_left(self) -> None:
        self._by_age = deque(self)
        self._by_size = {}
        for ticket in self._by_age:
            self._add_by_size(ticket)

    def _add_by_size(self, ticket: T) -> None:
        """Sorted by `since`, which is the order in which they come unless runs are older than their requests."""
        line = self._by_size.setdefault(_size_class(ticket.order_tokens), deque())
        at = len(line)
        while at and line[at - 1].since > ticket.since:
            at -= 1
        if at == len(line):
            line.append(ticket)
        else:
            line.insert(at, ticket)


def _size_class(work_tokens: int) -> int:
    return max(_LEAST_WORK_BITS, work_tokens.bit_length())
