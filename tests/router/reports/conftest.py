"""Reports are tested as a client and an engine see them: gateway, sidecars and engine doubles on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import pytest
import uvloop

from fakes.engine import EngineDouble
from fakes.settings import EngineSettings
from scripted.routers import StartRouter, start_gateway, start_sidecar, starting
from scripted.system import System

StartSystem = Callable[..., Awaitable[System]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in production."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def gateway() -> AsyncIterator[StartRouter]:
    """Starts gateways; each must have nothing left in the end."""
    async with starting(start_gateway) as start:
        yield start


@pytest.fixture
async def sidecar() -> AsyncIterator[StartRouter]:
    """Starts sidecars; each must have nothing left in the end."""
    async with starting(start_sidecar) as start:
        yield start


@pytest.fixture
async def system() -> AsyncIterator[StartSystem]:
    """`await system(pods=2)`: a gateway before so many sidecars, each with an engine double of its own."""
    async with AsyncExitStack() as stack:
        begin_sidecar = await stack.enter_async_context(starting(start_sidecar))
        begin_gateway = await stack.enter_async_context(starting(start_gateway))

        async def start(pods: int = 1, settings: EngineSettings | None = None, **gateway: object) -> System:
            engines, sidecars = [], []
            for number in range(pods):
                engine = await stack.enter_async_context(EngineDouble(settings))
                engines.append(engine)
                sidecars.append(await begin_sidecar(engine.url, pod=f"pod-{number}"))
            urls = [f"http://127.0.0.1:{sidecar.port}" for sidecar in sidecars]
            return System(await begin_gateway(*urls, **gateway), sidecars, engines)

        yield start
