"""Reports are tested as a client and an engine see them: gateway, sidecars and engine doubles on real sockets."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from fakes.engine import EngineDouble
from fakes.settings import EngineSettings
from scripted.fixtures import gateway, pytest_asyncio_loop_factories, sidecar
from scripted.routers import start_gateway, start_sidecar, starting
from scripted.system import System

__all__ = ["gateway", "pytest_asyncio_loop_factories", "sidecar"]

StartSystem = Callable[..., Awaitable[System]]


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
