"""Requests of one pool that are held until a pod can take them: let go in rounds, turned away in time."""

import asyncio
from collections.abc import Callable
from typing import Final

from tidepool_router.admission import DrainRate, Limits, Queue, Refusal, Ticket
from tidepool_router.errors import NoPods, QueueFull, QueueTimeout, TooLate
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

    __slots__ = ("by_own_deadline", "estimate", "explain", "facts", "reservation", "scores")

    def __init__(self, facts: RequestFacts, estimate: Estimate, offered_at: float, deadline: float) -> None:
        super().__init__(
            priority=facts.priority,
            tenant=facts.tenant,
            body_bytes=facts.body_bytes,
            prompt_tokens=estimate.prompt_tokens,
            output_tokens=estimate.output_tokens,
            offered_at=offered_at,
            deadline=deadline,
        )
        self.facts = facts
        self.estimate = estimate
        self.by_own_deadline = False  # and not by the time that the pool lets it wait
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
        self.queue: Queue[HeldRequest] = Queue(limits)
        self.drain = DrainRate()
        self._pool = pool
        self._place = place
        self._refused = refused
        self._round_requests = _FIRST_ROUND_REQUESTS
        self._round_at = 0.0

    def hold(self, held: HeldRequest, now: float) -> None:
        """Take a request in; raises TooLate when it would wait beyond its deadline, QueueFull at a bound.

        Another one may leave for it, and hears that it is full.
        """
        queue = self.queue
        self._check_deadline(held, now)
        reason = queue.offer(held)
        if reason is not None:
            victim = queue.make_room(held)
            if victim is None:
                self._refused(reason)
                raise self._full("its queue is full")
            self._refuse(victim, Refusal.DISPLACED, self._full("one that goes before took the place"))
            queue.offer(held)
        self.drain.waiting(now)

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
            queue.went(held)
            self.drain.left(held.work_tokens, now, empty=not queue.held)
            if held.reservation.done():
                reservation.close(Outcome.CANCELLED, now)
            else:
                held.reservation.set_result(reservation)
        if in_rounds:
            self._round_requests = self._round_requests * 3 // 2 if queue.held else _FIRST_ROUND_REQUESTS
            self._round_at = now + _ROUND_SECONDS

    def expire(self, now: float) -> None:
        """Turn away whoever has waited too long."""
        for held in self.queue.expire(now):
            waited = now - held.offered_at
            own = held.by_own_deadline
            within = f"the {waited:.3g} s that its own deadline leaves" if own else f"{waited:.0f} s"
            message = f"No pod of {self._pool} took the request within {within}; try later."
            error = QueueTimeout(message, self._retry_after_seconds())
            self._refuse(held, Refusal.DEADLINE if own else Refusal.TIMEOUT, error)

    def refuse_all(self) -> None:
        """The pool is gone: whoever is held hears it."""
        while (held := self.queue.next(0.0)) is not None:
            self.queue.remove(held)
            message = f"The pool {self._pool} has been removed."
            self._refuse(held, Refusal.NO_PODS, NoPods(message, RETRY_AFTER_NO_POD_SECONDS))

    def abandon(self, held: HeldRequest, now: float) -> None:
        """The caller was cancelled; a reservation that it was just given is given back."""
        if self.queue.remove(held) or not held.reservation.done() or held.reservation.cancelled():
            return
        if held.reservation.exception() is None:
            held.reservation.result().close(Outcome.CANCELLED, now)

    def _check_deadline(self, held: HeldRequest, now: float) -> None:
        if held.facts.deadline_seconds is None:
            return
        wait = self.drain.seconds(self.queue.work_before(held.priority, held.tenant, held.work_tokens)) or 0.0
        if now + wait > held.deadline:
            self._refused(Refusal.DEADLINE)
            message = (
                f"at the rate of now {self._pool} would begin with the request in {wait:.3g} s, and its deadline "
                f"leaves {held.deadline - now:.3g} s; try later, or give it more time."
            )
            raise TooLate(message, self._retry_after_seconds())

    def _full(self, why: str) -> QueueFull:
        message = f"{self.queue.held} requests wait for {self._pool} already and {why}; try later."
        return QueueFull(message, self._retry_after_seconds())

    def _retry_after_seconds(self) -> float:
        return self.drain.retry_after_seconds(self.queue.held_work_tokens)

    def _refuse(self, held: HeldRequest, reason: Refusal, error: Exception) -> None:
        if not held.reservation.done():
            self._refused(reason)
            held.reservation.set_exception(error)
