"""What becomes of a request that would wait: it gets a place, or takes another's, or is turned away at once.

The same at a gateway, which waits for pods, and at a sidecar, which waits for its engine. What is decided here is
a plan: the caller counts it, and tells those whom it turns away.

Whether a deadline can be met is asked with the wait that the queue's measured rate promises. Without a rate
nothing is known of the wait but that it is not below zero: then only those are turned away whose deadline leaves
no time at all. They are late for certain, and hear it before they have held a place; nobody who might make it is
refused.
"""

from typing import Final, Generic, NamedTuple, TypeVar

from tidepool_router.admission.drain import DrainRate
from tidepool_router.admission.queue import Queue
from tidepool_router.admission.ticket import Limits, Refusal, Ticket
from tidepool_router.errors import QueueFull, QueueTimeout, Refused, TooLate

_FULL: Final = "its queue is full"
_DISPLACED: Final = "one that goes before took the place"

T = TypeVar("T", bound=Ticket)


class Turned(NamedTuple):
    """A request that is turned away: what is counted, and what its client hears."""

    reason: Refusal
    error: Refused


class Entrance(Generic[T]):
    """A queue, how fast it drains, and what is said of it.

    `subject` names what is waited for, in messages ("default/llama"); `nobody` begins the sentence of those who
    waited in vain ("No pod of default/llama took the request").
    """

    __slots__ = ("_nobody", "_subject", "drain", "queue")

    def __init__(self, limits: Limits, subject: str, nobody: str) -> None:
        self.queue: Queue[T] = Queue(limits)
        self.drain = DrainRate()
        self._subject = subject
        self._nobody = nobody

    def offer(self, ticket: T, now: float, ahead: int = 0) -> tuple[Turned | None, T | None]:
        """Take a ticket in, or say why not; and who leaves for it, whom `displaced` tells why.

        `ahead` requests wait elsewhere for the same, and are told of.
        """
        queue = self.queue
        late = self._late(ticket, now)
        if late is not None:
            return Turned(Refusal.DEADLINE, late), None
        victim = None
        reason = queue.offer(ticket)
        if reason is not None:
            victim = queue.make_room(ticket)
            if victim is None:
                return Turned(reason, self._full(_FULL, ahead)), None
            queue.offer(ticket)
        self.drain.waiting(now)
        return None, victim

    def displaced(self, ahead: int = 0) -> Turned:
        """What one hears whose place another took."""
        return Turned(Refusal.DISPLACED, self._full(_DISPLACED, ahead))

    def went(self, ticket: T, now: float) -> None:
        """The one that the queue named next is served."""
        self.queue.went(ticket)
        self.drain.left(ticket.work_tokens, now, empty=not self.queue.held)

    def expire(self, now: float) -> list[tuple[T, Turned]]:
        """Those who have waited as long as they may; they no longer wait."""
        return [(ticket, self._in_vain(ticket, now)) for ticket in self.queue.expire(now)]

    def _late(self, ticket: T, now: float) -> TooLate | None:
        if not ticket.by_own_deadline:
            return None
        queue = self.queue
        wait = self.drain.seconds(queue.work_before(ticket.priority, ticket.tenant, ticket.order_tokens)) or 0.0
        left = ticket.deadline - now
        if wait <= left:
            return None
        if left < 0.0:
            said = f"Its deadline leaves the request no time to begin at {self._subject}"
        else:
            said = (
                f"At the rate of now {self._subject} would begin with the request in {wait:.3g} s, and its "
                f"deadline leaves {left:.3g} s"
            )
        return TooLate(f"{said}; try later, or give it more time.", self._retry_after_seconds())

    def _full(self, why: str, ahead: int) -> QueueFull:
        waiting = self.queue.held + ahead
        message = f"{waiting} requests wait for {self._subject} already and {why}; try later."
        return QueueFull(message, self._retry_after_seconds())

    def _in_vain(self, ticket: T, now: float) -> Turned:
        waited = now - ticket.offered_at
        own = ticket.by_own_deadline
        within = f"the {waited:.3g} s that its own deadline leaves" if own else f"{waited:.0f} s"
        error = QueueTimeout(f"{self._nobody} within {within}; try later.", self._retry_after_seconds())
        return Turned(Refusal.DEADLINE if own else Refusal.TIMEOUT, error)

    def _retry_after_seconds(self) -> float:
        return self.drain.retry_after_seconds(self.queue.held_work_tokens)
