"""Fixtures of all rooms whose tests run routers on real sockets; a conftest imports what it wants."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from scripted.routers import StartRouter, start_gateway, start_sidecar, starting


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
