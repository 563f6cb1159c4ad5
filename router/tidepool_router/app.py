"""Wiring of the two roles: sockets, state and handlers put together, started, drained and taken down again."""

import asyncio
import gc
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from tidepool_api import contract
from tidepool_router.control import Handler, Response, StreamResponse
from tidepool_router.proxy.handled import HandlerApplication
from tidepool_router.proxy.server import Application, Server
from tidepool_router.proxy.services import Services
from tidepool_router.settings import Options

_log: Final = logging.getLogger("tidepool.router")


@dataclass(frozen=True, slots=True)
class Role:
    """What a role brings: an application for the traffic port, handlers for the other two."""

    traffic: Application
    metrics: Handler
    control: Handler


@dataclass(frozen=True, slots=True)
class Running:
    """A router that listens."""

    traffic: Server
    services: Services
    port: int
    metrics_port: int
    control_port: int


class _DrainNotice:
    """Passes everything on, and lets the traffic port know when a drain begins."""

    def __init__(self, control: Handler, traffic: Server) -> None:
        self._control = control
        self._traffic = traffic

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """Handler."""
        if path == contract.PATH_DRAIN and method == "GET":
            self._traffic.begin_drain()
        return await self._control.handle(method, path, headers, body)


@asynccontextmanager
async def serving(options: Options) -> AsyncIterator[Running]:
    """A router of the role that the options name, from listening to the last closed socket.

    Raises SettingsError when a file, flag or port cannot be used.
    """
    services = Services(options.limits)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(services.close)
        services.pools.start()
        role = await _role(options, services, stack)
        traffic = Server(role.traffic, options.limits, "traffic")
        control = _DrainNotice(role.control, traffic)
        metrics_server = Server(HandlerApplication(services, role.metrics), options.limits, "metrics")
        control_server = Server(HandlerApplication(services, control), options.limits, "control")
        ports = []
        for server, port in (
            (control_server, options.control_port),
            (metrics_server, options.metrics_port),
            (traffic, options.port),
        ):
            ports.append(await server.start(options.host, port))
            stack.push_async_callback(server.close)
        yield Running(traffic, services, ports[2], ports[1], ports[0])


async def run(options: Options) -> None:
    """Serve until a signal: the first one drains, the second one ends at once."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    async with serving(options) as running:
        where = {"port": running.port, "metrics_port": running.metrics_port, "control_port": running.control_port}
        _log.info("the %s is serving", options.role, extra=where)
        # What lives as long as the process need not be looked at by every collection.
        gc.collect()
        gc.freeze()
        await signals.get()
        await _drain(running.traffic, options.drain_seconds, signals)


async def _drain(traffic: Server, seconds: float, signals: "asyncio.Queue[int]") -> None:
    _log.info("draining", extra={"connections": len(traffic.connections), "at_most_seconds": seconds})
    traffic.stop_listening()
    traffic.begin_drain()
    emptied = asyncio.ensure_future(traffic.wait_empty(seconds))
    again = asyncio.ensure_future(signals.get())
    await asyncio.wait((emptied, again), return_when=asyncio.FIRST_COMPLETED)
    for waiter in (emptied, again):
        waiter.cancel()
    await asyncio.gather(emptied, again, return_exceptions=True)
    if traffic.connections:
        _log.warning("ending with connections open", extra={"connections": len(traffic.connections)})


async def _role(options: Options, services: Services, stack: AsyncExitStack) -> Role:
    boot = secrets.token_hex(4)
    if options.role == "gateway":
        return await _gateway(options, services, stack, boot)
    return await _sidecar(options, services, stack, boot)


async def _gateway(options: Options, services: Services, stack: AsyncExitStack, boot: str) -> Role:
    from tidepool_router.fleet.gateway import GatewayFleet
    from tidepool_router.fleet.filewatch import FleetFile
    from tidepool_router.proxy.gateway import Gateway

    fleet = GatewayFleet(name=options.pod, boot=boot)
    await fleet.start()
    stack.push_async_callback(fleet.close)
    raise NotImplementedError


async def _sidecar(options: Options, services: Services, stack: AsyncExitStack, boot: str) -> Role:
    raise NotImplementedError
