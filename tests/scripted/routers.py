"""A gateway in the test's own process, on a port of its own, before scripted engines."""

import asyncio
from dataclasses import dataclass

from tidepool_api.routing import Fleet, FleetPool, Routing
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.proxy.gateway import Gateway
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.server import Server
from tidepool_router.proxy.services import Services

QUICK = Limits(
    header_seconds=0.3, body_seconds=0.3, idle_seconds=30.0, connect_seconds=1.0, first_byte_seconds=20.0,
    chunk_seconds=20.0, sweep_seconds=0.02,
)  # fmt: skip


@dataclass
class RunningGateway:
    """What a test needs of it."""

    port: int
    server: Server
    services: Services
    fleet: GatewayFleet

    async def ready(self, pods: int) -> None:
        """Wait until so many pods can be picked."""
        async with asyncio.timeout(5):
            while sum(pod.report is not None for pool in self.fleet.pools.values() for pod in pool.pods.values()) < pods:
                await asyncio.sleep(0.005)

    def live(self) -> int:
        """Requests that some book still counts."""
        return sum(pod.ledger.running for pool in self.fleet.pools.values() for pod in pool.pods.values())

    async def settled(self) -> None:
        """Wait until nothing is left of any request: no client, no entry, no body, no task."""
        async with asyncio.timeout(5):
            while (
                self.server.connections or self.live() or self.services.bodies_bytes or self.services.tasks
            ) or self.services.replay.held_bytes:
                await asyncio.sleep(0.005)


async def start_gateway(
    *endpoints: str, models: tuple[str, ...] = ("tiny", "alias"), limits: Limits = QUICK, retries: int = 2
) -> RunningGateway:
    """Running, with one pool; the caller owes `stop_gateway`."""
    services = Services(limits)
    services.pools.start()
    fleet = GatewayFleet(name="gateway", boot="test")
    await fleet.start()
    pool = FleetPool(name="default/pool", models=models, endpoints=endpoints, routing=Routing(retries=retries))
    fleet.apply(Fleet(pools=(pool,)))
    server = Server(Gateway(services, fleet, "0"), limits, "traffic")
    port = await server.start("127.0.0.1", 0)
    running = RunningGateway(port, server, services, fleet)
    await running.ready(len(endpoints))
    return running


async def stop_gateway(running: RunningGateway) -> None:
    """Take it down."""
    await running.server.close()
    await running.fleet.close()
    await running.services.close()
