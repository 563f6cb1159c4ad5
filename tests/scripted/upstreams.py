"""An engine that a test scripts byte by byte, on a real socket."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

JSON_ANSWER = (
    b'{"id":"x","object":"chat.completion","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
)


@dataclass
class Seen:
    """One request as it arrived: the head's bytes and the body's."""

    head: bytes
    body: bytes
    writer: asyncio.StreamWriter
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def line(self) -> bytes:
        """Request line."""
        return self.head.partition(b"\r\n")[0]

    @property
    def headers(self) -> dict[bytes, bytes]:
        """By lower-case name."""
        lines = self.head.split(b"\r\n")[1:]
        return {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}

    async def answer(self, body: bytes = JSON_ANSWER, status: bytes = b"200 OK", extra: bytes = b"") -> None:
        """A whole answer with its length."""
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        await self.send(head % (status, extra, len(body)) + body)

    async def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def begin_stream(self) -> None:
        """The head of a stream of events."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        """One chunk; an empty one ends the stream."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def reset(self) -> None:
        """Close without a word."""
        self.writer.transport.abort()


Script = Callable[[Seen], Awaitable[None]]


async def answer_json(seen: Seen) -> None:
    """The script of an engine that works."""
    await seen.answer()


class ScriptedEngine:
    """Answers requests by `script`, one after the other on each connection; what routers ask aside, plainly.

    `requests` has all that came for the script, `connections` counts those that were ever accepted. With `load`,
    which is a load report, it passes for a sidecar; `page` is its metrics page.
    """

    def __init__(
        self,
        script: Script = answer_json,
        *,
        address: tuple[str, int] = ("127.0.0.1", 0),
        load: bytes | None = None,
        page: bytes = b"",
    ) -> None:
        self.script = script
        self.load = load
        self.page = page
        self.early: Script | None = None  # called with the head of a request, before its body is read
        self.host, self.port = address
        self.requests: list[Seen] = []
        self.connections = 0
        self.open = 0
        self.arrived: asyncio.Queue[Seen] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, limit=1 << 27)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it was on its way in when the engine went down
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Not in the task: one that is cancelled before its first step runs nothing of its own.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        last: Seen | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                seen = Seen(head[:-4], b"", writer, number)
                if self.early is not None:
                    await self.early(seen)
                seen.body = await _body(seen, reader)
                last = seen
                await self._answer(seen, reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            if last is not None:
                last.closed.set()

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader) -> None:
        path = seen.line.split(b" ")[1]
        if path == b"/tidepool/load" and self.load is not None:
            await seen.answer(self.load)
        elif path.startswith(b"/tidepool/"):
            await seen.answer(b"{}", b"404 Not Found")
        elif path == b"/metrics":
            await seen.answer(self.page)
        elif path in (b"/health", b"/v1/models") and b"x-test" not in seen.headers:
            await seen.answer(b'{"object":"list","data":[{"id":"tiny","object":"model","root":"tiny"}]}')
        else:
            self.requests.append(seen)
            self.arrived.put_nowait(seen)
            script = asyncio.ensure_future(self.script(seen))
            await self._until_done(script, reader, seen)

    async def _until_done(self, script: "asyncio.Future[None]", reader: asyncio.StreamReader, seen: Seen) -> None:
        """Let the script run, but see at once when the router closes the connection."""
        while not script.done():
            if reader.at_eof():
                seen.closed.set()
                script.cancel()
                break
            await asyncio.sleep(0.001)
        await asyncio.gather(script, return_exceptions=True)
        if script.cancelled() or script.exception() is not None:
            raise ConnectionResetError


async def _body(seen: Seen, reader: asyncio.StreamReader) -> bytes:
    if seen.headers.get(b"transfer-encoding") != b"chunked":
        return await reader.readexactly(int(seen.headers.get(b"content-length", b"0")))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body
