"""Requests that the own engine does not take: to a peer that does, or held until some engine of the pool is ready.

A request is handed on once at most. The mark that says it was is believed only from a peer's address; what is
marked and believed is refused here, and the sidecar that sent it looks further.
"""

import asyncio
import logging
from dataclasses import dataclass
from time import monotonic, time
from typing import Final, Protocol

from tidepool_api.units import duration_seconds, quantity_value
from tidepool_router.admission import Limits, Queue, Ticket
from tidepool_router.errors import NoPods, QueueFull, QueueTimeout, Refused, UpstreamError
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.engine_queue import HeldHere
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.ledger import Entry, Estimate, Outcome
from tidepool_router.proofs import Part
from tidepool_router.proxy.begin import spend_deadline
from tidepool_router.proxy.exchange import Exchange
from tidepool_router.proxy.peers import Peer, Peers, best_peer
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.tracing.life import Life
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.headers import COLON, CRLF, FACTS, HANDED_ON_MARK, POD, PROOF
from tidepool_router.wire.messages import Request
from tidepool_router.wire.usage import Usage

_log: Final = logging.getLogger("tidepool.router")
# Held requests go in rounds, so many to each engine that is ready, so that the first one is not buried.
_ROUND_REQUESTS: Final = 8
_ROUND_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.5
_RETRY_AFTER_SECONDS: Final = 2.0


@dataclass(slots=True)
class Trip:
    """A request on its way to an engine that takes it, with what it has behind it.

    `refused` is the answer when nobody does; `began_at` is when the request came, where that is not just now.
    `tried` has the keys of peers that failed it; `deadline` is that of all its waiting together, set when it is
    first held.
    """

    request: Request
    facts: RequestFacts
    drop_usage: bool
    refused: Refused
    request_id: bytes | None = None
    failures: int = 0
    tried: tuple[str, ...] = ()
    deadline: float | None = None
    life: Life | None = None
    began_at: float | None = None


class _Held(Ticket):
    """A request that waits, and the future of the place that it gets."""

    __slots__ = ("estimate", "place")

    def __init__(self, facts: RequestFacts, estimate: Estimate, now: float, deadline: float) -> None:
        super().__init__(
            priority=facts.priority,
            tenant=facts.tenant,
            body_bytes=facts.body_bytes,
            prompt_tokens=estimate.prompt_tokens,
            output_tokens=estimate.output_tokens,
            run=facts.run,
            offered_at=now,
            deadline=deadline,
        )
        self.estimate = estimate
        self.place: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()


class HandOn:
    """Finds places. One a sidecar; costs nothing while the own engine takes what comes."""

    def __init__(self, state: SidecarState, services: Services, peers: Peers) -> None:
        self.state = state
        self.services = services
        self.peers = peers
        self.queue: Queue[_Held] = Queue(Limits(0, 0))
        self._rounds: asyncio.Task[None] | None = None

    def again(self, trip: Trip, key: str, *, sent: bool) -> bool:
        """After a failure at `key`: whether the request may go elsewhere.

        Where it was `sent` it may have run, which counts against the pool's retries and the process's budget.
        """
        trip.tried += (key,)
        self.peers.forget(key)
        if not sent:
            return True
        trip.failures += 1
        return trip.failures <= self.state.settings.routing.retries and self.services.retries.spend()

    async def place(self, trip: Trip, client: ServerConnection) -> Peer:
        """Where the request goes now.

        Raises Refused: its own refusal when it was handed on already or a full queue is all that there is,
        QueueFull, or QueueTimeout.
        """
        peers = self.peers
        peers.own.add(client.local_address)
        if HANDED_ON_MARK in trip.request.special and await self._from_peer(trip, client):
            raise trip.refused
        crowded = isinstance(trip.refused, QueueFull)
        if crowded or not self.queue.held:  # else others were here before
            found = best_peer(await self._engines(), self._max_waiting, trip.tried)
            if found is not None:
                found.sent(self.state.estimator.estimate(trip.facts))
                return found
        if crowded:
            raise trip.refused
        return await self._hold(trip)

    async def _from_peer(self, trip: Trip, client: ServerConnection) -> bool:
        """By its proof; one of a release that has none is known by its address, and lies to its own harm only."""
        callers, proof = self.state.callers, trip.request.special.get(PROOF)
        if callers is not None and callers.part_of(proof, time()) is Part.PEER:
            return True
        return client.remote_address in await self.peers.addresses()

    @property
    def _max_waiting(self) -> int:
        return self.state.settings.routing.queue.max_waiting

    async def _engines(self) -> list[Peer]:
        """The own engine, which may be ready again, and the peers that answered."""
        peers = await self.peers.look()
        return [Peer(None, self.state.report()), *peers] if self.state.takes_requests else list(peers)

    async def _hold(self, trip: Trip) -> Peer:
        settings = self.state.settings.routing.queue
        now = monotonic()
        if trip.deadline is None:
            trip.deadline = now + duration_seconds(settings.timeout)
        self.queue.limits = Limits(settings.max_waiting, int(quantity_value(settings.max_bytes)))
        held = _Held(trip.facts, self.state.estimator.estimate(trip.facts), now, trip.deadline)
        if self.queue.offer(held) is not None:
            message = f"{trip.refused} {self.queue.held} requests wait for an engine already; try later."
            raise QueueFull(message, _RETRY_AFTER_SECONDS)
        self._count()
        if self._rounds is None or self._rounds.done():
            self._rounds = self.services.spawn(self._let_go())
        try:
            return await held.place
        finally:
            self.queue.remove(held)
            self._count()

    async def _let_go(self) -> None:
        """As long as something is held: turn away who has waited too long, give places to the next ones."""
        placed = True  # whoever begins to wait has just looked
        while self.queue.held:
            await asyncio.sleep(_ROUND_SECONDS if placed else _RETRY_SECONDS)
            for held in self.queue.expire(monotonic()):
                waited = monotonic() - held.offered_at
                message = f"No engine of the pool took the request within {waited:.0f} s; try later."
                _settle(held, QueueTimeout(message, _RETRY_AFTER_SECONDS))
            try:
                placed = await self._round()
            except Exception:  # who is held depends on this loop
                _log.exception("looking for an engine failed; this is a fault of the router; going on")
                placed = False

    async def _round(self) -> bool:
        engines = await self._engines()
        placed = False
        now = monotonic()
        for _ in range(_ROUND_REQUESTS * len(engines)):
            held = self.queue.next(now)
            found = None if held is None else best_peer(engines, self._max_waiting)
            if held is None or found is None:
                break
            self.queue.went(held)
            found.sent(held.estimate)
            _settle(held, found)
            placed = True
        return placed

    def _count(self) -> None:
        self.state.metrics.held.set(self.queue.held)


def _settle(held: _Held, place: Peer | Refused) -> None:
    if held.place.done():
        return
    if isinstance(place, Refused):
        held.place.set_exception(place)
    else:
        held.place.set_result(place)


class Home(Protocol):
    """The sidecar, for a request whose own engine is ready after all."""

    def admit(self, trip: Trip) -> tuple[Entry, HeldHere | None]:
        """Count the request as the own engine's. Raises Refused when that does not take it."""

    def run_here(self, trip: Trip, admitted: tuple[Entry, HeldHere | None], client: ServerConnection) -> None:
        """Give an admitted request to the own engine."""


class HandOnExchange(Exchange):
    """One request that another engine serves. It is in the peer's ledger and not in the own one."""

    __slots__ = ("_handon", "_home", "_looking_since", "_moved", "_peer", "_trip")

    mark = HANDED_ON_MARK + b": 1\r\n"

    def __init__(self, handon: HandOn, home: Home, trip: Trip, client: ServerConnection) -> None:
        super().__init__(handon.services, trip.request, client, trip.facts.api)
        self._handon = handon
        self._home = home
        self._trip = trip
        self._peer: Peer | None = None
        self._moved = False
        self._looking_since = self._started_at
        self._choices = trip.facts.choices
        self._drop_usage = trip.drop_usage
        self._request_id = trip.request_id = trip.request_id or self._request_id
        self._life = trip.life = trip.life or self._life
        told = trip.request.special.get(FACTS)
        if told is not None and trip.request.feed is not None:  # the peer needs it as well
            trip.request.rewrite((FACTS,), [FACTS, COLON, told, CRLF])

    def _start(self) -> None:
        self._spawn(self._find())

    async def _find(self) -> None:
        self._looking_since = monotonic()
        try:
            while not self._go(await self._handon.place(self._trip, self._client)):
                pass  # the own engine has just gone again: now `place` waits
        except Refused as refused:
            self._task = None
            self._refuse(refused.refusal, Outcome.REFUSED)

    def _go(self, place: Peer) -> bool:
        endpoint = place.endpoint
        if endpoint is None:
            return self._go_home()
        self._task = None
        self._found()
        trip = self._trip
        deadline = trip.facts.deadline_seconds
        if deadline is not None:
            began_at = self._started_at if trip.began_at is None else trip.began_at
            spend_deadline(self._request, deadline, monotonic() - began_at)
        self._peer = place
        self._send(self._services.pools.at(endpoint.host, endpoint.port, endpoint.trust))
        return True

    def _go_home(self) -> bool:
        try:
            admitted = self._home.admit(self._trip)
        except NoPods:
            return False
        request = self._request
        body = request.body
        self._task = None
        self._moved = True
        self._found()
        self._life = None  # the other exchange has it
        self._finish(Outcome.OK, 200)
        request.body = body  # another exchange's now
        self._home.run_here(self._trip, admitted, self._client)
        return True

    def _answer_lines(self, answer: AnswerReader) -> bytes:
        if POD in answer.special or self._peer is None:
            return b""
        return b"%b: %b\r\n" % (POD, self._peer.report.pod.encode("latin-1", "replace"))

    def _try_elsewhere(self, error: UpstreamError) -> bool:
        peer = self._peer
        if peer is None or error.kind == "first_byte_timeout":
            return False
        if not self._handon.again(self._trip, peer.key, sent=error.kind != "connect"):
            return False
        if self._life is not None:
            self._life.failed(peer.report.pod, error.kind, monotonic())
        self._spawn(self._find())
        return True

    def _close_books(self, outcome: Outcome, status: int, usage: Usage | None, now: float) -> None:
        del usage, now
        if self._moved:
            return
        metrics = self._handon.state.metrics
        if self._peer is None or outcome is Outcome.REFUSED:
            metrics.unserved(status, outcome)
        else:
            metrics.handed_on(outcome)

    def _found(self) -> None:
        if self._life is not None:
            now = monotonic()
            self._life.passed("queue", self._looking_since, now)
            self._life.queued_seconds += now - self._looking_since

    def _describe(self, life: Life) -> None:
        state, peer = self._handon.state, self._peer
        life.facts, life.pool = self._trip.facts, state.pool
        if peer is None or peer.endpoint is None:
            self._found()
        else:
            life.pod, life.reason = peer.report.pod, "handed_on"
            life.address = (peer.endpoint.host, peer.endpoint.port)

    def _whereabouts(self) -> dict[str, str]:
        pool = {"pool": self._handon.state.pool}
        return pool if self._peer is None else pool | {"pod": self._peer.report.pod}
