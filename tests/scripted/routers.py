"""Both roles in the test's own process, on ports of their own, before scripted engines."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from tidepool_api.routing import Fleet, FleetPool, FleetPrefill, Routing, SidecarSettings
from tidepool_api.traffic import Traffic
from tidepool_router.control import load_endpoints
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.keys import KeyRing
from tidepool_router.proxy.active import Application
from tidepool_router.proxy.gateway import Gateway
from tidepool_router.proxy.governed import Governance
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.listening import Server
from tidepool_router.proxy.peers import Peers
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.sidecar import Sidecar
from tidepool_router.tls import Trust
from tidepool_router.usage.tally import Tally
from tidepool_router.workflow.hosts import Hosts

# Long enough for a slow machine where a test does not wait for them, and looked at often where it does.
QUICK = Limits(connect_seconds=10.0, first_byte_seconds=20.0, chunk_seconds=20.0, sweep_seconds=0.02)


@dataclass
class RunningRouter:
    """A router, and what a test may ask of it. `live` counts the requests that some book holds open."""

    port: int
    server: Server
    services: Services
    state: Any
    live: Callable[[], int]
    close_state: Callable[[], Awaitable[None]]

    def leftovers(self) -> dict[str, int]:
        """What is not zero although no client is there."""
        counts = {
            "client connections": len(self.server.connections),
            "open entries": self.live(),
            "body bytes": self.services.bodies_bytes,
            "replay bytes": self.services.replay.held_bytes,
            "bytes on disk": self.services.spools.held_bytes,
            "tasks": len(self.services.tasks),
        }
        return {name: count for name, count in counts.items() if count}

    async def settled(self) -> None:
        """Wait until no client and nothing of any request is left."""
        await until(lambda: not self.leftovers(), lambda: f"left over: {self.leftovers()}")

    async def stop(self) -> None:
        """Take it down."""
        await self.server.close()
        await self.close_state()
        await self.services.close()


StartRouter = Callable[..., Awaitable[RunningRouter]]


@asynccontextmanager
async def starting(kind: StartRouter) -> AsyncIterator[StartRouter]:
    """Starts routers of a kind; each must have nothing left in the end."""
    started: list[RunningRouter] = []

    async def start(*args: object, **kwargs: object) -> RunningRouter:
        router = await kind(*args, **kwargs)
        started.append(router)
        return router

    async with AsyncExitStack() as stopping:  # each is stopped, also after one that was not settled
        try:
            yield start
        finally:
            for router in started:
                stopping.push_async_callback(router.stop)
                stopping.push_async_callback(router.settled)


async def until(condition: Callable[[], Any], why: Callable[[], str] = lambda: "it did not come true") -> None:
    """Wait for something that has no event; fails with `why` after 20 s."""
    try:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 (states of sockets have no event to wait for)
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(why()) from None


async def start_gateway(
    *endpoints: str,
    models: tuple[str, ...] = ("tiny", "alias"),
    retries: int = 2,
    routing: Routing | None = None,
    wakes: bool = False,
    known: int | None = None,
    keys: KeyRing | None = None,
    tally: Tally | None = None,
    traffic: Traffic | None = None,
    hosts: tuple[str, ...] = (),
    prefill: FleetPrefill | None = None,
    others: tuple[FleetPool, ...] = (),
    trust: Trust | None = None,
    tls: ssl.SSLContext | None = None,
    **limits: float,
) -> RunningRouter:
    """A gateway with one pool and `others`, which has heard of `known` of the endpoints (default: all)."""
    fleet = GatewayFleet(name="gateway", boot="test", trust=trust)
    await fleet.start()
    pool = FleetPool(
        name="default/pool",
        models=models,
        endpoints=endpoints,
        routing=routing or Routing(retries=retries),
        traffic=traffic,
        hosts=hosts,
        prefill=prefill,
        wakes=wakes,
    )
    fleet.apply(Fleet(pools=(pool, *others)))

    def pods() -> list[Any]:
        pools = [*fleet.pools.values(), *(pool.prefill for pool in fleet.pools.values() if pool.prefill)]
        return [pod for pool in pools for pod in pool.pods.values()]

    given = len(endpoints) + (0 if prefill is None else len(prefill.endpoints))
    wanted = given + sum(len(other.endpoints) for other in others) if known is None else known
    await until(lambda: sum(pod.report is not None for pod in pods()) >= wanted)
    governed: list[Governance] = []

    def application(services: Services) -> Gateway:
        governed.append(Governance(services, fleet.metrics, Hosts(loopback=True)))
        made = Gateway(services, fleet, "0", keys, governed[0])
        made.tally = tally
        return made

    async def close() -> None:
        await governed[0].close()
        await fleet.close()

    return await _serve(
        application,
        limits,
        fleet,
        lambda: sum(pod.ledger.running for pod in pods()),
        close,
        tls=tls,
    )


async def start_sidecar(
    engine: str,
    *,
    settings: SidecarSettings | None = None,
    ready: bool = True,
    pod: str = "pod-1",
    address: tuple[str, int] = ("127.0.0.1", 0),
    peers: Callable[[str], Sequence[str]] | None = None,
    trust: Trust | None = None,
    tls: ssl.SSLContext | None = None,
    hands_over: bool = False,
    **limits: float,
) -> RunningRouter:
    """A sidecar before one engine; waits until the engine is ready.

    `peers` is asked for the addresses of the pool as DNS would be; all sidecars of a pool have one port.
    """
    endpoint = Endpoint.at("127.0.0.1", int(engine.rpartition(":")[2]))
    state = SidecarState(
        endpoint, settings or SidecarSettings(pool="pool"), pod=pod, boot=f"test-{pod}", hands_over=hands_over
    )
    await state.start()
    if ready:
        await until(lambda: state.why_not_ready() is None)

    found: list[Peers] = []

    def application(services: Services) -> Sidecar:
        engine = services.pools.at(endpoint.host, endpoint.port, forever=True)
        if peers is not None:
            scheme = "http" if tls is None else "https"
            url = f"dns+{scheme}://pool-peers.default.svc:{address[1]}"
            found.append(Peers(url, state.boot, (), services.spawn, peers, trust))
        loads = load_endpoints(state.feed, state.report)
        return Sidecar(services, state, engine, loads, found[0] if found else None)

    async def close() -> None:
        await state.close()
        for each in found:
            each.close()

    return await _serve(application, limits, state, lambda: state.ledger.running, close, address, tls)


async def _serve(
    application: Callable[[Services], Application],
    limits: dict[str, float],
    state: Any,
    live: Callable[[], int],
    close_state: Callable[[], Awaitable[None]],
    address: tuple[str, int] = ("127.0.0.1", 0),
    tls: ssl.SSLContext | None = None,
) -> RunningRouter:
    services = Services(replace(QUICK, **limits))  # type: ignore[arg-type]
    services.pools.start()
    server = Server(application(services), services.limits, "traffic", opens_early=True)
    port = await server.start(*address, tls)
    return RunningRouter(port, server, services, state, live, close_state)
