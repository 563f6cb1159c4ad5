"""Sends reports to everyone who listens: at once, on change, and as a heartbeat."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, Protocol, TypeVar

SPACING_SECONDS: Final = 0.05
# Of what others should know before they choose again.
URGENT_SPACING_SECONDS: Final = 0.005
HEARTBEAT_SECONDS: Final = 1.0


class Report(Protocol):
    """A LoadReport or a GatewayReport."""

    def encode(self) -> bytes:
        """One line."""


R = TypeVar("R", bound=Report)


class _Reader:
    """One who listens. Only the newest line is kept, so a slow one costs no memory and misses only what is old."""

    __slots__ = ("line", "woken")

    def __init__(self) -> None:
        self.line: bytes | None = None
        self.woken = asyncio.Event()


class Feed(Generic[R]):
    """`touch` is what a change calls: O(1), and nothing at all while nobody listens.

    `differs` says whether a report is worth sending after another; the heartbeat sends whatever it says.
    """

    def __init__(self, build: Callable[[], R], differs: Callable[[R, R], bool]) -> None:
        self._build = build
        self._differs = differs
        self._readers: set[_Reader] = set()
        self._last: R | None = None
        self._sent_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._closed = False

    def touch(self, *, urgent: bool = False) -> None:
        """Something changed: a report goes out as soon as the spacing allows, and sooner where it is urgent."""
        if (self._timer is not None and not urgent) or not self._readers or self._closed:
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time(), self._sent_at + (URGENT_SPACING_SECONDS if urgent else SPACING_SECONDS))
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_at(due, self._publish)

    def close(self) -> None:
        """Every stream ends."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for reader in self._readers:
            reader.woken.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """The first line at once, then one on each change and at least one a second, until `close`."""
        reader = _Reader()
        self._readers.add(reader)
        try:
            yield self._next()
            while not self._closed:
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await reader.woken.wait()
                except TimeoutError:
                    reader.line = self._next()
                reader.woken.clear()
                line, reader.line = reader.line, None
                if line is not None:
                    yield line
        finally:
            self._readers.discard(reader)

    def _next(self) -> bytes:
        # Not kept as `_last`: the other readers have not seen it.
        return self._build().encode()

    def _publish(self) -> None:
        self._timer = None
        report = self._build()
        if self._last is not None and not self._differs(self._last, report):
            return
        self._last = report
        self._sent_at = asyncio.get_running_loop().time()
        line = report.encode()
        for reader in self._readers:
            reader.line = line
            reader.woken.set()
