"""The clients that people use, each against a gateway before a sidecar before the engine double, over sockets."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fakes.engine import EngineDouble
from fakes.settings import EngineSettings
from scripted.fixtures import pytest_asyncio_loop_factories
from scripted.routers import start_gateway, start_sidecar
from scripted.stacks import Stack
from tidepool_api.routing import Queue, Routing, SidecarSettings

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """Ends only when no request is left in any book."""
    async with EngineDouble(EngineSettings(prompt_tokens_details=True)) as engine:
        settings = SidecarSettings(pool="pool", model="tiny", aliases=("alias",))
        sidecar = await start_sidecar(engine.url, settings=settings, max_body_bytes=1 << 20)
        gateway = await start_gateway(f"http://127.0.0.1:{sidecar.port}", max_body_bytes=1 << 20)
        try:
            yield Stack(engine, sidecar, gateway)
            await gateway.settled()
        finally:
            await gateway.stop()
            await sidecar.stop()


@pytest.fixture
async def full() -> AsyncIterator[str]:
    """URL of a gateway whose one pool is at zero, with room for one request to wait, and one that waits."""
    queue = Queue(max_waiting=1, timeout="60s", cold_start_timeout="60s")
    gateway = await start_gateway(wakes=True, routing=Routing(queue=queue))
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = b'{"model":"tiny","messages":[]}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    pool = gateway.state.pools["default/pool"]
    try:
        async with asyncio.timeout(20):
            while not pool.queue.held:  # noqa: ASYNC110 (a queue has no event to wait for)
                await asyncio.sleep(0.002)
        yield f"http://127.0.0.1:{gateway.port}"
    finally:
        del reader
        writer.transport.abort()
        await gateway.settled()
        await gateway.stop()
