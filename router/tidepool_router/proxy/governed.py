"""A request for a pool that has `traffic`: routed by its table, copied, sent elsewhere when one is down.

It is an exchange of its own, so that requests of pools without `traffic` pay nothing for any of this.
"""

from time import monotonic
from typing import Final

from tidepool_router.errors import Refusal, Refused, UpstreamError
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.governance import Asked, ClassifierTable, Plan, Table, route
from tidepool_router.ledger import Outcome
from tidepool_router.proxy.begin import renamed
from tidepool_router.proxy.classifiers import Classifiers
from tidepool_router.proxy.firststep import claims_blocks
from tidepool_router.proxy.gateway import GatewayExchange
from tidepool_router.proxy.mirrors import Copied, Mirrors
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.upstream import UpstreamConnection
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.coding import opened
from tidepool_router.wire.headers import SESSION
from tidepool_router.wire.messages import Request
from tidepool_router.workflow.hosts import Hosts

# Refusals and failures that say nothing against the request itself: another pool may serve it.
_NOT_THE_REQUESTS_FAULT: Final = frozenset((429, 502, 503, 504))


class Governance:
    """What the governed exchanges of a process share."""

    def __init__(self, services: Services, metrics: GatewayMetrics, hosts: Hosts) -> None:
        self.services = services
        self.metrics = metrics
        self.classifiers = Classifiers(services, metrics, hosts)
        self.mirrors = Mirrors(services, metrics)

    def exchange(
        self,
        request: Request,
        client: ServerConnection,
        facts: RequestFacts,
        pool: PoolState,
        table: Table[PoolState],
    ) -> GatewayExchange:
        """Governs."""
        return GovernedExchange(self, request, client, facts, pool, table)

    async def close(self) -> None:
        """Ask no classifier any more."""
        await self.classifiers.close()


class GovernedExchange(GatewayExchange):
    """`pool` is the one that owns the name; `_pool` is the one that has the request."""

    __slots__ = ("_asked", "_governance", "_left", "_model", "_owner", "_table")

    def __init__(
        self,
        governance: Governance,
        request: Request,
        client: ServerConnection,
        facts: RequestFacts,
        pool: PoolState,
        table: Table[PoolState],
    ) -> None:
        super().__init__(governance.services, request, client, facts, pool)
        self._owner = pool
        self._table = table
        self._governance = governance
        self._model = facts.model  # as the body has it
        self._left: tuple[PoolState, ...] = ()  # pools to fall back to
        self._asked = Asked(
            facts,
            request.lines,
            lambda: _plain(request),
            lambda: pool.estimator.estimate(facts).prompt_tokens,
            request.special.get(SESSION) or self._request_id,
        )

    def _start(self) -> None:
        try:
            self._follow(route(self._asked, self._table))
        except Refused as refused:  # the client's own fault, which no book may count as ours
            self._refuse(refused.refusal, Outcome.REFUSED)

    def _follow(self, plan: Plan[PoolState]) -> None:
        """Raises Refused when the body cannot be made the chosen pool's."""
        if plan.classifier is not None:
            self._spawn(self._classify(plan, plan.classifier))
            return
        pool = plan.pool or self._owner
        reason = plan.reason
        if not self._fits(pool):  # another model would answer in the adapter's name
            pool, reason = self._owner, "own"
        self._left = plan.fallback
        if plan.fallback and pool.is_down(monotonic()):
            up = self._next_up(monotonic())
            if up is not None:
                pool, reason = up, "fallback"
        self._enter(pool, reason)
        mirror = None if plan.mirror is pool else plan.mirror
        if mirror is not None and mirror.prefill is not None and claims_blocks(self._request) is not None:
            mirror = None  # where blocks are is the router's to say there too
        body = self._request.body  # it may be let go of as soon as it is sent
        super()._start()
        if mirror is not None and not self._done:
            copied = Copied(self._request, self._request_id, self._facts, body, self._model)
            self._governance.mirrors.send(self._owner, mirror, copied)

    async def _classify(self, plan: Plan[PoolState], classifier: ClassifierTable[PoolState]) -> None:
        pool = await self._governance.classifiers.ask(
            self._owner.config, classifier, self._request, self._request_id
        )
        self._task = None
        try:
            if pool is None:
                self._follow(route(self._asked, self._table, plan.after))
            else:
                self._follow(plan.classified(pool))
        except Refused as refused:
            self._refuse(refused.refusal, Outcome.REFUSED)

    def _enter(self, pool: PoolState, reason: str) -> None:
        if self._model != pool.engine_model and self._facts.adapter is None:
            self._request.body = renamed(self._request, pool.engine_model)
            self._model = pool.engine_model
        self._pool = pool
        self._governance.metrics.routed.labels(self._owner.name, pool.name, reason).inc()

    def _fits(self, pool: PoolState) -> bool:
        adapter = self._facts.adapter
        return adapter is None or adapter in pool.adapters

    # Falling back.

    def _next_up(self, now: float) -> PoolState | None:
        """The next pool to fall back to that is not down; those before it are given up."""
        while self._left:
            pool, self._left = self._left[0], self._left[1:]
            if self._fits(pool) and not pool.is_down(now):
                return pool
        return None

    def _fall_back(self) -> bool:
        """Whether another pool has the request now. Bounded by the list; no budget, since a pool that is down
        sends all its requests this way, and that is what the list is for."""
        if self._done or self._head_sent or not self._left or not self._replayable():
            return False
        now = monotonic()
        deadline = self._facts.deadline_seconds
        if deadline is not None and now - self._started_at >= deadline:
            return False
        pool = self._next_up(now)
        if pool is None:
            return False
        step, self._step = self._step, None
        if step is not None:
            step.cancel()
            step.spent()
        try:
            self._enter(pool, "fallback")
        except Refused:
            return False
        reservation = self._reservation
        if reservation is not None:
            reservation.close(Outcome.ERROR, now)
        self._held_until(now)
        self._reservation = self._entry = None
        self._failed_keys = ()
        super()._start()
        return True

    def _refuse(self, refusal: Refusal, outcome: Outcome) -> None:
        if refusal.status in _NOT_THE_REQUESTS_FAULT and self._fall_back():
            return
        super()._refuse(refusal, outcome)

    def _try_elsewhere(self, error: UpstreamError) -> bool:
        reservation = self._reservation
        if self._left and reservation is not None:
            tried = (*self._failed_keys, reservation.endpoint.key)
            if not self._pool.has_other(tried, monotonic()):  # do not wait for a pool whose last pod has just died
                reservation.failed(error.kind)
                if self._fall_back():
                    return True
        return super()._try_elsewhere(error) or self._fall_back()

    def upstream_data(self, upstream: UpstreamConnection) -> None:
        """AnswerSink: a pod whose own queue is full says 429."""
        answer = upstream.answer
        full = answer.status == 429 and answer.head_ready and not self._head_sent
        if full and self._left and self._swap(upstream):
            return
        super().upstream_data(upstream)

    def _leave(self, reservation: Reservation) -> None:
        """A pod that is gone or hung, and no other in its pool."""
        upstream = self._upstream
        if self._left and upstream is not None:
            tried = (*self._failed_keys, reservation.endpoint.key)
            if not self._pool.has_other(tried, monotonic()) and self._swap(upstream):
                return
        super()._leave(reservation)

    def _swap(self, upstream: UpstreamConnection) -> bool:
        """Fall back while an answer is still open; it stays where that fails."""
        self._upstream, upstream.sink = None, None
        if self._fall_back():
            upstream.drop()
            return True
        self._upstream, upstream.sink = upstream, self
        return False

    def _answer_lines(self, answer: AnswerReader) -> bytes:
        return super()._answer_lines(answer) + b"x-tidepool-pool: %b\r\n" % self._pool.name.encode(
            "latin-1", "replace"
        )


def _plain(request: Request) -> bytes:
    coding = request.special.get(b"content-encoding")
    return request.body if coding is None else opened(request.body, coding)
