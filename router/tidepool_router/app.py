"""Wiring of the two roles: sockets, state and handlers put together, started, drained and taken down again."""

import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Final

from tidepool_api import contract
from tidepool_router.control import (
    Handler,
    Response,
    StreamResponse,
    gateway_control,
    gateway_metrics,
    load_endpoints,
    sidecar_control,
    sidecar_metrics,
)
from tidepool_router.fleet.document import FleetDocument
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.filewatch import FleetFile, KeysFile, SettingsFile
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.keys_metrics import count_keys
from tidepool_router.fleet.recording import DecisionLog
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.guard import follow, open_door
from tidepool_router.keys import ApiKey, KeyRing
from tidepool_router.metrics import Registry
from tidepool_router.proof_file import ProofFile
from tidepool_router.proxy.active import Application
from tidepool_router.proxy.gateway import Gateway
from tidepool_router.proxy.governed import Governance
from tidepool_router.proxy.handled import HandlerApplication
from tidepool_router.proxy.listening import Server
from tidepool_router.proxy.peers import Peers
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.sidecar import Sidecar
from tidepool_router.settings import Options, read_sidecar_settings
from tidepool_router.tls import OwnCertificate, Trust
from tidepool_router.tracing.start import watching
from tidepool_router.usage.export import export
from tidepool_router.usage.tally import Tally
from tidepool_router.workflow.hosts import allowed_hosts
from tidepool_router.workflows import WorkflowSwitch

_log: Final = logging.getLogger("tidepool.router")


@dataclass(frozen=True, slots=True)
class Role:
    """What a role brings: an application for the traffic port, handlers for the other two."""

    traffic: Application
    registry: Registry
    metrics: Handler
    control: Handler
    begin_drain: Callable[[], object]
    has_fleet: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A router that listens."""

    traffic: Server
    services: Services
    begin_drain: Callable[[], object]
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
    services = Services(options.limits, options.bodies_folder)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(services.close)
        services.pools.start()
        certificate = _own_certificate(options, services)
        await _prove(options.proof_file, services)
        role = await _role(options, services, stack)
        if sight := watching(options, role.registry):
            sight.start()
            stack.push_async_callback(sight.close)
            services.sight = sight
        traffic = Server(role.traffic, options.limits, "traffic", opens_early=True)
        control = _DrainNotice(role.control, traffic)
        metrics_server = Server(HandlerApplication(services, role.metrics), options.limits, "metrics")
        control_server = Server(HandlerApplication(services, control), options.limits, "control")
        worker = options.worker_fd is not None  # then the parent alone reaches the other two ports
        beside = "127.0.0.1" if worker else options.host
        ports = []
        for server, host, port in (
            (control_server, options.control_host or beside, options.control_port),
            (metrics_server, beside, options.metrics_port),
        ):
            ports.append(await server.start(host, port))
            stack.push_async_callback(server.close)
        stack.push_async_callback(traffic.close)
        if worker:
            services.spawn(_join_port(options, traffic, role, certificate))
            ports.append(options.port)
        else:
            both = options.tls_port is not None
            ports.append(await traffic.start(options.host, options.port, None if both else certificate))
            if options.tls_port is not None:
                await traffic.start(options.host, options.tls_port, certificate)
        yield Running(traffic, services, role.begin_drain, ports[2], ports[1], ports[0])


async def _join_port(options: Options, traffic: Server, role: Role, certificate: ssl.SSLContext | None) -> None:
    """A worker listens when it knows the fleet: the kernel sends its part of the clients from that moment on."""
    if role.has_fleet is not None:
        await role.has_fleet.wait()
    if not traffic.draining:
        await traffic.start(options.host, options.port, certificate, shared=True)


def _own_certificate(options: Options, services: Services) -> ssl.SSLContext | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    certificate = OwnCertificate(options.tls_cert, options.tls_key)
    services.spawn(certificate.run())
    return certificate.context


async def _prove(path: Path | None, services: Services) -> None:
    """Show our proof from now on, where there is one."""
    if path is None:
        return

    def apply(line: bytes) -> None:
        services.proof = line

    proof = ProofFile(path, apply)
    await asyncio.to_thread(proof.look)
    services.spawn(proof.run())


def _trust(options: Options, services: Services) -> Trust | None:
    if options.pod_ca is None:
        return None if options.pod_server_name is None else Trust(None, options.pod_server_name)
    trust = Trust(options.pod_ca, options.pod_server_name)
    services.spawn(trust.run())
    return trust


async def run(options: Options) -> None:
    """Serve until a signal: the first one drains, the second one ends at once."""
    parent = os.getppid()
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    async with serving(options) as running:
        where = {"port": running.port, "metrics_port": running.metrics_port, "control_port": running.control_port}
        _log.info("the %s is serving", options.role, extra=where)
        if options.passed_over:
            asked = {"flags": " ".join(options.passed_over)}
            _log.warning(
                "passing over flags of a newer operator; take this router's image from its release", extra=asked
            )
        _calm_collector()
        if options.worker_fd is not None:
            running.services.spawn(_work_for(parent, options.worker_fd, running, signals))
        await signals.get()
        running.begin_drain()  # load streams tell it at once, so that whoever picks pods does not pick this one
        await _drain(running.traffic, options.drain_seconds, signals)


async def _work_for(parent: int, descriptor: int, running: Running, signals: "asyncio.Queue[int]") -> None:
    """Tell the parent on which ports this worker can be asked; when it has gone, drain as if it had said so."""
    line = json.dumps({"metrics": running.metrics_port, "control": running.control_port})
    listens = True
    with os.fdopen(descriptor, "wb", 0) as told:
        try:
            told.write(line.encode() + b"\n")
        except BrokenPipeError:  # it has gone before this process knew who it was
            listens = False
    while listens and os.getppid() == parent:  # noqa: ASYNC110 (no event tells it)
        await asyncio.sleep(1.0)
    signals.put_nowait(signal.SIGTERM)


def _calm_collector() -> None:
    """Requests leave no cycles, so reference counts free nearly all; by default collections took 9 of 39 us."""
    gc.collect()
    gc.freeze()  # what lives as long as the process need not be looked at again
    gc.set_threshold(20_000, 20, 20)


async def _drain(traffic: Server, seconds: float, signals: "asyncio.Queue[int]") -> None:
    _log.info("draining", extra={"requests": traffic.requests, "at_most_seconds": seconds})
    traffic.stop_listening()
    traffic.begin_drain()
    idle = asyncio.ensure_future(traffic.wait_idle())
    again = asyncio.ensure_future(signals.get())
    await asyncio.wait((idle, again), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for waiter in (idle, again):
        waiter.cancel()
    await asyncio.gather(idle, again, return_exceptions=True)
    if traffic.requests:
        _log.warning("ending with requests under way, which are cut", extra={"requests": traffic.requests})


async def _role(options: Options, services: Services, stack: AsyncExitStack) -> Role:
    start = _gateway if options.role == "gateway" else _sidecar
    return await start(options, services, stack)


async def _gateway(options: Options, services: Services, stack: AsyncExitStack) -> Role:
    fleet = GatewayFleet(
        name=options.pod,
        boot=secrets.token_hex(4),
        trust=_trust(options, services),
        decisions=DecisionLog(options.decisions_file) if options.decisions_file is not None else None,
        explains=options.debug_scores,
    )
    await fleet.start()
    stack.push_async_callback(fleet.close)
    if options.fleet_file is not None:
        await _follow_file(options.fleet_file, fleet, services, wait=options.wait_for_file)
    has_fleet = asyncio.Event()
    fleet.follow(lambda: has_fleet.set() if fleet.has_fleet else None)
    door = await open_door(options, fleet.metrics.registry, services)
    keys = await _keys(options.keys_file, fleet, services, options.workers)
    hosts = allowed_hosts(options.workflows.hosts)
    governance = Governance(services, fleet.metrics, hosts)
    stack.push_async_callback(governance.close)
    application = Gateway(services, fleet, version("tidepool"), keys, governance)
    application.tally = await _usage(options, fleet.metrics.registry, stack)
    workflows = WorkflowSwitch(services, fleet, application, options.workflows, hosts)
    stack.push_async_callback(workflows.close)
    workflows.inner = Gateway(services, fleet, version("tidepool"), None, governance)
    fleet.follow(workflows.look)
    control = gateway_control(fleet, options.drain_seconds, door, workflows)
    drain = partial(fleet.begin_drain, options.drain_seconds)
    return Role(application, fleet.metrics.registry, gateway_metrics(fleet), control, drain, has_fleet)


async def _follow_file(path: Path, fleet: GatewayFleet, services: Services, *, wait: bool) -> None:
    def apply(document: FleetDocument) -> None:
        for warning in document.warnings:
            _log.warning("fleet", extra={"reason": warning})
        if not fleet.apply(document.fleet):
            _log.warning("the fleet file is older than the fleet in force and was not applied")

    file = FleetFile(path, apply, may_be_empty=wait)
    if not wait or await asyncio.to_thread(path.exists):
        await file.load()
    services.spawn(file.run())


async def _keys(path: Path | None, fleet: GatewayFleet, services: Services, workers: int) -> KeyRing | None:
    """Keys in force. Raises KeysError: a gateway that was meant to be closed must not start open."""
    if path is None:
        _log.info("no --keys file: everybody who reaches this gateway may use every model")
        return None
    ring = KeyRing()

    def apply(keys: tuple[ApiKey, ...]) -> None:
        ring.apply(keys, monotonic())

    file = KeysFile(path, apply)
    await file.load()
    count_keys(fleet.metrics.registry, ring)
    fleet.follow(lambda: ring.divide(fleet.gateways * workers, monotonic()))
    services.spawn(file.run())
    return ring


async def _usage(options: Options, registry: Registry, stack: AsyncExitStack) -> Tally | None:
    """Counts who used how much, where that is kept. Raises JournalError where the store cannot be opened."""
    if not options.keeps_usage or options.workflows.store is None:
        return None
    from tidepool_router.usage.book import Book

    tally = Tally()
    book = Book(tally, options.workflows.store)
    book.start()
    stack.push_async_callback(book.close)
    export(registry, tally)
    return tally


async def _follow_trust(path: Path, state: SidecarState, services: Services) -> None:
    """Whom to believe is read again from the mounted file, as a push counts only from who is believed already."""
    await follow(SettingsFile(path, lambda settings: state.believe(settings.trust)), path, services)


async def _sidecar(options: Options, services: Services, stack: AsyncExitStack) -> Role:
    engine = Endpoint.at(options.engine_host, options.engine_port)
    state = SidecarState(
        engine,
        read_sidecar_settings(options),
        pod=options.pod,
        boot=secrets.token_hex(4),
        hands_over=options.hands_over,
    )
    state.variant = options.variant
    if options.settings_file is not None:
        await _follow_trust(options.settings_file, state, services)
    await state.start()
    stack.push_async_callback(state.close)
    pool = services.pools.at(engine.host, engine.port, forever=True)
    loads = load_endpoints(state.feed, state.report)
    peers = None
    if options.peers is not None:
        own = () if options.pod_address is None else (options.pod_address,)
        peers = Peers(options.peers, state.boot, own, services.spawn, trust=_trust(options, services))
        stack.callback(peers.close)
    application = Sidecar(services, state, pool, loads, peers)
    control = sidecar_control(state)
    return Role(application, state.metrics.registry, sidecar_metrics(state), control, state.begin_drain)
