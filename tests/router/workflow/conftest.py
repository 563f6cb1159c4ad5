"""Runs are tested on the loop that they run on, through a gateway's sockets, before scripted engines and tools."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fakes.postgres import PostgresServer, postgres_server
from scripted.fixtures import gateway, pytest_asyncio_loop_factories
from scripted.routers import StartRouter
from workflows.rooms import Place, start_rooms

__all__ = ["gateway", "place", "pytest_asyncio_loop_factories"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real server, for all tests of a process."""
    with postgres_server() as server:
        yield server


@pytest.fixture
async def place(gateway: StartRouter) -> AsyncIterator[Callable[..., Awaitable[Place]]]:
    """`await place(spec, ...)`: a gateway with a pool and one workflow, an engine and a tool."""
    async with AsyncExitStack() as stack:

        async def start(spec: dict[str, Any], **more: Any) -> Place:
            return await start_rooms(stack, gateway, spec, **more)

        yield start
