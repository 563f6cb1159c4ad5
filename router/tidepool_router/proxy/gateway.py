"""The gateway's exchanges: model name to pool, pool to pod, and to another pod when the first one fails."""

from time import monotonic
from typing import Final, Protocol

import msgspec

from tidepool_router.control import JSON, Response
from tidepool_router.errors import NotYet, Refusal, Refused, UpstreamError
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.governance import Table
from tidepool_router.keys import Grant, KeyRing
from tidepool_router.ledger import Outcome
from tidepool_router.proxy.accounts import Account, account_of, close_account
from tidepool_router.proxy.active import ActiveExchange
from tidepool_router.proxy.begin import (
    facts_of,
    prioritised,
    refuse_path,
    renamed,
    spend_deadline,
    tell_facts,
    tell_of_refusal,
    turn_away,
    write_response,
)
from tidepool_router.proxy.exchange import Exchange
from tidepool_router.proxy.firststep import FirstStep, claims_blocks
from tidepool_router.proxy.keyed import charge, cover, require_model, restricted, used_tokens, within_grant
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.spool import StoredFeed
from tidepool_router.tracing.life import Life
from tidepool_router.usage.tally import Tally
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.headers import DEBUG, GATEWAY_MARK, LOAD, POD
from tidepool_router.wire.messages import Request
from tidepool_router.wire.paths import Kind, Route, model_of
from tidepool_router.wire.usage import Usage

_NAMES_IN_MESSAGE: Final = 20
# What load balancers ask, who have no key.
_OPEN_PATH: Final = "/health"
_NOT_QUEUED: Final = b"x-tidepool-queue-ms: 0\r\n"
# Answers that speak against a pod; 501 says that its model cannot do what was asked.
_FAULTS: Final = frozenset((500, 502, 503, 504))
# Failures by which a pod is seen to be gone.
_DEATHS: Final = frozenset(("connect", "reset"))


class Governs(Protocol):
    """Makes the exchanges of pools that have `traffic`."""

    def exchange(
        self,
        request: Request,
        client: ServerConnection,
        facts: RequestFacts,
        pool: PoolState,
        table: Table[PoolState],
    ) -> "GatewayExchange":
        """One exchange, not begun yet."""


class RunsWorkflows(Protocol):
    """Answers what no pool does, and a workflow may."""

    def begin(self, request: Request, connection: ServerConnection, keys: KeyRing | None) -> ActiveExchange | None:
        """The exchange of a request that speaks of workflows; None: it does not. Raises Refused."""

    def names(self) -> list[str]:
        """Models that workflows are called as."""


class Gateway:
    """Application of the gateway's traffic port."""

    def __init__(
        self,
        services: Services,
        fleet: GatewayFleet,
        version: str,
        keys: KeyRing | None = None,
        governance: Governs | None = None,
    ) -> None:
        self.services = services
        self.fleet = fleet
        self._governance = governance
        self.keys = keys  # None: open to everybody who reaches it
        self.workflows: RunsWorkflows | None = None  # set when there are some
        self.tally: Tally | None = None  # set where usage is kept
        self._version = version

    def begin(self, request: Request, connection: ServerConnection) -> ActiveExchange | None:
        """Application."""
        try:
            try:
                return self._begin(request, connection)
            except Refused as refused:
                # No pool of that name and no such path: only then are workflows looked at.
                if self.workflows is None or refused.refusal.status != 404:
                    raise
                if request.feed is not None:
                    raise NotYet("a workflow reads the whole body") from refused
                exchange = self.workflows.begin(request, connection, self.keys)
                if exchange is None:
                    raise
                return exchange
        except Refused as refused:
            self.fleet.metrics.unrouted[refused.refusal.status].inc()
            tell_of_refusal(self.services, request, connection, refused)
            raise

    def _begin(self, request: Request, connection: ServerConnection) -> ActiveExchange | None:
        route = request.route
        if route is None or route.kind is Kind.CLOSED or request.method not in route.methods:
            turn_away(request, connection, route)
            return None
        if route.kind is Kind.INFERENCE:
            return self._infer(request, connection, route)
        grant = None if self.keys is None or route.path == _OPEN_PATH else self.keys.grant_of(request.special)
        write_response(request, connection, self._own_answer(request, route, grant))
        return None

    def _infer(self, request: Request, connection: ServerConnection, route: Route) -> ActiveExchange | None:
        if GATEWAY_MARK in request.special:
            message = (
                "this request came from a gateway and would go to one again; "
                "the fleet's endpoints must be pods, not a gateway or a Service that leads to one"
            )
            raise Refused(Refusal(508, "server_error", "loop_detected", message))
        services = self.services
        grant = None if self.keys is None else self.keys.grant_of(request.special)
        services.check_room(len(request.body))
        services.retries.earn()
        facts, pool = self._route(request, route, grant)
        table = pool.traffic
        apart = pool.prefill is not None
        feed = request.feed
        stored = feed is not None and isinstance(feed, StoredFeed)
        # A second `model` behind the front would count for the engine; rules may look at all of it.
        second = feed is not None and not stored and bool(pool.adapters) and restricted(grant)
        if second or (feed is not None and (apart or table is not None)):
            raise NotYet("the whole body decides")
        if facts.model != pool.engine_model:
            if facts.model in pool.adapters:
                facts = msgspec.structs.replace(facts, adapter=facts.model)
            elif table is None:
                request.body = renamed(request, pool.engine_model)
        if stored:
            tell_facts(request, facts, facts.adapter or pool.engine_model)
        # Last of what may refuse: from here on the exchange settles what was charged.
        charged = None
        if grant is not None:
            cover(request, facts, pool, grant)
            charged = (grant, charge(grant, facts, pool))
        exchange: GatewayExchange
        if table is None or self._governance is None:
            exchange = GatewayExchange(services, request, connection, facts, pool)
        else:
            exchange = self._governance.exchange(request, connection, facts, pool, table)
        exchange.charged = charged
        if self.tally is not None:
            exchange.account = account_of(self.tally, facts, grant)
        exchange.begin()
        return None if exchange.over else exchange

    def _route(self, request: Request, route: Route, grant: Grant | None) -> tuple[RequestFacts, PoolState]:
        facts = facts_of(request, route)
        if request.feed is not None and not facts.model:
            raise NotYet("the model stands behind the front")
        pool = self.fleet.route(facts.model)
        if grant is not None and facts.model:
            require_model(grant, facts.model)
        if pool is None:
            raise self._unknown_model(facts.model, grant)
        facts = prioritised(facts, request, pool.routing.priorities)
        return facts if grant is None else within_grant(facts, request, pool, grant), pool

    def _unknown_model(self, model: str, grant: Grant | None) -> Refused:
        names = [card.id for card in self.fleet.models() if grant is None or grant.allows(card.id)]
        known = ", ".join(names[:_NAMES_IN_MESSAGE]) or "none yet"
        more = f" and {len(names) - _NAMES_IN_MESSAGE} more" if len(names) > _NAMES_IN_MESSAGE else ""
        if not model:
            told = f"the request names no model: set `model` to one of {known}{more}"
            return Refused(Refusal(400, "invalid_request_error", "missing_model", told))
        told = f"the model {model!r} does not exist; known models: {known}{more}"
        return Refused(Refusal(404, "invalid_request_error", "model_not_found", told))

    def _own_answer(self, request: Request, route: Route, grant: Grant | None) -> Response:
        if route.kind is Kind.MODELS:
            return Response(200, msgspec.json.encode({"object": "list", "data": self._models(grant)}), JSON)
        if route.kind is Kind.MODEL:
            name = model_of(route.path)
            found = [card for card in self._models(grant) if card["id"] == name]
            if not found:
                raise self._unknown_model(name, grant)
            return Response(200, msgspec.json.encode(found[0]), JSON)
        if route.path == "/version":
            return Response(200, msgspec.json.encode({"version": self._version}), JSON)
        if route.kind is Kind.ENGINE:
            return Response(200)
        raise refuse_path(request, None)

    def _models(self, grant: Grant | None) -> list[dict[str, object]]:
        cards: list[dict[str, object]] = [
            {
                "id": card.id,
                "object": "model",
                "created": int(card.created),
                "owned_by": "tidepool",
                "pool": card.pool,
            }
            | ({} if card.parent is None else {"parent": card.parent})
            for card in self.fleet.models()
            if grant is None or grant.allows(card.id)
        ]
        if self.workflows is not None:
            cards += [
                {"id": name, "object": "model", "created": 0, "owned_by": "tidepool"}
                for name in self.workflows.names()
                if grant is None or grant.allows(name)
            ]
        return cards


class GatewayExchange(Exchange):
    """One request at the gateway."""

    __slots__ = (
        "_facts",
        "_failed_keys",
        "_held_since",
        "_pool",
        "_queued_seconds",
        "_reservation",
        "_scores",
        "_step",
        "account",
        "charged",
    )

    mark = GATEWAY_MARK + b": 1\r\n"

    def __init__(
        self,
        services: Services,
        request: Request,
        client: ServerConnection,
        facts: RequestFacts,
        pool: PoolState,
    ) -> None:
        super().__init__(services, request, client, facts.api)
        self._facts = facts
        self._pool = pool
        self._choices = facts.choices
        self._reservation: Reservation | None = None
        self._failed_keys: tuple[str, ...] = ()
        self._queued_seconds = 0.0
        self._held_since: float | None = None
        self._step: FirstStep | None = None  # in pools that compute prompts apart
        self._scores = ""  # of the last pick, where the client asked for them
        self.account: Account | None = None  # where its usage is counted
        self.charged: tuple[Grant, int] | None = None  # whom the request was charged to, and the tokens

    @property
    def over(self) -> bool:
        """Whether all is done, as it may be when it has just begun: a refusal needs nobody's answer."""
        return self._done

    def _start(self) -> None:
        if self._pool.prefill is not None:
            refusal = claims_blocks(self._request)
            if refusal is not None:
                self._refuse(refusal, Outcome.REFUSED)
                return
        reservation = self._pick(self._started_at, ())
        if reservation is None:
            self._spawn(self._wait())
        else:
            self._go(reservation)

    def _pick(self, now: float, exclude: tuple[str, ...]) -> Reservation | None:
        pool = self._pool
        if pool.explains and DEBUG in self._request.special:
            self._scores = pool.scores(self._facts, now, exclude)
        reservation = pool.pick(self._facts, now, exclude)
        if reservation is None and pool.prefill is not None:
            return self._whole_on_prefill(now)
        return reservation

    async def _wait(self) -> None:
        self._held_since = monotonic()
        self._pool = self._pool.decode or self._pool
        explain = self._pool.explains and DEBUG in self._request.special
        try:
            reservation = await self._pool.wait_for_pod(self._facts, monotonic, explain=explain)
        except Refused as refused:
            self._task = None
            self._refuse(refused.refusal, Outcome.REFUSED)
            return
        self._task = None
        self._held_until(monotonic())
        if explain and reservation.held is not None:
            self._scores = reservation.held.scores
        self._go(reservation)

    def _held_until(self, now: float) -> None:
        since, self._held_since = self._held_since, None
        if since is None:
            return
        self._queued_seconds += now - since
        if self._life is not None:
            self._life.passed("queue", since, now)

    def _go(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self._entry = reservation.entry
        if self._pool.prefill is not None and self._goes_first_elsewhere(reservation):
            return
        self._go_on(reservation)

    def _go_on(self, reservation: Reservation) -> None:
        deadline = self._facts.deadline_seconds
        if deadline is not None:
            spend_deadline(self._request, deadline, monotonic() - self._started_at)
        endpoint = reservation.endpoint
        self._send(self._services.pools.at(endpoint.host, endpoint.port, endpoint.trust))

    # Pools that compute prompts apart. The request has its place on a decode pod from the beginning; what it does
    # first on a prefill pod is no more than a way to get its blocks there.

    def _goes_first_elsewhere(self, reservation: Reservation) -> bool:
        step = self._step
        if step is None:
            step = self._step = FirstStep(self._services, self._pool, self._request, self._request_id, self._facts)
            return step.start(reservation, self._stepped)
        step.moved_to(reservation)
        return False

    def _stepped(self, key: str, error: UpstreamError | None) -> None:
        """The first step is over, on the pod of this key; after an error the decode pod computes the prompt."""
        reservation = self._reservation
        if self._done or reservation is None:
            return
        if self._life is not None and self._step is not None:
            self._life.passed("first_step", self._step.began_at, monotonic())
        if error is not None:
            self._failed_keys += (key,)
            if len(self._failed_keys) > self._pool.routing.retries or not self._services.retries.spend():
                self._fail_for_good(error)
                return
            self._pool.metrics.retries[error.kind].inc()
        self._go_on(reservation)

    def _whole_on_prefill(self, now: float) -> Reservation | None:
        """Where no decode pod is left, a prefill pod answers; but a pool at zero is to hear of the request."""
        pool, side = self._pool, self._pool.prefill
        if side is None or pool.has_other(self._failed_keys, now) or (pool.config.wakes and not pool.pods):
            return None
        reservation = side.pick(self._facts, now, self._failed_keys)
        if reservation is not None:
            pool.metrics.prefills["mixed"].inc()
            self._pool = side
        return reservation

    def _answer_lines(self, answer: AnswerReader) -> bytes:
        reservation = self._reservation
        special = answer.special
        pod = b""
        if reservation is not None:
            load = special.get(LOAD)
            if load is not None:
                reservation.heard(load.decode("latin-1"))
            if answer.status in _FAULTS and reservation.endpoint.key not in self._failed_keys:
                reservation.failed("http_5xx")
            if POD not in special:
                pod = b"x-tidepool-pod: %b\r\n" % reservation.pod.encode("latin-1", "replace")
        if self._scores:
            pod += b"x-tidepool-scores: %b\r\n" % self._scores.encode("latin-1", "replace")
        if not self._queued_seconds:
            return pod + _NOT_QUEUED
        return pod + b"x-tidepool-queue-ms: %d\r\n" % round(self._queued_seconds * 1000)

    def _try_elsewhere(self, error: UpstreamError) -> bool:
        reservation = self._reservation
        if self._step is not None and error.kind != "connect":
            self._step.spent()
        if reservation is not None:
            self._failed_keys += (reservation.endpoint.key,)
            reservation.failed(error.kind)
        if len(self._failed_keys) > self._pool.routing.retries:
            return False
        now = monotonic()
        other = self._pick(now, self._failed_keys)
        # The last pod may have just died, and is known to have only by this failure: then the request is held.
        if other is None and error.kind not in _DEATHS:
            return False
        if not self._services.retries.spend():
            if other is not None:
                other.close(Outcome.CANCELLED, now)
            return False
        if reservation is not None:
            if self._life is not None:
                self._life.failed(reservation.pod, error.kind, now)
            reservation.close(Outcome.ERROR, now)
        self._pool.metrics.retries[error.kind].inc()
        if other is None:
            self._reservation = self._entry = None
            self._spawn(self._wait())
        else:
            self._go(other)
        return True

    def check(self, now: float) -> None:
        """ActiveExchange: whoever waits on a pod that is gone or hung need not wait for the timeout."""
        super().check(now)
        if self._step is not None:
            self._step.check()
        reservation = self._reservation
        if self._upstream is not None and not self._head_sent and reservation is not None and reservation.stranded:
            self._leave(reservation)

    def _leave(self, reservation: Reservation) -> None:
        """To another pod if there is one; else the engine may still come to itself. Tried once a pod."""
        upstream, key = self._upstream, reservation.endpoint.key
        if upstream is None or key in self._failed_keys or not self._replayable():
            return
        if not self._pool.has_other((*self._failed_keys, key), monotonic()):
            return
        self._upstream, upstream.sink = None, None
        if self._try_elsewhere(UpstreamError("first_byte_timeout", "the pod is gone or its engine hangs")):
            upstream.drop()
        else:
            self._upstream, upstream.sink = upstream, self

    def _broke_off(self) -> None:
        if self._reservation is not None:
            self._reservation.failed("reset")

    def _close_books(self, outcome: Outcome, status: int, usage: Usage | None, now: float) -> None:
        pool = self._pool
        ended = pool.metrics.ended[outcome]
        ended.codes[status].value += 1.0
        ended.duration.observe(now - self._started_at)
        if self._held_since is not None:  # it ended in the queue
            self._held_until(now)
        if self._queued_seconds:
            ended.queue.observe(self._queued_seconds)
        reservation = self._reservation
        if self._step is not None:
            self._step.cancel()
        if self.charged is not None or self.account is not None:
            self._settle(outcome, status, usage)
        if reservation is None:
            return
        entry = reservation.entry
        entry.code = status
        if usage is not None:
            entry.usage(usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
            if outcome is Outcome.OK:
                pool.estimator.learn(self._facts, usage.prompt_tokens, usage.output_tokens)
        first_token_at = entry.first_token_at
        if first_token_at is not None and status < 400:
            pool.metrics.first_token[outcome].observe(first_token_at - self._started_at)
            if entry.output_tokens > 1:
                ended.per_token.observe((now - first_token_at) / (entry.output_tokens - 1))
        reservation.close(outcome, now)

    def _settle(self, outcome: Outcome, status: int, usage: Usage | None) -> None:
        if self.charged is not None:
            grant, tokens = self.charged
            grant.settle(tokens, used_tokens(self._api, outcome, status, usage, self._entry))
        if self.account is not None:
            close_account(self.account, self._api, outcome, status, usage, self._entry)

    def _describe(self, life: Life) -> None:
        life.facts, life.pool, life.queued_seconds = self._facts, self._pool.name, self._queued_seconds
        reservation = self._reservation
        if reservation is not None:
            endpoint = reservation.endpoint
            life.pod, life.reason, life.entry = reservation.pod, reservation.reason, reservation.entry
            life.address = (endpoint.host, endpoint.port)

    def _whereabouts(self) -> dict[str, str]:
        reservation = self._reservation
        return {"pool": self._pool.name} | ({} if reservation is None else {"pod": reservation.pod})
