"""Scripted servers on real sockets: a sidecar that says what a test tells it to, and an engine that does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cluster.ports import free_ports
from tidepool_api import contract
from tidepool_api.load import Health, LoadReport
from tidepool_router.fleet.endpoint import Endpoint

Connection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE_SECONDS = 10.0


async def eventually(condition: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds; fails after a generous bound."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for is the code's own, which tells nobody
            await asyncio.sleep(0.002)


class Scripted:
    """A server whose `connection` is the script of each connection. `stop` and `start` keep the port."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        (self.port,) = free_ports(1)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.at("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> "Scripted":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it was on its way in when the server stopped
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve_one(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Not in the task: one that is cancelled before its first step runs nothing of its own.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._connection(reader, writer)


async def request_path(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    return head.split(b" ")[1].decode()


def answer(status: int, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


class SidecarDouble(Scripted):
    """Sends the reports of `say` to whoever follows its load stream, the last one at once."""

    def __init__(self, pod: str = "pod-0") -> None:
        super().__init__(self._serve)
        self.report = LoadReport(pod=pod, boot="boot-1", seq=1, health=Health.STARTING)
        self.followers: set[asyncio.StreamWriter] = set()

    def say(self, **changes: object) -> None:
        from dataclasses import replace

        self.report = replace(self.report, seq=self.report.seq + 1, **changes)  # type: ignore[arg-type]
        self.write(self.report.encode())

    def write(self, line: bytes) -> None:
        for writer in self.followers:
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))

    def hang_up(self) -> None:
        for writer in list(self.followers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await request_path(reader) != contract.PATH_LOAD_STREAM:
            writer.write(answer(404))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        self.followers.add(writer)
        try:
            line = self.report.encode()
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await reader.read()
        finally:
            self.followers.discard(writer)


class EngineDouble(Scripted):
    """Answers from `pages`, path to (status, body); None leaves the request without an answer."""

    def __init__(self) -> None:
        super().__init__(self._serve)
        self.pages: dict[str, tuple[int, bytes] | None] = {}
        self.asked: list[str] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = await request_path(reader)
            self.asked.append(path)
            page = self.pages.get(path, (404, b""))
            if page is None:
                await reader.read()
                return
            writer.write(answer(*page))


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def pass_(self, seconds: float) -> float:
        self.seconds += seconds
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def sidecars() -> AsyncIterator[Callable[..., Awaitable[SidecarDouble]]]:
    started: list[SidecarDouble] = []

    async def start(pod: str = "pod-0") -> SidecarDouble:
        double = SidecarDouble(pod)
        started.append(double)
        await double.start()
        return double

    yield start
    for double in started:
        await double.stop()


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    double = EngineDouble()
    await double.start()
    yield double
    await double.stop()


@pytest.fixture
async def scripted() -> AsyncIterator[Callable[[Connection], Awaitable[Scripted]]]:
    started: list[Scripted] = []

    async def start(connection: Connection) -> Scripted:
        server = Scripted(connection)
        started.append(server)
        return await server.start()

    yield start
    for server in started:
        await server.stop()


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    return eventually
