"""The data path is tested on the loop that it runs on, over real sockets."""

from collections.abc import AsyncIterator

import pytest

from cluster.ports import free_ports
from scripted.fixtures import gateway, pytest_asyncio_loop_factories, sidecar
from scripted.peers import NOBODY, POOL
from scripted.routers import RunningRouter, StartRouter, until

__all__ = ["gateway", "pytest_asyncio_loop_factories", "sidecar"]


@pytest.fixture
def pool_port() -> int:
    """The port that all sidecars of the test's pool share."""
    return free_ports(1)[0]


@pytest.fixture
async def member(sidecar: StartRouter, pool_port: int) -> AsyncIterator[StartRouter]:
    """Starts sidecars of one pool: `await member(ONE, engine.url, ...)`, without an engine not ready.

    What they keep open among them is closed when nothing runs.
    """
    started: list[RunningRouter] = []

    async def start(address: str, engine: str = NOBODY, **more: object) -> RunningRouter:
        options = {"ready": engine is not NOBODY, "peers": lambda _: POOL} | more
        router = await sidecar(engine, pod=f"pod-{address[-1]}", address=(address, pool_port), **options)
        started.append(router)
        return router

    yield start
    for router in started:
        await until(lambda router=router: not router.live() and not router.services.tasks)
        await router.services.pools.close()
