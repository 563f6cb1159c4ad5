"""A bounded queue of requests that wait: higher priority first, then the older one.

Bounded by count, by bytes of bodies and, for each ticket, by time.
"""

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar


class Verdict(StrEnum):
    """Answer to an offer."""

    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"


class Refusal(StrEnum):
    """Which bound a refused offer met; values of the metrics' label `reason`."""

    COUNT = "queue_count"
    BYTES = "queue_bytes"
    TIMEOUT = "queue_timeout"
    NO_PODS = "no_pods"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one queue; timeouts belong to tickets, because they depend on why a request waits."""

    max_waiting: int
    max_bytes: int


class Ticket:
    """One request that waits. `priority`: the higher number goes first."""

    __slots__ = ("body_bytes", "deadline", "offered_at", "priority", "prompt_tokens", "sequence", "waiting")

    def __init__(
        self, *, priority: int, body_bytes: int, prompt_tokens: int, offered_at: float, deadline: float
    ) -> None:
        self.priority = priority
        self.body_bytes = body_bytes
        self.prompt_tokens = prompt_tokens
        self.offered_at = offered_at
        self.deadline = deadline  # leaves by `expire` at this time
        self.sequence = 0  # order of offers, given by the queue
        self.waiting = False

    def __repr__(self) -> str:
        return f"<Ticket priority={self.priority} offered_at={self.offered_at} bytes={self.body_bytes}>"


T = TypeVar("T", bound=Ticket)


class Queue(Generic[T]):
    """Tickets that wait, with the sums that a gateway reports as demand."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.held_bytes = 0
        self.held_prompt_tokens = 0
        self._sequence = 0
        # No waiting ticket's deadline is before it, so that looking costs nothing while none can be late.
        self._earliest = float("inf")
        # Lazy deletion: a removed ticket stays until it comes up or until half of the heap is dead.
        self._heap: list[tuple[int, int, T]] = []

    def offer(self, ticket: T, *, free: int = 0) -> tuple[Verdict, Refusal | None]:
        """Take a ticket in.

        ADMIT when there is a free place and nobody waits (an offer never overtakes); WAIT when it fits the
        bounds; REFUSE with the bound that it met.
        """
        if free > 0 and self.held == 0:
            return Verdict.ADMIT, None
        if self.held >= self.limits.max_waiting:
            return Verdict.REFUSE, Refusal.COUNT
        if self.held_bytes + ticket.body_bytes > self.limits.max_bytes:
            return Verdict.REFUSE, Refusal.BYTES
        self._sequence += 1
        ticket.sequence = self._sequence
        self.put_back(ticket)
        return Verdict.WAIT, None

    def take(self, free: int) -> list[T]:
        """Up to `free` tickets in order; they no longer wait."""
        taken: list[T] = []
        while len(taken) < free and self._heap:
            ticket = heapq.heappop(self._heap)[2]
            if ticket.waiting:
                self._leave(ticket)
                taken.append(ticket)
        return taken

    def put_back(self, ticket: T) -> None:
        """A taken ticket found no place after all: it waits again, before its equals that came later."""
        ticket.waiting = True
        self._earliest = min(self._earliest, ticket.deadline)
        heapq.heappush(self._heap, (-ticket.priority, ticket.sequence, ticket))
        self._count(ticket, 1)

    def expire(self, now: float) -> list[T]:
        """Tickets whose deadline has come, oldest deadline first; they no longer wait."""
        if now < self._earliest:
            return []
        waiting = [ticket for _, _, ticket in self._heap if ticket.waiting]
        late = sorted((t for t in waiting if t.deadline <= now), key=lambda ticket: ticket.deadline)
        self._earliest = min((t.deadline for t in waiting if t.deadline > now), default=float("inf"))
        for ticket in late:
            self.remove(ticket)
        return late

    def remove(self, ticket: T) -> bool:
        """A ticket's client has gone; False when it did not wait here."""
        if not ticket.waiting:
            return False
        self._leave(ticket)
        if len(self._heap) > 2 * self.held + 16:
            self._heap = [item for item in self._heap if item[2].waiting]
            heapq.heapify(self._heap)
        return True

    @property
    def kept(self) -> int:
        """Tickets in memory, those that left and are not yet dropped among them."""
        return len(self._heap)

    def oldest_offered_at(self) -> float | None:
        """When the ticket that waits longest was offered; None with none waiting. O(n), for reports."""
        return min((t.offered_at for _, _, t in self._heap if t.waiting), default=None)

    def _leave(self, ticket: T) -> None:
        ticket.waiting = False
        self._count(ticket, -1)

    def _count(self, ticket: T, sign: int) -> None:
        self.held += sign
        self.held_bytes += sign * ticket.body_bytes
        self.held_prompt_tokens += sign * ticket.prompt_tokens
