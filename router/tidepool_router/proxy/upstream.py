"""Connections to engines and sidecars, kept open between requests."""

import asyncio
from collections import deque
from time import monotonic
from typing import Any, Final, Protocol, cast

from tidepool_router.errors import UpstreamError
from tidepool_router.proxy.keepalive import notice_death
from tidepool_router.proxy.limits import Limits
from tidepool_router.tls import Trust
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.pieces import BodyFeed

_JOIN_BELOW_BYTES: Final = 65_536


class AnswerSink(Protocol):
    """Who gets the answer to a request that was sent."""

    def upstream_data(self, upstream: "UpstreamConnection") -> None:
        """Something of the answer has come; `upstream.answer` says what."""

    def upstream_lost(self, upstream: "UpstreamConnection", error: UpstreamError) -> None:
        """The connection is gone before the answer was whole."""


class UpstreamConnection(asyncio.Protocol):
    """One connection; it has a sink while a request is under way on it, else it is idle in its pool."""

    __slots__ = ("_paused", "answer", "feed", "idle_since", "pool", "sink", "transport", "used")

    def __init__(self, pool: "ConnectionPool") -> None:
        self.pool = pool
        self.answer = AnswerReader(pool.limits.max_head_bytes)
        self.sink: AnswerSink | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.used = 0
        self.feed: BodyFeed | None = None  # while the rest of a request's body is coming
        self._paused = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)
        if self.pool.trust is not None:
            self.transport.set_write_buffer_limits(_JOIN_BELOW_BYTES)
        self.pool.open.add(self)

    def send(self, sink: AnswerSink, head: bytes, body: bytes, *, no_answer_body: bool = False) -> None:
        """Put a request on the wire: one write for head and body, but without copying large bodies."""
        if self.used:
            self.answer.reset(no_body=no_answer_body)
        elif no_answer_body:
            self.answer.reset(no_body=True)
        self.used += 1
        self.sink = sink
        if len(body) < _JOIN_BELOW_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def send_more(self, data: bytes) -> None:
        """Target: a piece of the body."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        """The engine takes no more of a large body for now."""
        if self.feed is not None:
            self.feed.full()

    def resume_writing(self) -> None:
        """It takes more."""
        if self.feed is not None:
            self.feed.drained()

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        sink = self.sink
        if sink is None:
            self.transport.abort()  # an answer to nothing: whatever it is, it must not meet the next request
            return
        try:
            self.answer.feed(data)
        except ValueError as error:
            self._lose(UpstreamError("reset", f"the engine's answer cannot be read: {error}"))
            return
        sink.upstream_data(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by either side."""
        self.pool.lost(self)
        answer = self.answer
        if self.sink is not None:
            if exc is None and answer.ends_with_connection:
                answer.complete, answer.reusable = True, False
                self.sink.upstream_data(self)
            else:
                self._lose(UpstreamError("reset", "the engine closed the connection"))
        answer.end()

    def pause(self) -> None:
        """Read no more for now; the engine's own buffers fill up and slow it down."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def release(self) -> None:
        """The answer is whole: keep the connection for another request, or close it."""
        self.sink = None
        if self.feed is not None:  # the answer came before its request was whole
            self.drop()
            return
        self.resume()
        transport = self.transport
        # An answer that came before its request was sent whole leaves the rest of the request on the wire.
        if self.answer.reusable and not transport.is_closing() and not transport.get_write_buffer_size():
            self.pool.give(self)
        else:
            transport.abort()

    def drop(self) -> None:
        """Close at once: the engine must notice that nobody wants the answer any more."""
        self.sink = None
        if self.feed is not None:
            self.feed.lost(self)
        self.transport.abort()

    def _lose(self, error: UpstreamError) -> None:
        sink, self.sink = self.sink, None
        if self.feed is not None:
            self.feed.lost(self)
        self.transport.abort()
        if sink is not None:
            sink.upstream_lost(self, error)


class ConnectionPool:
    """The connections to one endpoint. The one used last is taken first, so that the others can grow old."""

    def __init__(self, host: str, port: int, limits: Limits, trust: Trust | None = None) -> None:
        self.trust = trust
        self.host = host
        self.port = port
        self.limits = limits
        self.open: set[UpstreamConnection] = set()
        self.idle: deque[UpstreamConnection] = deque()
        self.forever = False
        self.wanted = False  # somebody found no idle connection since the last trim, and is about to connect
        self._connecting = 0

    @property
    def unused(self) -> bool:
        """Whether it has neither connections nor any on their way, and nobody keeps it."""
        return not self.open and not self._connecting and not self.forever and not self.wanted

    def take(self) -> UpstreamConnection | None:
        """An idle connection that is fit for use."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        self.wanted = True
        return None

    def give(self, connection: UpstreamConnection) -> None:
        """Back to the idle ones."""
        if len(self.idle) >= self.limits.max_idle_upstream:
            connection.transport.close()
            return
        connection.idle_since = monotonic()
        self.idle.append(connection)

    async def connect(self) -> UpstreamConnection:
        """A new connection.

        Raises UpstreamError of kind "connect".
        """
        loop = asyncio.get_running_loop()
        trust = self.trust
        tls: dict[str, Any] = {}
        if trust is not None:
            tls = {"ssl": trust.newest, "server_hostname": trust.server_name or self.host}
        self._connecting += 1
        try:
            async with asyncio.timeout(self.limits.connect_seconds):
                transport, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self), self.host, self.port, **tls
                )
            notice_death(transport.get_extra_info("socket"), slow_reader=False)
        except TimeoutError as error:
            message = f"no connection to {self.host}:{self.port} within {self.limits.connect_seconds:g} s"
            raise UpstreamError("connect", message) from error
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            message = f"cannot connect to {self.host}:{self.port}: {error}"
            raise UpstreamError("connect", message, refused=refused) from error
        finally:
            self._connecting -= 1
        return connection

    def lost(self, connection: UpstreamConnection) -> None:
        """The connection is closed."""
        self.open.discard(connection)
        if connection.sink is None and connection in self.idle:
            self.idle.remove(connection)

    def trim(self, now: float) -> None:
        """Close what has been idle for too long."""
        limit = now - self.limits.upstream_idle_seconds
        while self.idle and self.idle[0].idle_since < limit:
            self.idle.popleft().transport.close()

    def close(self) -> None:
        """Close the idle ones; the others close after their answer."""
        while self.idle:
            self.idle.popleft().transport.close()


class ConnectionPools:
    """A pool for each endpoint in use; one that has had no connection since the last trim is forgotten."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pools: dict[tuple[str, int, Trust | None], ConnectionPool] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Trim from now on."""
        self._trim()

    def at(self, host: str, port: int, trust: Trust | None = None, *, forever: bool = False) -> ConnectionPool:
        """The endpoint's pool, over TLS where there is `trust`; `forever` when the caller keeps it."""
        pool = self._pools.get((host, port, trust))
        if pool is None:
            pool = self._pools[host, port, trust] = ConnectionPool(host, port, self._limits, trust)
        pool.forever = pool.forever or forever
        return pool

    @property
    def open_connections(self) -> int:
        """Connections to all endpoints."""
        return sum(len(pool.open) for pool in self._pools.values())

    async def close(self) -> None:
        """Cut every connection."""
        if self._timer is not None:
            self._timer.cancel()
        for pool in self._pools.values():
            for connection in list(pool.open):
                connection.transport.abort()
        await asyncio.sleep(0)  # the sockets are closed in the loop's next round

    def _trim(self) -> None:
        now = monotonic()
        for key, pool in list(self._pools.items()):
            pool.trim(now)
            if pool.unused:
                del self._pools[key]
            pool.wanted = False
        self._timer = asyncio.get_running_loop().call_later(1.0, self._trim)
