"""Requests of one pool that are held until a pod can take them: let go in rounds, turned away in time."""

import asyncio
from collections.abc import Callable
from typing import Final

from tidepool_router.admission import Entrance, Limits, Queue, Refusal, Ticket, Turned
from tidepool_router.errors import NoPods
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.ledger import Estimate, Outcome

# Held requests are let go in rounds, so that pods which come up moments later get their part and the first one is
# not buried: so many a ready pod at first, growing by half each round, so that any backlog is gone within seconds.
_FIRST_ROUND_REQUESTS: Final = 8
_ROUND_SECONDS: Final = 0.1
RETRY_AFTER_NO_POD_SECONDS: Final = 5.0


class HeldRequest(Ticket):
    """A ticket and the future that its caller waits for."""

    __slots__ = ("estimate", "explain", "facts", "reservation", "scores")

    def __init__(self, facts: RequestFacts, estimate: Estimate, offered_at: float, deadline: float) -> None:
        super().__init__(
            priority=facts.priority,
            tenant=facts.tenant,
            body_bytes=facts.body_bytes,
            prompt_tokens=estimate.prompt_tokens,
            output_tokens=estimate.output_tokens,
            run=facts.run,
            offered_at=offered_at,
            deadline=deadline,
        )
        self.facts = facts
        self.estimate = estimate
        self.explain = False  # its client asked for the scores of its pick
        self.scores = ""
        self.reservation: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()


class Holding:
    """The queue of one pool and its callers.

    `place` makes a reservation, or returns None when no pod takes the request after all; `refused` counts. Every
    held request ends by exactly one of: a reservation, an error of `expire`, `refuse_all` or of being displaced by
    another's `hold`, `abandon`.
    """

    def __init__(
        self,
        pool: str,
        limits: Limits,
        place: Callable[[HeldRequest, float], Reservation | None],
        refused: Callable[[Refusal], None],
    ) -> None:
        self.entrance: Entrance[HeldRequest] = Entrance(limits, pool, f"No pod of {pool} took the request")
        self.queue: Queue[HeldRequest] = self.entrance.queue
        self._pool = pool
        self._place = place
        self._refused = refused
        self._round_requests = _FIRST_ROUND_REQUESTS
        self._round_at = 0.0

    def hold(self, held: HeldRequest, now: float) -> None:
        """Take a request in; raises TooLate when it would wait beyond its deadline, QueueFull at a bound.

        Another one may leave for it, and hears that it is full.
        """
        turned, victim = self.entrance.offer(held, now)
        if turned is not None:
            self._refused(turned.reason)
            raise turned.error
        if victim is not None:
            self._refuse(victim, self.entrance.displaced())

    def release(self, now: float, ready_pods: int, *, in_rounds: bool) -> None:
        """Give the next ones their pods, until no pod has room; `in_rounds`: and as many as this round allows.

        Rounds are for pods that do not say how much they take.
        """
        queue = self.queue
        if not queue.held or not ready_pods or (in_rounds and now < self._round_at):
            return
        allowed = self._round_requests * ready_pods if in_rounds else queue.held
        while allowed > 0 and (held := queue.next(now)) is not None:
            reservation = self._place(held, now)
            if reservation is None:  # no pod has room, or the only one is on its way back from ejection
                break
            allowed -= 1
            self.entrance.went(held, now)
            if held.reservation.done():
                reservation.close(Outcome.CANCELLED, now)
            else:
                held.reservation.set_result(reservation)
        if in_rounds:
            self._round_requests = self._round_requests * 3 // 2 if queue.held else _FIRST_ROUND_REQUESTS
            self._round_at = now + _ROUND_SECONDS

    def expire(self, now: float) -> None:
        """Turn away whoever has waited too long."""
        for held, turned in self.entrance.expire(now):
            self._refuse(held, turned)

    def refuse_all(self) -> None:
        """The pool is gone: whoever is held hears it."""
        while (held := self.queue.next(0.0)) is not None:
            self.queue.remove(held)
            message = f"The pool {self._pool} has been removed."
            self._refuse(held, Turned(Refusal.NO_PODS, NoPods(message, RETRY_AFTER_NO_POD_SECONDS)))

    def abandon(self, held: HeldRequest, now: float) -> None:
        """The caller was cancelled; a reservation that it was just given is given back."""
        if self.queue.remove(held) or not held.reservation.done() or held.reservation.cancelled():
            return
        if held.reservation.exception() is None:
            held.reservation.result().close(Outcome.CANCELLED, now)

    def _refuse(self, held: HeldRequest, turned: Turned) -> None:
        if not held.reservation.done():
            self._refused(turned.reason)
            held.reservation.set_exception(turned.error)
