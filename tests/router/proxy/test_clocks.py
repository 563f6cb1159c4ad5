"""Wall clocks that jump: deadlines, ejections and waits are measured by a clock that does not."""

import asyncio
import time
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import Queue, Routing

DAY_SECONDS = 86_400.0


async def _silent(seen: Seen) -> None:
    await asyncio.Event().wait()


@pytest.fixture(params=[DAY_SECONDS, -DAY_SECONDS], ids=["forward", "back"])
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and the wall clock is a day off."""
    real = time.time
    return lambda: monkeypatch.setattr(time, "time", lambda: real() + request.param)


async def test_a_timeout_comes_when_it_is_due(gateway: Any, jump: Any) -> None:
    async with ScriptedEngine(_silent) as engine:
        router = await gateway(engine.url, first_byte_seconds=0.3)
        began = asyncio.get_running_loop().time()
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await engine.arrived.get()
            jump()
            answer = await client.answer()

        assert answer.status == 504
        assert 0.25 < asyncio.get_running_loop().time() - began < 3.0


async def test_who_is_held_waits_its_time(gateway: Any, jump: Any) -> None:
    routing = Routing(queue=Queue(timeout="400ms", cold_start_timeout="400ms"))
    router = await gateway(wakes=True, routing=routing)
    pool = router.state.pools["default/pool"]
    async with RawClient(router.port) as client:
        await client.send(post(chat()))
        await until(lambda: pool.queue.held == 1)
        began = asyncio.get_running_loop().time()
        jump()
        answer = await client.answer()

    assert answer.status == 503
    assert 0.2 < asyncio.get_running_loop().time() - began < 3.0


async def test_an_ejected_pod_comes_back_in_time(gateway: Any, jump: Any) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as other:
        router = await gateway(one.url, other.url)
        pool = router.state.pools["default/pool"]
        pod = next(iter(pool.pods.values()))
        pod.streaming = True
        pool.pod_failed(pod, "connect")
        assert pod.state(pool.now()).value == "ejected"
        jump()
        assert pod.state(pool.now()).value == "ejected"

        await until(lambda: pod.state(pool.now()).value == "ready")
