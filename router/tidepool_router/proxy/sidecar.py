"""The sidecar's exchanges: all goes to one engine, and each request is in the ledger for as long as it lives."""

from time import monotonic
from typing import Any, Final

import msgspec

from tidepool_router.control import Handler
from tidepool_router.errors import UpstreamError
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.ledger import Entry, Outcome
from tidepool_router.proxy.begin import facts_of, refuse_path, renamed
from tidepool_router.proxy.exchange import Exchange
from tidepool_router.proxy.handled import Handled
from tidepool_router.proxy.server import ActiveExchange, ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.upstream import ConnectionPool, UpstreamConnection
from tidepool_router.wire.body import ask_usage
from tidepool_router.wire.messages import AnswerReader, Request
from tidepool_router.wire.paths import Kind, Route
from tidepool_router.wire.usage import Usage

# APIs whose streams bring usage only on request, in one event of its own.
_ASKS_USAGE: Final = frozenset((Api.CHAT, Api.COMPLETIONS))


class Sidecar:
    """Application of the sidecar's traffic port; `loads` answers the load paths."""

    def __init__(self, services: Services, state: SidecarState, engine: ConnectionPool, loads: Handler) -> None:
        self.services = services
        self.state = state
        self.engine = engine
        self.pod_line = b"x-tidepool-pod: %b\r\n" % state.pod.encode("latin-1", "replace")
        self._loads = loads

    def begin(self, request: Request, connection: ServerConnection) -> ActiveExchange | None:
        """Application."""
        route = request.route
        if route is None or route.kind is Kind.CLOSED or request.method not in route.methods:
            raise refuse_path(request, route)
        kind = route.kind
        if kind is Kind.INFERENCE:
            return self._infer(request, connection, route)
        if kind in (Kind.LOAD, Kind.LOAD_STREAM):
            return Handled(self.services, self._loads, request, connection)
        exchange = Asking(self, request, connection, shows_models=kind is Kind.MODELS)
        exchange.begin()
        return exchange

    def _infer(self, request: Request, connection: ServerConnection, route: Route) -> ActiveExchange:
        self.services.check_room(len(request.body))
        facts = facts_of(request, route)
        state = self.state
        settings = state.settings
        if facts.model in settings.aliases and settings.model is not None:
            request.body = renamed(request, settings.model)
        asks = settings.ask_usage and facts.stream and not facts.asked_usage and facts.api in _ASKS_USAGE
        if asks:
            request.body = ask_usage(request.body)
        now = monotonic()
        entry = state.open(facts, now)  # from here on the exchange owes its close
        exchange = SidecarExchange(self, request, connection, facts, entry, drop_usage=asks)
        exchange.begin()
        return exchange


class SidecarExchange(Exchange):
    """One inference request at the sidecar."""

    __slots__ = ("_facts", "_sidecar")

    def __init__(
        self,
        sidecar: Sidecar,
        request: Request,
        client: ServerConnection,
        facts: RequestFacts,
        entry: Entry,
        *,
        drop_usage: bool,
    ) -> None:
        super().__init__(sidecar.services, request, client, facts.api)
        self._sidecar = sidecar
        self._facts = facts
        self._entry = entry
        self._choices = facts.choices
        self._drop_usage = drop_usage

    def _start(self) -> None:
        self._send(self._sidecar.engine)

    def _answer_lines(self, answer: AnswerReader) -> bytes:
        del answer
        sidecar = self._sidecar
        load = sidecar.state.load_header()
        return (
            sidecar.pod_line if load is None else b"%bx-tidepool-load: %b\r\n" % (sidecar.pod_line, load.encode())
        )

    def _try_elsewhere(self, error: UpstreamError) -> bool:
        del error
        return False

    def _close_books(self, outcome: Outcome, status: int, usage: Usage | None, now: float) -> None:
        entry = self._entry
        if entry is None:
            return
        entry.code = status
        if usage is not None:
            entry.usage(usage.prompt_tokens, usage.output_tokens, usage.cached_tokens or 0)
            if outcome is Outcome.OK:
                self._sidecar.state.estimator.learn(self._facts, usage.prompt_tokens, usage.output_tokens)
        entry.close(outcome, now)


class Asking(Exchange):
    """A question to the engine that is no inference: its health, its version, its models."""

    __slots__ = ("_shows_models", "_sidecar")

    first_byte_seconds = 10.0  # no prefill and no queue stands before the answer

    def __init__(
        self, sidecar: Sidecar, request: Request, client: ServerConnection, *, shows_models: bool
    ) -> None:
        super().__init__(sidecar.services, request, client, Api.OTHER)
        self._sidecar = sidecar
        self._shows_models = shows_models

    def _start(self) -> None:
        self._send(self._sidecar.engine)

    def upstream_data(self, upstream: UpstreamConnection) -> None:
        """AnswerSink: a list of models is waited for and passed on with the aliases in it."""
        answer = upstream.answer
        aliases = self._sidecar.state.settings.aliases
        if self._shows_models and aliases and answer.status == 200 and not answer.no_body:
            if not answer.complete:
                return
            body = with_aliases(b"".join(answer.parts), aliases)
            answer.parts = [body]
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
