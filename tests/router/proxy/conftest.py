"""The data path is tested on the loop that it runs on, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from scripted.peers import NOBODY, ONE, POOL
from scripted.routers import RunningRouter, StartRouter, start_gateway, start_sidecar, starting, until


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in production."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def gateway() -> AsyncIterator[StartRouter]:
    """Starts gateways: `await gateway(engine.url, ...)`; each must have nothing left in the end."""
    async with starting(start_gateway) as start:
        yield start


@pytest.fixture
async def sidecar() -> AsyncIterator[StartRouter]:
    """Starts sidecars: `await sidecar(engine.url, ...)`; each must have nothing left in the end."""
    async with starting(start_sidecar) as start:
        yield start


@pytest.fixture
def pool_port() -> int:
    """The port that all sidecars of the test's pool share."""
    with socket.socket() as free:
        free.bind((ONE, 0))
        number: int = free.getsockname()[1]
        return number


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
