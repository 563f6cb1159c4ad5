"""A client that writes and reads bytes, and takes answers apart by itself."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

WAIT_SECONDS = 20.0  # nothing waits so long but on a machine that is busy with other things


@dataclass
class Answer:
    """One answer; `body` is without its framing."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    chunks: list[bytes]

    def json(self) -> Any:
        """The body's JSON."""
        return json.loads(self.body)


def post(body: bytes, path: bytes = b"/v1/chat/completions", extra: bytes = b"") -> bytes:
    """The bytes of a POST."""
    head = b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (path, extra, len(body)) + body


def chat(model: str = "tiny", *, stream: bool = False, **more: Any) -> bytes:
    """The body of a chat request."""
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": model, "messages": messages, "stream": stream, **more}).encode()


@asynccontextmanager
async def crowd(port: int, count: int) -> "AsyncIterator[list[RawClient]]":
    """So many clients, each with a connection of its own; whoever is left at the end leaves."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(RawClient(port)) for _ in range(count)]


class RawClient:
    """One connection."""

    def __init__(
        self, port: int, host: str = "127.0.0.1", source: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._host, self._port = host, port
        self._tls = tls
        self._source = None if source is None else (source, 0)

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(
            self._host, self._port, limit=1 << 27, local_addr=self._source, ssl=self._tls
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Go without a word."""
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes) -> Answer:
        """Send, then read one answer."""
        await self.send(data)
        return await self.answer()

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and with the mark."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Everything until the router closes."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.reader.read()

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        """Status and headers of the next answer."""
        head = await self.until(b"\r\n\r\n")
        line, *lines = head[:-4].split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        return int(line.split()[1]), headers

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next answer, whole."""
        status, headers = await self.head()
        chunks: list[bytes] = []
        if head_only:
            body = b""
        elif headers.get(b"transfer-encoding") == b"chunked":
            while chunk := await self.chunk():
                chunks.append(chunk)
            body = b"".join(chunks)
        elif b"content-length" in headers:
            async with asyncio.timeout(WAIT_SECONDS):
                body = await self.reader.readexactly(int(headers[b"content-length"]))
        else:
            body = await self.rest()
        return Answer(status, headers, body, chunks)

    async def chunk(self) -> bytes:
        """The next chunk; empty for the last."""
        size = int(await self.until(b"\r\n"), 16)
        async with asyncio.timeout(WAIT_SECONDS):
            data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]
