"""Requests to this gateway's own data path, without a socket between.

A step's request takes the way of every other one: picked, held at zero, retried, counted in the ledgers, cut when
nobody waits for it. The connection is the server's own; only its transport is made of calls.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import httptools

from tidepool_api import contract
from tidepool_router.errors import RouterError
from tidepool_router.proxy.active import Application
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.listening import Server
from tidepool_router.proxy.server import ServerConnection

MAX_ANSWER_BYTES: Final = 4 << 20


_QUEUE_MS: Final = contract.HEADER_QUEUE_MS.encode()


class Answer(NamedTuple):
    """A whole answer; `queue_seconds`: how long the gateway held the request before a pod had it."""

    status: int
    body: bytes
    queue_seconds: float


class AnswerBroke(RouterError):
    """The answer ended before it was whole, or is too long."""


class InProcess:
    """A client of an application of this process. `close` ends what is under way."""

    def __init__(self, application: Application, limits: Limits) -> None:
        self._server = Server(application, limits, "workflows")
        self._sweep_seconds = limits.sweep_seconds
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look at deadlines."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def close(self) -> None:
        """Cut what is under way."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for connection in list(self._server.connections):
            connection.transport.abort()

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        on_bytes: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """The answer; `on_bytes` gets each piece of a 200 as it comes, in place of the body.

        Raises AnswerBroke. Cancelling it cuts the request, up to the engine.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\nhost: tidepool\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
        wire = _Wire(self._server, on_bytes)
        try:
            wire.send(head.encode("latin-1", "replace") + body)
            return await wire.answer
        finally:
            wire.hang_up()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._sweep_seconds)
            now = loop.time()
            for connection in list(self._server.connections):
                connection.check(now)


class _Wire(asyncio.Transport):
    """The other end of one connection, which carries one request."""

    def __init__(self, server: Server, on_bytes: Callable[[bytes], None] | None) -> None:
        super().__init__()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._connection = ServerConnection(server)
        self._parser = httptools.HttpResponseParser(self)
        self._on_bytes = on_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._queue_seconds = 0.0
        self._closing = False
        self._lost = False
        self._connection.connection_made(self)

    def send(self, data: bytes) -> None:
        """The request."""
        self._connection.data_received(data)

    def hang_up(self) -> None:
        """The client is gone."""
        self._closing = True
        if not self._lost:
            self._lost = True
            self._connection.connection_lost(None)

    # The server calls these.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Transport."""
        if self.answer.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._break("the answer cannot be read")

    def is_closing(self) -> bool:
        """Transport."""
        return self._closing

    def close(self) -> None:
        """Transport."""
        self._closing = True
        if not self.answer.done():
            self._break("the answer was cut short")

    def abort(self) -> None:
        """Transport."""
        self.close()

    def pause_reading(self) -> None:
        """Transport."""

    def resume_reading(self) -> None:
        """Transport."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Transport."""
        return ("127.0.0.1", 0) if name in ("peername", "sockname") else default

    # The parser calls these.

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools."""
        if name == _QUEUE_MS:
            self._queue_seconds = int(value) / 1000

    def on_body(self, data: bytes) -> None:
        """httptools."""
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            self._break(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        elif self._on_bytes is not None and self._parser.get_status_code() == 200:
            self._on_bytes(data)
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        """httptools."""
        if not self.answer.done():
            status = self._parser.get_status_code()
            self.answer.set_result(Answer(status, b"".join(self._parts), self._queue_seconds))

    def _break(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(AnswerBroke(why))
