"""Client connections: requests come out of the reader one after the other, each gets an exchange.

Invariant: at most one exchange is active on a connection; it ends by `finished`, or it is told `client_gone`,
never both. What a client sends meanwhile waits in `_held`, and beyond a bound in the socket.
"""

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from tidepool_router.errors import NotYet, Refusal, Refused
from tidepool_router.facts import Api
from tidepool_router.proxy.active import ActiveExchange
from tidepool_router.proxy.spool import Spool, StoredFeed, give_back, keep
from tidepool_router.wire.errors import refusal_answer
from tidepool_router.wire.messages import Request, RequestReader
from tidepool_router.wire.pieces import BodyFeed

if TYPE_CHECKING:
    from tidepool_router.proxy.listening import Server

_log: Final = logging.getLogger("tidepool.router")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_HELD_LIMIT_BYTES: Final = 65_536
# What plain connections have by themselves; for TLS asyncio's own is eight times that.
_WRITE_LIMIT_BYTES: Final = 65_536


class ServerConnection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_advancing",
        "_arrived_bytes",
        "_closes_after_body",
        "_closing",
        "_exchange",
        "_feed_open",
        "_held",
        "_limits",
        "_reader",
        "_reading_paused",
        "_refusal",
        "_server",
        "_spool",
        "_writing_paused",
        "arriving_since",
        "deadline",
        "transport",
    )

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._limits = server.limits
        limits = server.limits
        front_bytes = limits.front_bytes if server.opens_early else 0
        self._reader = RequestReader(
            limits.max_head_bytes, limits.max_body_bytes, front_bytes, limits.replay_bytes
        )
        self._exchange: ActiveExchange | None = None
        self._advancing = False
        self._arrived_bytes = 0  # of a body that is not whole yet, as counted among all bodies
        # A body that its exchange takes while it comes. What is left of it after the answer is thrown away.
        self._feed_open: BodyFeed | None = None
        self._closes_after_body = False
        self._spool: Spool | None = None  # has a body that must be whole first, to the end of its answer
        self._held = b""
        self._refusal: Refusal | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._closing = False
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.deadline = 0.0
        self.arriving_since = 0.0  # first byte of a request that has not come whole at once, else 0

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast("asyncio.Transport", transport)
        if self._server.secure:
            self.transport.set_write_buffer_limits(_WRITE_LIMIT_BYTES)
        self.deadline = monotonic() + self._limits.idle_seconds
        self._server.admit(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._exchange is None and not self._writing_paused:
            if not self._closing:
                self._feed(data)
            return
        if self._feed_open is not None and self._exchange is not None:
            self._feed_body(self._feed_open, data)
            return
        self._held += data
        if len(self._held) > _HELD_LIMIT_BYTES:
            self.transport.pause_reading()
            self._reading_paused = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """The client has gone, or we closed."""
        self._closing = True
        self._server.forget(self)
        self._count_arrived(0)
        self._let_go()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self._reader.end()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._writing_paused = True
        self.deadline = monotonic() + self._limits.stall_seconds
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writing_paused = False
        self.deadline = monotonic() + self._limits.idle_seconds
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self._advance()

    # Exchanges call these.

    @property
    def last_answer(self) -> bool:
        """Whether the answer that is being made must be the last one here (`connection: close`)."""
        return self._server.draining

    @property
    def writing_paused(self) -> bool:
        """Whether the client is behind."""
        return self._writing_paused

    @property
    def remote_address(self) -> str:
        """Whence the client came; empty when it has just gone."""
        return _address(self.transport.get_extra_info("peername"))

    @property
    def local_address(self) -> str:
        """Which of our addresses the client reached, after any rewriting on its way."""
        return _address(self.transport.get_extra_info("sockname"))

    def hand_over(self, exchange: ActiveExchange) -> None:
        """The active exchange has let go of its request, and this one answers in its place."""
        self._exchange = exchange

    def write(self, data: bytes) -> None:
        """Bytes of the answer, framed by the caller; in vain when the client has just gone."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def finished(self, *, keep_alive: bool) -> None:
        """The exchange has written its whole answer."""
        self._exchange = None
        if self._spool is not None:
            self._let_go()
        if self._feed_open is not None:
            self._throw_away(self._feed_open, keep_alive=keep_alive)
        elif not keep_alive:
            self.close()
        elif not self._advancing:
            self._advance()

    def close(self) -> None:
        """Flush, then close."""
        self._exchange = None
        self._closing = True
        self._reader.ready.clear()
        # A client that never takes the rest must not hold the connection.
        self.deadline = monotonic() + self._limits.body_seconds
        self.transport.close()

    def abort(self) -> None:
        """Cut the answer short, so that the client sees that it is not whole."""
        self._exchange = None
        self._closing = True
        self.transport.close()

    # The server calls these.

    @property
    def active(self) -> bool:
        """Whether a request is being answered or has begun to arrive."""
        reader = self._reader
        return self._exchange is not None or reader.reading_head or reader.reading_body or self._writing_paused

    @property
    def holds_drain(self) -> bool:
        """Whether a request of a client is under way."""
        return self.active and (self._exchange is None or self._exchange.holds_drain)

    def linger(self, now: float) -> None:
        """Idle while draining: one request more is answered, as the last one; then the connection is closed."""
        self.deadline = now + self._limits.linger_seconds
        self._server.lingers_until = self.deadline

    def check(self, now: float) -> None:
        """Deadlines: the exchange's own while one is active, else the client's."""
        exchange = self._exchange
        if exchange is not None and not self._writing_paused:
            exchange.check(now)
        elif now >= self.deadline:
            self._out_of_time()

    def _out_of_time(self) -> None:
        reader = self._reader
        if self._closing or self._writing_paused:
            self.transport.abort()
        elif self._feed_open is not None:
            self.close()  # it has its answer
        elif reader.reading_head or reader.reading_body:
            what = "headers" if reader.reading_head else "body"
            message = f"the request's {what} did not arrive in time; send the whole request without a pause"
            self._refuse(Refusal(408, "invalid_request_error", "request_timeout", message))
        else:
            self.close()

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        in_head = reader.reading_head
        try:
            reader.feed(data)
        except Refused as refused:
            self._count_arrived(0)
            if self._feed_open is not None:
                self.close()  # it has its answer
                return
            self._refusal = refused.refusal  # whole requests before the bad one get their answers first
            self._advance()
            return
        if self._feed_open is not None and not self._thrown_away(self._feed_open):
            return
        if reader.ready:
            if self._arrived_bytes:
                self._count_arrived(0)  # the exchange counts the whole body
            if self._spool is not None:
                self._kept_whole(self._spool, reader.ready[0])
            if len(reader.ready) > self._limits.max_pipelined:
                self.abort()
                return
            self._advance()
        elif not (in_head and reader.reading_head):  # the time for a head runs from its first byte
            self._wait_for_more()

    def _advance(self) -> None:
        """Start what is ready, as long as answers are finished at once and the client takes them."""
        reader = self._reader
        self._advancing = True
        while self._exchange is None and reader.ready and not self._writing_paused and not self._closing:
            self._begin(reader.ready.popleft())
        self._advancing = False
        if self._exchange is not None or self._writing_paused or self._closing:
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self._held:
            held, self._held = self._held, b""
            self.take_body()
            self._feed(held)
        else:
            self._wait_for_more()

    def _wait_for_more(self) -> None:
        reader = self._reader
        limits = self._limits
        now = monotonic()
        if self._feed_open is not None:
            self.deadline = now + limits.body_seconds
            return
        if not (reader.reading_head or reader.reading_body):
            self.arriving_since = 0.0
        elif not self.arriving_since:
            self.arriving_since = now
        if reader.reading_body:
            self._wait_for_body(now)
        elif reader.reading_head:
            self.deadline = now + limits.header_seconds
        elif self._server.draining:
            self.linger(now)
        else:
            self.deadline = now + limits.idle_seconds

    def _wait_for_body(self, now: float) -> None:
        reader = self._reader
        self.deadline = now + self._limits.body_seconds
        if self._spool is not None:
            self._keep(self._spool)
            return
        self._count_arrived(reader.arrived_bytes)
        try:
            self._server.application.services.check_room(0)
        except Refused as refused:
            self._count_arrived(0)
            self._refuse(refused.refusal)
            return
        if reader.wants_continue:
            reader.wants_continue = False
            self.transport.write(_CONTINUE)
        if reader.may_open:
            self._open_body()

    # Large bodies, which go on while they come.

    def hold_body(self) -> None:
        """Source."""
        if not self._reading_paused and not self._closing and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()

    def take_body(self) -> None:
        """Source."""
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self.transport.resume_reading()

    def _open_body(self) -> None:
        """Begin a request before its body is whole, where its front says enough."""
        reader = self._reader
        request = reader.open(self)
        if request is None:
            return
        self._feed_open = request.feed
        self.hold_body()  # until the exchange has a connection for it
        try:
            self._begin(request)
        except NotYet:
            self._feed_open = None
            reader.close_again(request)
            self._keep(None)
            self.take_body()
            return
        self._count_arrived(0)  # the exchange counts what it has

    def _keep(self, spool: Spool | None) -> None:
        """What has come of a body that must be whole first goes to disk, where there is one."""
        reader = self._reader
        try:
            if spool is None:
                spool = self._spool = self._server.application.services.spools.open(reader.length)
            if spool is not None:
                self._count_arrived(0)
                keep(reader, spool)
        except Refused as refused:
            self._let_go()
            self._server.application.services.warn("a large body was refused", reason=refused.refusal.message)
            request = reader.open(self)
            if request is not None:
                self._feed_open = request.feed  # the rest of it is thrown away
                self._refuse_request(request, refused.refusal)

    def _kept_whole(self, spool: Spool, request: Request) -> None:
        try:
            spool.write(request.body)
        except Refused as refused:
            self._reader.ready.popleft()
            self._refuse_request(request, refused.refusal)
            return
        request.body = b""
        request.feed = StoredFeed(spool)

    def _begin_in_memory(self, request: Request, spool: Spool) -> None:
        """A request for which a body on disk will not do."""
        try:
            give_back(request, spool)
        except Refused as refused:
            self._refuse_request(request, refused.refusal)
            return
        self._let_go()
        self._begin(request)

    def _let_go(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    def _feed_body(self, feed: BodyFeed, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except Refused as refused:
            feed.fail(refused.refusal)
            return
        if feed.whole:
            self._feed_open = None
        feed.pump()

    def _throw_away(self, feed: BodyFeed, *, keep_alive: bool) -> None:
        """The answer came before the end of the body: a client may look for it when it has sent all, and must not
        find the connection closed then."""
        if feed.failed:
            self.close()
            return
        self._closes_after_body = not keep_alive
        self.deadline = monotonic() + self._limits.body_seconds
        self.take_body()

    def _thrown_away(self, feed: BodyFeed) -> bool:
        """Whether the rest of a body that nobody wanted is over and the connection goes on."""
        self.deadline = monotonic() + self._limits.body_seconds
        if not feed.whole:
            return False
        self._feed_open = None
        if self._closes_after_body:
            self.close()
            return False
        return True

    def _count_arrived(self, size: int) -> None:
        """Bodies that arrive slowly take memory too: they count among all bodies, and within their bound."""
        self._server.application.services.bodies_bytes += size - self._arrived_bytes
        self._arrived_bytes = size

    def _begin(self, request: Request) -> None:
        try:
            self._exchange = self._server.application.begin(request, self)
        except NotYet:
            if self._spool is None:
                raise  # more of it is to come
            self._begin_in_memory(request, self._spool)
        except Refused as refused:
            self._refuse_request(request, refused.refusal)
        except Exception:
            _log.exception("a request could not be started; this is a fault of the router, please report it")
            message = "the router failed on this request; its log says why"
            self._refuse_request(request, Refusal(500, "server_error", "internal_error", message))

    def _refuse_request(self, request: Request, refusal: Refusal) -> None:
        route = request.route
        api = route.api if route else Api.OTHER
        close = not request.keep_alive or self._server.draining
        request_id = request.special.get(b"x-request-id") or self._server.application.services.new_request_id()
        extra = b"x-request-id: %b\r\n" % request_id
        self.write(refusal_answer(api, refusal, extra, close=close, head_only=request.method == b"HEAD"))
        self.finished(keep_alive=not close)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer bytes that are no request of use; nothing after them can be understood."""
        self.transport.write(refusal_answer(Api.OTHER, refusal, close=True))
        self.close()


def _address(name: object) -> str:
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) and name else ""
