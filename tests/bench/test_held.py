"""Requests that are held: what is called held must be held, and a stream that did not begin is an error."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.held import BODY_BYTES, hold
from bench.load import Work

pytestmark = pytest.mark.traffic

_STREAM = b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1a\r\ndata: {"role":"assistant"}\r\n'


class Engine:
    """Answers POSTs; knows how many are open and how many bytes have come."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.open = self.bytes = self.whole = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = b""
            while len(body) < length and (got := await reader.read(1 << 20)):
                body += got
                self.bytes += len(got)
            self.whole += bool(json.loads(body))
            writer.write(self.answer)
            await reader.read()
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[int]:
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=1 << 24)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_idle_streams_are_all_open_at_the_second_look() -> None:
    engine, looks = Engine(_STREAM), []
    work = Work("idle", {"model": "tiny", "stream": True}, 7, by="held")
    async with serving(engine) as port:
        sent = await asyncio.to_thread(hold, port, work, lambda: looks.append(engine.open))

    assert looks == [0, 7]
    assert (sent.requests, sent.errors) == (7, 0)


async def test_a_stream_that_was_refused_is_an_error() -> None:
    work = Work("idle", {"model": "tiny"}, 3, by="held")
    async with serving(Engine(b'HTTP/1.1 429 Too Many\r\n\r\n"role"')) as port:
        sent = await asyncio.to_thread(hold, port, work, lambda: None)

    assert sent.errors == 3


async def test_bodies_are_nearly_all_there_at_the_second_look_and_whole_in_the_end() -> None:
    engine, looks = Engine(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), []
    async with serving(engine) as port:
        work = Work("bodies", {}, 2, by="held")
        sent = await asyncio.to_thread(hold, port, work, lambda: looks.append((engine.bytes, engine.whole)))

    assert looks[0] == (0, 0)
    assert 2 * (BODY_BYTES - 8192) < looks[1][0] < 2 * BODY_BYTES
    assert looks[1][1] == 0
    assert (engine.whole, sent.errors) == (2, 0)
