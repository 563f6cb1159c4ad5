"""The sidecar's exchanges: requests go to one engine and are in its ledger for as long as they live there.

What the engine does not take, or failed before a byte of the answer was passed on, goes on to handon.py.
"""

from time import monotonic, time
from typing import Any, Final

import msgspec

from tidepool_router.control import Handler
from tidepool_router.errors import NoPods, NotYet, Refusal, Refused, TooLate, UpstreamError
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.engine_queue import HeldHere
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.ledger import Entry, Outcome
from tidepool_router.proxy.active import ActiveExchange
from tidepool_router.proxy.begin import (
    disbelieve,
    facts_of,
    prioritised,
    renamed,
    tell_front_priority,
    tell_of_refusal,
    tell_priority,
    turn_away,
)
from tidepool_router.proxy.exchange import Exchange
from tidepool_router.proxy.firststep import claims_blocks
from tidepool_router.proxy.handled import Handled
from tidepool_router.proxy.handon import HandOn, HandOnExchange, Trip
from tidepool_router.proxy.peers import Peers
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.spool import StoredFeed
from tidepool_router.proxy.upstream import ConnectionPool, UpstreamConnection
from tidepool_router.tracing.life import Life
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.body import ask_usage
from tidepool_router.wire.front import with_told
from tidepool_router.wire.headers import FACTS, GATEWAY_MARK, PROOF, TRANSFERRED
from tidepool_router.wire.messages import Request
from tidepool_router.wire.paths import Kind, Route, model_of
from tidepool_router.wire.pieces import BodyFeed
from tidepool_router.wire.transfer import whole_again
from tidepool_router.wire.usage import Usage

# APIs whose streams bring usage only on request, in one event of its own.
_ASKS_USAGE: Final = frozenset((Api.CHAT, Api.COMPLETIONS))
_MODELS: Final = b"/v1/models"


class Sidecar:
    """Application of the sidecar's traffic port; `loads` answers the load paths. A Home for what was handed on."""

    def __init__(
        self,
        services: Services,
        state: SidecarState,
        engine: ConnectionPool,
        loads: Handler,
        peers: Peers | None = None,
    ) -> None:
        self.services = services
        self.state = state
        self.engine = engine
        self.pod_line = b"x-tidepool-pod: %b\r\n" % state.pod.encode("latin-1", "replace")
        self._loads = loads
        self._handon = None if peers is None else HandOn(state, services, peers)

    def begin(self, request: Request, connection: ServerConnection) -> ActiveExchange | None:
        """Application."""
        try:
            return self._begin(request, connection)
        except Refused as refused:
            tell_of_refusal(self.services, request, connection, refused)
            raise

    def _begin(self, request: Request, connection: ServerConnection) -> ActiveExchange | None:
        route = request.route
        if route is None or route.kind is Kind.CLOSED or request.method not in route.methods:
            turn_away(request, connection, route)
            return None
        kind = route.kind
        if kind is Kind.INFERENCE:
            return self._infer(request, connection, route)
        if kind in (Kind.LOAD, Kind.LOAD_STREAM):
            return Handled(self.services, self._loads, request, connection)
        self._part_from(request)
        if kind is Kind.MODEL:
            request.target = _MODELS
            exchange = Asking(self, request, connection, shows_models=True, card=model_of(route.path))
        else:
            exchange = Asking(self, request, connection, shows_models=kind is Kind.MODELS)
        exchange.begin()
        return exchange

    def _infer(self, request: Request, connection: ServerConnection, route: Route) -> ActiveExchange:
        self.services.check_room(len(request.body))
        self.services.retries.earn()
        state = self.state
        settings = state.settings
        facts = facts_of(request, route)
        callers = state.callers
        believed = callers is None or callers.part_of(request.special.get(PROOF), time()) is not None
        if request.feed is not None:
            facts = self._large(request, request.feed, facts, believed=believed)
        if believed:
            facts = prioritised(facts, request, settings.routing.priorities)
        else:
            self._disbelieve(request)
        if facts.model in settings.aliases and settings.model is not None:
            request.body = renamed(request, settings.model)
        elif facts.model in state.watch.probe.adapters:
            facts = msgspec.structs.replace(facts, adapter=facts.model)
        asks = settings.ask_usage and facts.stream and not facts.asked_usage and facts.api in _ASKS_USAGE
        # Nothing is spliced into compressed bytes, nor before what has not come.
        plain, feed = b"content-encoding" not in request.special, request.feed
        asks = asks and plain and feed is None
        if asks:
            request.body = ask_usage(request.body)
        if settings.engine_priority and feed is not None and not isinstance(feed, StoredFeed):
            tell_front_priority(request, feed, facts)
        elif settings.engine_priority and plain and (facts.priority or facts.engine_priority is not None):
            tell_priority(request, facts)
        now = monotonic()
        try:
            # From here on the exchange owes its close.
            admitted = state.open(facts, now, direct=GATEWAY_MARK not in request.special)
        except Refused as refused:
            return self._refused(Trip(request, facts, asks, refused), connection)
        if state.hands_over:
            _expect_blocks(request, admitted[0])
        exchange = SidecarExchange(self, request, connection, facts, admitted, drop_usage=asks)
        exchange.begin()
        return exchange

    def _disbelieve(self, request: Request) -> None:
        """Raises Refused for a request of an unproven caller that says where KV blocks are."""
        disbelieve(request)
        if not self.state.hands_over:
            return
        request.special.pop(TRANSFERRED, None)
        refusal = claims_blocks(request)
        if refusal is not None:
            raise Refused(refusal)

    def _large(self, request: Request, feed: BodyFeed, facts: RequestFacts, *, believed: bool) -> RequestFacts:
        """Facts of a large body. Raises NotYet where what stands behind its front may matter here."""
        settings = self.state.settings
        if not believed:
            request.special.pop(FACTS, None)
        stored = isinstance(feed, StoredFeed)
        told = request.special.get(FACTS)
        if told is not None and not stored:
            facts = with_told(facts, told)
        named = bool(facts.model) or GATEWAY_MARK in request.special  # gateways have replaced any alias
        if (settings.aliases and not named) or (self.state.watch.probe.adapters and not facts.model):
            raise NotYet("the model may stand behind the front")
        if not stored and facts.model in settings.aliases and not feed.model_at:
            raise NotYet("the model's place is behind the front")
        if self.state.hands_over:
            raise NotYet("where blocks are may stand behind the front")
        return facts

    def _refused(self, trip: Trip, connection: ServerConnection) -> ActiveExchange:
        self._part_from(trip.request)
        if self._handon is None or isinstance(trip.refused, TooLate):
            self.state.metrics.unserved(trip.refused.refusal.status, Outcome.REFUSED)
            raise trip.refused
        exchange = HandOnExchange(self._handon, self, trip, connection)
        exchange.begin()
        return exchange

    def _part_from(self, request: Request) -> None:
        """While the engine takes none, clients do better with a connection to another pod than with this one."""
        if not self.state.takes_requests:
            request.keep_alive = False

    def engine_failed(self, trip: Trip, error: UpstreamError, client: ServerConnection) -> Exchange | None:
        """Before the client got a byte: the exchange in which the request goes on; None when it does not."""
        if error.refused:
            self.state.engine_gone(str(error))
        self._part_from(trip.request)
        handon = self._handon
        if handon is None or error.kind not in ("connect", "reset"):
            return None
        if not handon.again(trip, "", sent=error.kind != "connect"):
            return None
        return HandOnExchange(handon, self, trip, client)

    def admit(self, trip: Trip) -> tuple[Entry, HeldHere | None]:
        """Home."""
        return self.state.open(trip.facts, monotonic())

    def run_here(self, trip: Trip, admitted: tuple[Entry, HeldHere | None], client: ServerConnection) -> None:
        """Home."""
        exchange = ReturnedExchange(self, admitted, client, trip)
        client.hand_over(exchange)
        exchange.begin()


class SidecarExchange(Exchange):
    """One inference request at the sidecar."""

    __slots__ = ("_facts", "_held", "_queued_seconds", "_sidecar")

    def __init__(
        self,
        sidecar: Sidecar,
        request: Request,
        client: ServerConnection,
        facts: RequestFacts,
        admitted: tuple[Entry, HeldHere | None],
        *,
        drop_usage: bool,
    ) -> None:
        super().__init__(sidecar.services, request, client, facts.api)
        self._sidecar = sidecar
        self._facts = facts
        self._entry, self._held = admitted
        self._queued_seconds: float | None = None
        self._choices = facts.choices
        self._drop_usage = drop_usage

    def _start(self) -> None:
        held = self._held
        if held is None:
            self._send(self._sidecar.engine)
        else:
            self._spawn(self._wait(held))

    async def _wait(self, held: HeldHere) -> None:
        try:
            await self._sidecar.state.waiting.wait(held)
        except NoPods as gone:  # the engine has gone meanwhile, and has seen nothing of the request
            self._task = None
            self._fail(UpstreamError("connect", str(gone)))
        except Refused as refused:
            self._task = None
            self._refuse(refused.refusal, Outcome.REFUSED)
        else:
            self._task = None
            self._held_until(held, monotonic())
            self._send(self._sidecar.engine)

    def _held_until(self, held: HeldHere, now: float) -> None:
        self._queued_seconds = now - held.offered_at
        if self._life is not None:
            self._life.queued_seconds += self._queued_seconds
            self._life.passed("queue", held.offered_at, now)

    def _answer_lines(self, answer: AnswerReader) -> bytes:
        del answer
        sidecar = self._sidecar
        load = sidecar.state.load_header()
        return (
            sidecar.pod_line if load is None else b"%bx-tidepool-load: %b\r\n" % (sidecar.pod_line, load.encode())
        )

    def _try_elsewhere(self, error: UpstreamError) -> bool:
        request, body = self._request, self._request.body
        if self._sidecar.state.hands_over and error.kind != "connect":
            request.body = body = whole_again(body)
        other = self._sidecar.engine_failed(self._trip(error), error, self._client)
        if other is None:
            return False
        life, self._life = self._life, None  # the other exchange has it
        if life is not None:
            life.failed(self._sidecar.state.pod, error.kind, monotonic())
        self._finish(Outcome.ERROR, 502)
        request.body = body  # the other exchange's now
        self._client.hand_over(other)
        other.begin()
        return True

    def _trip(self, error: UpstreamError) -> Trip:
        refused = NoPods(f"The engine of {self._sidecar.state.pod} failed: {error}.")
        trip = Trip(self._request, self._facts, self._drop_usage, refused, self._request_id, life=self._life)
        trip.began_at = self._started_at
        return trip

    def _close_books(self, outcome: Outcome, status: int, usage: Usage | None, now: float) -> None:
        entry = self._entry
        if entry is None:
            return
        entry.code = status
        if usage is not None:
            entry.usage(usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
            if outcome is Outcome.OK:
                self._sidecar.state.estimator.learn(self._facts, usage.prompt_tokens, usage.output_tokens)
        held, state = self._held, self._sidecar.state
        if held is not None:
            state.waiting.over(held, entry)
            if self._queued_seconds is None:  # it ended in the queue
                self._held_until(held, now)
            state.metrics.ended[outcome].queue.observe(self._queued_seconds or 0.0)
        entry.close(outcome, now)

    def _describe(self, life: Life) -> None:
        state, engine = self._sidecar.state, self._sidecar.engine
        life.facts, life.pool, life.pod, life.entry = self._facts, state.pool, state.pod, self._entry
        life.address = (engine.host, engine.port)

    def _whereabouts(self) -> dict[str, str]:
        return {"pool": self._sidecar.state.pool, "pod": self._sidecar.state.pod}


class ReturnedExchange(SidecarExchange):
    """One request that was held, and runs on the own engine after all."""

    __slots__ = ("_past",)

    def __init__(
        self,
        sidecar: Sidecar,
        admitted: tuple[Entry, HeldHere | None],
        client: ServerConnection,
        trip: Trip,
    ) -> None:
        super().__init__(sidecar, trip.request, client, trip.facts, admitted, drop_usage=trip.drop_usage)
        self._past = trip
        self._request_id = trip.request_id or self._request_id
        self._life = trip.life

    def _trip(self, error: UpstreamError) -> Trip:
        del error
        return self._past


class Asking(Exchange):
    """A question to the engine that is no inference: its health, its version, its models."""

    __slots__ = ("_card", "_shows_models", "_sidecar")

    watched = False
    first_byte_seconds: float | None = 10.0  # no prefill and no queue stands before the answer

    def __init__(
        self,
        sidecar: Sidecar,
        request: Request,
        client: ServerConnection,
        *,
        shows_models: bool,
        card: str | None = None,
    ) -> None:
        super().__init__(sidecar.services, request, client, Api.OTHER)
        self._card = card
        self._sidecar = sidecar
        self._shows_models = shows_models

    def _start(self) -> None:
        self._send(self._sidecar.engine)

    def upstream_data(self, upstream: UpstreamConnection) -> None:
        """AnswerSink: a list of models is waited for and passed on with the aliases in it, or one card of it."""
        answer = upstream.answer
        aliases, name = self._sidecar.state.settings.aliases, self._card
        changed = self._shows_models and (aliases or name is not None)
        if changed and answer.status == 200 and not answer.no_body:
            if not answer.complete:
                return
            body = with_aliases(b"".join(answer.parts), aliases)
            if name is not None:
                card = card_of(body, name)
                if card is None:
                    message = f"the model {name!r} does not exist here; GET /v1/models lists those that do"
                    refusal = Refusal(404, "invalid_request_error", "model_not_found", message)
                    self._refuse(refusal, Outcome.REFUSED)
                    return
                body = card
            answer.parts, answer.framed = [body], b""
            answer.special[b"content-length"] = b"%d" % len(body)
        super().upstream_data(upstream)

    def _answer_lines(self, answer: AnswerReader) -> bytes:
        del answer
        return self._sidecar.pod_line

    def _try_elsewhere(self, error: UpstreamError) -> bool:
        del error
        return False

    def _close_books(self, outcome: Outcome, status: int, usage: Usage | None, now: float) -> None:
        """It is in no book."""


def _expect_blocks(request: Request, entry: Entry) -> None:
    """Another engine hands the prompt over: it is no work for this one."""
    if TRANSFERRED in request.special:
        entry.moved(entry.uncached_tokens - 1)  # as this sidecar estimates them


def card_of(models: bytes, name: str) -> bytes | None:
    """One card of an engine's list of models; None when it is not there, or what came is no such list."""
    try:
        for card in msgspec.json.decode(models)["data"]:
            if card["id"] == name:
                return msgspec.json.encode(card)
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    return None


def with_aliases(body: bytes, aliases: tuple[str, ...]) -> bytes:
    """The engine's list of models with a card more for each alias; what is no such list stays as it is."""
    if not aliases:
        return body
    try:
        models: Any = msgspec.json.decode(body)
        cards = models["data"]
        first = cards[0]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        return body
    known = {card.get("id") for card in cards}
    cards += [first | {"id": alias, "root": first["id"]} for alias in aliases if alias not in known]
    return msgspec.json.encode(models)
