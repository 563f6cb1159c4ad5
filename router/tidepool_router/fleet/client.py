"""A small HTTP/1.1 reader for control traffic: one request, whole or line by line. Never the data path.

asyncio streams and httptools: a hundred idle load streams must cost next to nothing.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import httptools

from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.endpoint import Endpoint

CONNECT_SECONDS: Final = 2.0
_READ_BYTES: Final = 65536
# A line of a load stream is below 1 kB, a gateway's with ten thousand pools below 2 MB.
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
# An engine's metrics page is about 100 kB.
_MAX_BODY_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes


class _Message:
    """What httptools calls back with."""

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.headers_done = False
        self.done = False

    def on_headers_complete(self) -> None:
        self.headers_done = True

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        self.done = True


class Stream:
    """One open answer. Always `close` it; reading past a bound or broken framing raises UpstreamError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self._reader = reader
        self._writer = writer
        self._message = _Message()
        self._parser = httptools.HttpResponseParser(self._message)
        self._buffer = bytearray()

    async def head(self) -> None:
        """Read up to the end of the headers; sets `status`."""
        while not self._message.headers_done:
            if not await self._more():
                raise UpstreamError("reset", "the connection was closed before an answer")
        self.status = self._parser.get_status_code()

    async def line(self) -> bytes | None:
        """The next line without its end; None when the answer is over."""
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            searched = len(self._buffer)
            if searched > _MAX_LINE_BYTES:
                raise UpstreamError("reset", f"a line is longer than {_MAX_LINE_BYTES} bytes")
            if not await self._fill():
                return None

    async def rest(self) -> bytes:
        """The whole body."""
        while await self._fill():
            if len(self._buffer) > _MAX_BODY_BYTES:
                raise UpstreamError("reset", f"the answer is longer than {_MAX_BODY_BYTES} bytes")
        return bytes(self._buffer)

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def _fill(self) -> bool:
        chunks = self._message.chunks
        while not chunks:
            if self._message.done or not await self._more():
                return False
        while chunks:
            self._buffer += chunks.popleft()
        return True

    async def _more(self) -> bool:
        try:
            data = await self._reader.read(_READ_BYTES)
            if data:
                self._parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise UpstreamError("reset", f"the answer broke off: {error}") from error
        return bool(data)


async def open_stream(
    endpoint: Endpoint, path: str, timeout_seconds: float = CONNECT_SECONDS, body: bytes | None = None
) -> Stream:
    """Send a GET, or a POST of JSON where there is a `body`, and read the head of its answer.

    Raises UpstreamError with kind `connect` when nobody listens, `first_byte_timeout` when no head comes in time.
    """
    trust = endpoint.trust
    tls: dict[str, Any] = {}
    if trust is not None:
        tls = {"ssl": trust.newest, "server_hostname": trust.server_name or endpoint.host}
    try:
        async with asyncio.timeout(min(timeout_seconds, CONNECT_SECONDS) if body is not None else timeout_seconds):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, **tls)
    except (OSError, TimeoutError) as error:
        raise UpstreamError("connect", f"no connection to {endpoint.key}: {error or 'timed out'}") from error
    stream = Stream(reader, writer)
    try:
        async with asyncio.timeout(timeout_seconds):
            writer.write(_request(endpoint, path, body))
            await stream.head()
    except TimeoutError as error:
        stream.close()
        raise UpstreamError("first_byte_timeout", f"{endpoint.key} did not answer {path} in time") from error
    except BaseException:
        stream.close()
        raise
    return stream


def _request(endpoint: Endpoint, path: str, body: bytes | None) -> bytes:
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: {endpoint.authority}\r\nAccept: */*\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def get(endpoint: Endpoint, path: str, timeout_seconds: float) -> Answer:
    """A whole answer within the time; raises UpstreamError as `open_stream` does."""
    return await _whole(await open_stream(endpoint, path, timeout_seconds), endpoint, path, timeout_seconds)


async def post(endpoint: Endpoint, path: str, body: bytes, timeout_seconds: float) -> Answer:
    """The whole answer to a POST of JSON; raises as `get`."""
    stream = await open_stream(endpoint, path, timeout_seconds, body)
    return await _whole(stream, endpoint, path, timeout_seconds)


async def _whole(stream: Stream, endpoint: Endpoint, path: str, timeout_seconds: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_seconds):
            return Answer(stream.status, await stream.rest())
    except TimeoutError as error:
        raise UpstreamError("first_byte_timeout", f"{endpoint.key} did not finish {path} in time") from error
    finally:
        stream.close()
