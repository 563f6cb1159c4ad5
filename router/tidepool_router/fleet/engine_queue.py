"""Requests that wait at a sidecar until its engine has room for them.

They are in the ledger from the moment they came, so that gateways, peers and the autoscaler see them as load; what
the engine was sent is the ledger's sums without theirs.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidepool_api.routing import Queue as QueueSettings
from tidepool_api.units import duration_seconds, quantity_value
from tidepool_router.admission import Entrance, Limits, Load, Queue, Refusal, Room, Ticket, Turned
from tidepool_router.errors import NoPods
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.engine_watch import EngineWatch
from tidepool_router.ledger import Entry, Estimate, Ledger

_ROUND_SECONDS: Final = 0.05
# While requests wait, the engine is asked this often how many it runs; its page costs it a millisecond or two.
_LOOK_SECONDS: Final = 0.25
_LOOK_TIMEOUT_SECONDS: Final = 1.0
_NO_ENGINE_SECONDS: Final = 2.0

log = logging.getLogger("tidepool.sidecar")


class HeldHere(Ticket):
    """A request that waits, and the future of its turn."""

    __slots__ = ("direct", "facts", "sent", "turn")

    def __init__(
        self, facts: RequestFacts, estimate: Estimate, now: float, most_seconds: float, *, direct: bool
    ) -> None:
        own = facts.deadline_seconds
        super().__init__(
            priority=facts.priority,
            tenant=facts.tenant,
            body_bytes=facts.body_bytes,
            prompt_tokens=estimate.prompt_tokens,
            output_tokens=estimate.output_tokens,
            run=facts.run,
            offered_at=now,
            deadline=now + (most_seconds if own is None else min(most_seconds, own)),
        )
        self.by_own_deadline = own is not None and own <= most_seconds
        self.facts = facts
        self.direct = direct  # it came by no gateway, and is counted as one that waits
        self.sent = False  # its turn has come
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class EngineQueue:
    """One a sidecar. Every held request ends by exactly one of: its turn, an error, or that its caller leaves.

    `why_none` says why the engine takes nothing now, None when it does; `refused` counts.
    """

    def __init__(
        self,
        pod: str,
        ledger: Ledger,
        watch: EngineWatch,
        why_none: Callable[[], str | None],
        refused: Callable[[Refusal], None],
        now: Callable[[], float],
    ) -> None:
        nobody = f"The engine of {pod} had no room for the request"
        self.entrance: Entrance[HeldHere] = Entrance(Limits(0, 0), pod, nobody)
        self.queue: Queue[HeldHere] = self.entrance.queue
        self.room = Room()
        self.held_direct = 0  # of those held, as gateways are told: they hold theirs back while the pod is full
        self._limits = Limits(0, 0)
        self._most_seconds = 0.0
        self._pod = pod
        self._ledger = ledger
        self._watch = watch
        self._why_none = why_none
        self._refused = refused
        self._now = now
        self._rounds: asyncio.Task[None] | None = None

    def apply(self, settings: QueueSettings) -> None:
        """New bounds; whoever waits stays, as long as it was told."""
        self._limits = Limits(settings.max_waiting, int(quantity_value(settings.max_bytes)))
        self._most_seconds = duration_seconds(settings.timeout)

    def sent(self) -> Load:
        """What the engine has of the ledger."""
        sums, queue = self._ledger.sums(), self.queue
        prompts = queue.held_prompt_tokens
        return Load(
            sums.running - queue.held,
            sums.unstarted - queue.held,
            sums.queued_tokens - prompts,
            sums.held_tokens - prompts,
            sums.expected_tokens - queue.held_output_tokens,
        )

    def looked(self) -> None:
        """The engine's figures are new."""
        figures = self._watch.figures
        self.room.looked(
            self.sent(), figures.running, figures.waiting, figures.kv_usage, figures.kv_capacity_tokens
        )
        self.release()

    def must_wait(self, estimate: Estimate) -> bool:
        """Whether one more request would only wait in the engine, or would overtake those that wait here."""
        waiting = self._watch.waiting
        if self.queue.held or (waiting and waiting >= self._limits.max_waiting):
            return True
        room, ledger = self.room, self._ledger
        prompt, output = estimate.prompt_tokens, estimate.output_tokens
        if room.surely_takes(ledger.running, ledger.load_tokens + prompt + output):
            return False
        return not room.takes(self.sent(), prompt, output)

    def hold(self, facts: RequestFacts, estimate: Estimate, *, direct: bool = False) -> HeldHere:
        """Take a request in, before it is in the ledger; the caller owes a `wait`.

        Raises TooLate when it would wait beyond its deadline, QueueFull at a bound. Another one may leave for it.
        """
        now, waiting, limits = self._now(), self._watch.waiting, self._limits
        held = HeldHere(facts, estimate, now, self._most_seconds, direct=direct)
        # Those that wait in the engine have places of the queue too.
        self.queue.limits = Limits(max(0, limits.max_waiting - waiting), limits.max_bytes)
        turned, victim = self.entrance.offer(held, now, waiting)
        if turned is not None:
            self._refused(turned.reason)
            raise turned.error
        if victim is not None:
            self._settle(victim, self.entrance.displaced(waiting))
        self.held_direct += direct
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._go_round(), name="engine-queue")
        return held

    async def wait(self, held: HeldHere) -> None:
        """Until it may go to the engine. Raises Refused when it may not."""
        try:
            await held.turn
        finally:
            self._leaves(held)

    def release(self) -> None:
        """Let go what the engine has room for; called when something has changed that may make room."""
        queue = self.queue
        if not queue.held or self._why_none() is not None:
            return
        now = self._now()
        while (held := queue.next(now)) is not None:
            if not self.room.takes(self.sent(), held.prompt_tokens, held.output_tokens):
                return
            self.entrance.went(held, now)
            held.sent = True
            if not held.turn.done():
                held.turn.set_result(None)

    def over(self, held: HeldHere, entry: Entry) -> None:
        """A request that was held has ended, before its turn or after: then its tenant pays for what it took."""
        self._leaves(held)
        if held.sent:
            self.queue.settle(held, entry.uncached_tokens + entry.output_tokens)

    def _leaves(self, held: HeldHere) -> None:
        self.queue.remove(held)
        if held.direct:
            held.direct = False
            self.held_direct -= 1

    async def close(self) -> None:
        """Whoever waits hears that the sidecar ends."""
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
        self._refuse_all("the sidecar ends")

    async def _go_round(self) -> None:
        """As long as something waits: turn away who is late, look at the engine, let go what has room."""
        look_at = self._now() + _LOOK_SECONDS
        while self.queue.held:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                self._expire()
                why_none = self._why_none()
                if why_none is not None:
                    self._refuse_all(why_none)
                elif self._now() >= look_at:
                    await self._look()
                    look_at = self._now() + _LOOK_SECONDS
                else:
                    self.release()
            except Exception:  # who is held depends on this loop
                log.exception("letting requests go to the engine failed; going on")

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_SECONDS):
                await self._watch.scrape()
        except TimeoutError:
            self.release()
        else:
            self.looked()

    def _expire(self) -> None:
        for held, turned in self.entrance.expire(self._now()):
            self._settle(held, turned)

    def _refuse_all(self, why: str) -> None:
        while (held := self.queue.next(0.0)) is not None:
            self.queue.remove(held)
            error = NoPods(f"The engine of {self._pod} takes no requests: {why}.", _NO_ENGINE_SECONDS)
            self._settle(held, Turned(Refusal.NO_PODS, error))

    def _settle(self, held: HeldHere, turned: Turned) -> None:
        if not held.turn.done():
            self._refused(turned.reason)
            held.turn.set_exception(turned.error)
