"""The data path is tested on the loop that it runs on, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
import uvloop

from scripted.routers import RunningRouter, start_gateway, start_sidecar

StartRouter = Callable[..., Awaitable[RunningRouter]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in production."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def gateway() -> AsyncIterator[StartRouter]:
    """Starts gateways: `await gateway(engine.url, ...)`; each must have nothing left in the end."""
    async for start in _starting(start_gateway):
        yield start


@pytest.fixture
async def sidecar() -> AsyncIterator[StartRouter]:
    """Starts sidecars: `await sidecar(engine.url, ...)`; each must have nothing left in the end."""
    async for start in _starting(start_sidecar):
        yield start


async def _starting(kind: StartRouter) -> AsyncIterator[StartRouter]:
    started: list[RunningRouter] = []

    async def start(*args: object, **kwargs: object) -> RunningRouter:
        router = await kind(*args, **kwargs)
        started.append(router)
        return router

    yield start
    for router in reversed(started):
        try:
            await router.settled()
        finally:
            await router.stop()
