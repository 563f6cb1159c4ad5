"""Requests of one pool that are held until a pod can take them: let go in rounds, turned away in time."""

import asyncio
from collections.abc import Callable
from typing import Final

from tidepool_router.admission import Limits, Queue, Refusal, Ticket, Verdict
from tidepool_router.errors import NoPods, QueueFull, QueueTimeout
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.ledger import Estimate, Outcome

# Held requests are let go in rounds, so that pods which come up moments later get their part and the first one is
# not buried: so many a ready pod at first, growing by half each round, so that any backlog is gone within seconds.
_FIRST_ROUND_REQUESTS: Final = 8
_ROUND_SECONDS: Final = 0.1
_RETRY_AFTER_FULL_SECONDS: Final = 2.0
RETRY_AFTER_NO_POD_SECONDS: Final = 5.0


class HeldRequest(Ticket):
    """A ticket and the future that its caller waits for."""

    __slots__ = ("estimate", "facts", "reservation")

    def __init__(self, facts: RequestFacts, estimate: Estimate, offered_at: float, deadline: float) -> None:
        super().__init__(
            priority=facts.priority,
            body_bytes=facts.body_bytes,
            prompt_tokens=estimate.prompt_tokens,
            offered_at=offered_at,
            deadline=deadline,
        )
        self.facts = facts
        self.estimate = estimate
        self.reservation: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()


class Holding:
    """The queue of one pool and its callers.

    `place` makes a reservation, or returns None when no pod takes the request after all; `refused` counts. Every
    held request ends by exactly one of: a reservation, an error of `expire` or `refuse_all`, `abandon`.
    """

    def __init__(
        self,
        pool: str,
        limits: Limits,
        place: Callable[[HeldRequest, float], Reservation | None],
        refused: Callable[[Refusal], None],
    ) -> None:
        self.queue: Queue[HeldRequest] = Queue(limits)
        self._pool = pool
        self._place = place
        self._refused = refused
        self._round_requests = _FIRST_ROUND_REQUESTS
        self._round_at = 0.0

    def hold(self, held: HeldRequest) -> None:
        """Take a request in; raises QueueFull."""
        verdict, reason = self.queue.offer(held)
        if verdict is Verdict.REFUSE and reason is not None:
            self._refused(reason)
            message = f"{self.queue.held} requests wait for {self._pool} already and its queue is full; try later."
            raise QueueFull(message, _RETRY_AFTER_FULL_SECONDS)

    def release(self, now: float, ready_pods: int) -> None:
        """Give the next ones their pods, as many as this round allows."""
        if not self.queue.held or not ready_pods or now < self._round_at:
            return
        for held in self.queue.take(self._round_requests * ready_pods):
            reservation = self._place(held, now)
            if reservation is None:  # a pod on its way back from ejection takes no more for now
                self.queue.put_back(held)
            elif held.reservation.done():
                reservation.close(Outcome.CANCELLED, now)
            else:
                held.reservation.set_result(reservation)
        self._round_requests = self._round_requests * 3 // 2 if self.queue.held else _FIRST_ROUND_REQUESTS
        self._round_at = now + _ROUND_SECONDS

    def expire(self, now: float) -> None:
        """Turn away whoever has waited too long."""
        for held in self.queue.expire(now):
            waited = now - held.offered_at
            message = f"No pod of {self._pool} took the request within {waited:.0f} s; try later."
            self._refuse(held, Refusal.TIMEOUT, QueueTimeout(message, RETRY_AFTER_NO_POD_SECONDS))

    def refuse_all(self) -> None:
        """The pool is gone: whoever is held hears it."""
        for held in self.queue.take(self.queue.held):
            message = f"The pool {self._pool} has been removed."
            self._refuse(held, Refusal.NO_PODS, NoPods(message, RETRY_AFTER_NO_POD_SECONDS))

    def abandon(self, held: HeldRequest, now: float) -> None:
        """The caller was cancelled; a reservation that it was just given is given back."""
        if self.queue.remove(held) or not held.reservation.done() or held.reservation.cancelled():
            return
        if held.reservation.exception() is None:
            held.reservation.result().close(Outcome.CANCELLED, now)

    def _refuse(self, held: HeldRequest, reason: Refusal, error: Exception) -> None:
        if not held.reservation.done():
            self._refused(reason)
            held.reservation.set_exception(error)
