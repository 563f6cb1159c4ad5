"""Gateways and sidecars that restart: what runs is known from the sidecars' ledgers, and from nowhere else."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fakes.engine import EngineDouble
from fakes.settings import EngineSettings, Pace
from scripted.clients import RawClient, chat, crowd, post
from scripted.routers import RunningRouter, start_gateway, start_sidecar, until

MANUAL = EngineSettings(pace=Pace.MANUAL, eos_after_tokens=4)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def begin(stack: AsyncExitStack, pods: int) -> tuple[list[EngineDouble], list[RunningRouter]]:
    engines = [await stack.enter_async_context(EngineDouble(MANUAL)) for _ in range(pods)]
    sidecars = []
    for number, engine in enumerate(engines):
        sidecars.append(await start_sidecar(engine.url, pod=f"pod-{number}"))
        stack.push_async_callback(sidecars[-1].stop)
    return engines, sidecars


def urls(sidecars: list[RunningRouter]) -> list[str]:
    return [f"http://127.0.0.1:{sidecar.port}" for sidecar in sidecars]


async def test_a_gateway_that_starts_knows_what_the_one_before_it_left_running(stack: AsyncExitStack) -> None:
    """Nothing is written down and nothing handed over: the first report of each pod has all of it."""
    engines, sidecars = await begin(stack, 2)
    async with crowd(sidecars[0].port, 4) as direct:  # requests that no gateway has sent
        for client in direct:
            await client.send(post(chat(stream=True)))
        await engines[0].until(lambda: engines[0].waiting + engines[0].running == 4)

        door = await start_gateway(*urls(sidecars))
        stack.push_async_callback(door.stop)
        pods = door.state.pools["default/pool"].pods
        busy = pods[f"127.0.0.1:{sidecars[0].port}"]
        await until(lambda: busy.load_requests == 4)
        async with crowd(door.port, 4) as clients:
            for client in clients:
                await client.send(post(chat(stream=True)))
            await engines[1].until(lambda: engines[1].waiting + engines[1].running == 4)

    await until(lambda: not any(sidecar.live() for sidecar in sidecars))


async def test_a_gateway_that_dies_leaves_nothing_in_any_ledger(stack: AsyncExitStack) -> None:
    engines, sidecars = await begin(stack, 2)
    door = await start_gateway(*urls(sidecars))
    async with crowd(door.port, 6) as clients:
        for client in clients:
            await client.send(post(chat(stream=True)))
        await until(lambda: sum(engine.waiting + engine.running for engine in engines) == 6)
        await door.stop()

        await until(lambda: not any(sidecar.live() for sidecar in sidecars))
        await until(lambda: not any(engine.running + engine.waiting for engine in engines))

    next_door = await start_gateway(*urls(sidecars))
    stack.push_async_callback(next_door.stop)
    assert all(pod.load_requests == 0 for pod in next_door.state.pools["default/pool"].pods.values())


async def test_a_request_that_another_gateway_has_running_survives_the_restart_of_this_one(
    stack: AsyncExitStack,
) -> None:
    engines, sidecars = await begin(stack, 1)
    (engine,), (sidecar,) = engines, sidecars
    one, other = await start_gateway(*urls(sidecars)), await start_gateway(*urls(sidecars))
    stack.push_async_callback(other.stop)
    async with RawClient(other.port) as client:
        await client.send(post(chat(stream=True)))
        await engine.until(lambda: engine.waiting == 1)
        await engine.step(2)
        await one.stop()
        again = await start_gateway(*urls(sidecars))
        stack.push_async_callback(again.stop)
        (pod,) = again.state.pools["default/pool"].pods.values()
        assert pod.load_requests == 1

        await engine.step(4)
        answer = await client.answer()
    assert answer.body.endswith(b"data: [DONE]\n\n")
    await until(lambda: sidecar.live() == 0 and pod.load_requests == 0)


async def test_a_sidecar_that_restarts_at_its_address_begins_at_zero_for_everybody(stack: AsyncExitStack) -> None:
    """Its ledger is gone, and so are its requests: the engine saw their connections close."""
    engine = await stack.enter_async_context(EngineDouble(MANUAL))
    first = await start_sidecar(engine.url)
    door: Any = await start_gateway(f"http://127.0.0.1:{first.port}")
    stack.push_async_callback(door.stop)
    pool = door.state.pools["default/pool"]
    (pod,) = pool.pods.values()
    async with RawClient(first.port) as client:
        await client.send(post(chat(stream=True)))
        await until(lambda: pod.load_requests == 1)
        await first.stop()
        await until(lambda: engine.running + engine.waiting == 0)

    second = await start_sidecar(engine.url, pod="pod-2", address=("127.0.0.1", first.port))
    stack.push_async_callback(second.stop)
    await until(lambda: pod.report.pod == "pod-2" and pod.state(pool.now()).value == "ready")
    assert (pod.load_requests, pod.load_tokens) == (0, 0)
