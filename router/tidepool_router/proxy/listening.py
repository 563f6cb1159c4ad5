"""A port: who is connected to it, how it drains, and when deadlines are looked at."""

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from tidepool_router.errors import SettingsError
from tidepool_router.proxy.active import Application
from tidepool_router.proxy.keepalive import notice_death
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.secure import SecureConnection
from tidepool_router.proxy.server import ServerConnection

_LOOK_SECONDS: Final = 0.05


class Server:
    """One port."""

    def __init__(self, application: Application, limits: Limits, name: str, *, opens_early: bool = False) -> None:
        self.opens_early = opens_early  # large bodies are offered to the application before their end
        self.application = application
        self.limits = limits
        self.name = name
        self.draining = False
        self.lingers_until = 0.0
        self.secure = False
        self.connections: set[ServerConnection] = set()
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._emptied.set()

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None, *, shared: bool = False) -> int:
        """Listen, also there, over TLS when there is a context; returns the port, a free one when `port` is 0.

        `shared`: other processes listen on it too, and the kernel spreads connections over them. Raises
        SettingsError when the address cannot be had.
        """
        self.secure = self.secure or tls is not None
        loop = asyncio.get_running_loop()
        protocol: Callable[[], asyncio.BaseProtocol] = lambda: ServerConnection(self)  # noqa: E731
        if tls is not None:
            context, seconds = tls, self.limits.header_seconds
            protocol = lambda: SecureConnection(ServerConnection(self), context, seconds)  # noqa: E731
        try:
            listener: Any = await loop.create_server(
                protocol,
                host,
                port,
                backlog=1024,
                reuse_port=shared or None,
            )
        except OSError as error:
            raise SettingsError(f"cannot listen on {host}:{port} ({self.name}): {error}") from error
        self._listeners.append(listener)
        for listening in listener.sockets:
            notice_death(listening, slow_reader=True)  # its connections inherit it
        if self._sweeper is None:
            self._sweep()
        return int(listener.sockets[0].getsockname()[1])

    def admit(self, connection: ServerConnection) -> None:
        """Count a connection in, or close it when there are too many."""
        self.connections.add(connection)
        self._emptied.clear()
        if len(self.connections) > self.limits.max_connections:
            connection.abort()

    def forget(self, connection: ServerConnection) -> None:
        """The connection is closed."""
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    def begin_drain(self) -> None:
        """From now on every answer is the last of its connection; idle connections are closed in a moment."""
        if self.draining:
            return
        self.draining = True
        now = monotonic()
        for connection in self.connections:
            if not connection.active:
                connection.linger(now)

    def stop_listening(self) -> None:
        """Take no new connections."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    @property
    def requests(self) -> int:
        """Clients' requests that are under way."""
        return sum(connection.holds_drain for connection in self.connections)

    async def wait_idle(self) -> None:
        """Return when no client's request is under way or to be expected; a look at all every now and then."""
        while self.requests or monotonic() < self.lingers_until:  # noqa: ASYNC110 (an event would cost each request more than this costs a drain)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _wait_empty(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Cut whatever is left and wait until it is gone."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.transport.abort()
        await self._wait_empty(5.0)
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _sweep(self) -> None:
        now = monotonic()
        for connection in list(self.connections):
            connection.check(now)
        self._sweeper = asyncio.get_running_loop().call_later(self.limits.sweep_seconds, self._sweep)
