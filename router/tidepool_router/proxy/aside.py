"""A request of the router's own beside a client's and made from it: how it goes out, and lets go of all."""

import asyncio
from abc import ABC, abstractmethod

from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.upstream import ConnectionPool, UpstreamConnection
from tidepool_router.wire.headers import GATEWAY_MARK
from tidepool_router.wire.messages import Request


class Aside(ABC):
    """One of them; an AnswerSink. From `_send_to` on it is open, until a subclass ends it by `_let_go`."""

    __slots__ = ("_body", "_connecting", "_head", "_open", "_services", "_timer", "_upstream")

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open = False
        self._head = self._body = b""
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def upstream_data(self, upstream: UpstreamConnection) -> None:
        """AnswerSink."""

    @abstractmethod
    def _fail(self, error: UpstreamError) -> None:
        """It did not get its answer."""

    @abstractmethod
    def _expire(self) -> None:
        """It took too long."""

    def _send_to(self, place: Reservation, request: Request, request_id: bytes, seconds: float) -> None:
        """The client's request with `_body` as its body; `_expire` is called after so many seconds."""
        self._open = True
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)
        target = request.target if request.target[:1] == b"/" else b"/" + request.target.split(b"/", 3)[-1]
        self._head = b"%b %b HTTP/1.1\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n%b: 1\r\n%b\r\n" % (
            request.method, target, request.joined, request_id, len(self._body), GATEWAY_MARK,
            self._services.proof,
        )  # fmt: skip
        endpoint = place.endpoint
        pool = self._services.pools.at(endpoint.host, endpoint.port, endpoint.trust)
        upstream = pool.take()
        if upstream is None:
            self._connecting = self._services.spawn(self._connect(pool))
        else:
            self._send_on(upstream)

    async def _connect(self, pool: ConnectionPool) -> None:
        try:
            upstream = await pool.connect()
        except UpstreamError as error:
            self._connecting = None
            self._fail(error)
            return
        self._connecting = None
        if self._open:
            self._send_on(upstream)
        else:
            pool.give(upstream)

    def _send_on(self, upstream: UpstreamConnection) -> None:
        self._upstream = upstream
        upstream.send(self, self._head, self._body)

    def upstream_lost(self, upstream: UpstreamConnection, error: UpstreamError) -> None:
        """AnswerSink."""
        self._upstream = None
        if self._open and upstream.used > 1 and not upstream.answer.began and error.kind == "reset":
            # An idle connection that the other side had closed already: no engine has seen this request.
            self._connecting = self._services.spawn(self._connect(upstream.pool))
        else:
            self._fail(error)

    def _let_go(self) -> None:
        """It is over; whoever works on it notices."""
        self._open = False
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.drop()
        task, self._connecting = self._connecting, None
        if task is not None:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._head = self._body = b""
