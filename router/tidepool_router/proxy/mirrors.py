"""Copies of requests for another pool.

Nobody waits for them, their answers are thrown away, and they are bounded in number and bytes: a pool that cannot
keep up loses copies, never the requests that were copied.
"""

from dataclasses import dataclass
from time import monotonic
from typing import Final

from tidepool_router.errors import UpstreamError
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.ledger import Outcome
from tidepool_router.proxy.aside import Aside
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.upstream import UpstreamConnection
from tidepool_router.wire.body import rename_model
from tidepool_router.wire.messages import Request

_MOST_COPIES: Final = 1024
_MOST_BYTES: Final = 64 * 1024 * 1024
_LONGEST_SECONDS: Final = 600.0
_FAULTS: Final = frozenset((500, 502, 503, 504))


@dataclass(frozen=True, slots=True)
class Copied:
    """What is copied: the request, and its body as it was sent, in which the model is called `model`."""

    request: Request
    request_id: bytes
    facts: RequestFacts
    body: bytes
    model: str


class Mirrors:
    """All copies under way."""

    def __init__(self, services: Services, metrics: GatewayMetrics) -> None:
        self.services = services
        self.metrics = metrics
        self.copies = 0
        self.bytes = 0

    def send(self, owner: PoolState, pool: PoolState, copied: Copied) -> None:
        """Send a copy if there is room for it and a pod that takes it at once; never waits."""
        if self.copies >= _MOST_COPIES or self.bytes + len(copied.body) > _MOST_BYTES:
            self.count(owner, "full")
            return
        adapter = copied.facts.adapter
        if adapter is None:
            body = _renamed(copied, pool.engine_model)
        else:
            body = copied.body if adapter in pool.adapters else None
        if body is None:
            self.count(owner, "unfit")
            return
        reservation = pool.pick(copied.facts, monotonic())
        if reservation is None:
            self.count(owner, "no_pod")
            return
        _Copy(self, owner, reservation, body).start(copied)

    def count(self, owner: PoolState, outcome: str) -> None:
        """One copy that was sent or could not be."""
        self.metrics.mirrored.labels(owner.name, outcome).inc()


def _renamed(copied: Copied, model: str) -> bytes | None:
    if model == copied.model:
        return copied.body
    special = copied.request.special
    if b"content-encoding" in special:
        return None
    try:
        return rename_model(copied.body, model, special.get(b"content-type", b""))
    except ValueError:
        return None


class _Copy(Aside):
    """One copy. It ends by exactly one `_end`."""

    __slots__ = ("_mirrors", "_owner", "_reservation", "_size")

    def __init__(self, mirrors: Mirrors, owner: PoolState, reservation: Reservation, body: bytes) -> None:
        super().__init__(mirrors.services)
        self._mirrors = mirrors
        self._owner = owner
        self._reservation = reservation
        self._body = body
        self._size = len(body)
        mirrors.copies += 1
        mirrors.bytes += self._size

    def start(self, copied: Copied) -> None:
        self._send_to(self._reservation, copied.request, copied.request_id, _LONGEST_SECONDS)

    def upstream_data(self, upstream: UpstreamConnection) -> None:
        """AnswerSink."""
        answer = upstream.answer
        if not answer.head_ready:
            return
        if answer.parts:
            answer.parts = []
            self._reservation.entry.first_token(monotonic())
        if answer.complete:
            self._upstream = None
            upstream.release()
            if answer.status in _FAULTS:
                self._reservation.failed("http_5xx")
            self._end(Outcome.OK if answer.status < 400 else Outcome.ERROR)

    def _fail(self, error: UpstreamError) -> None:
        if self._open:
            self._reservation.failed(error.kind)
        self._end(Outcome.ERROR)

    def _expire(self) -> None:
        self._end(Outcome.ERROR)

    def _end(self, outcome: Outcome) -> None:
        if not self._open:
            return
        self._let_go()
        mirrors = self._mirrors
        mirrors.copies -= 1
        mirrors.bytes -= self._size
        mirrors.count(self._owner, outcome.value)
        self._reservation.close(outcome, monotonic())
