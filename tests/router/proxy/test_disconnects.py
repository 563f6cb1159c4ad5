"""A client that leaves, at whichever moment, takes its request out of the engine and leaves nothing behind."""

import asyncio
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen

_EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


async def _never(seen: Seen) -> None:
    await asyncio.Event().wait()


async def _head_only(seen: Seen) -> None:
    await seen.begin_stream()
    await asyncio.Event().wait()


async def _endless(seen: Seen) -> None:
    await seen.begin_stream()
    while True:
        await seen.chunk(_EVENT)
        await asyncio.sleep(0.002)


async def _half_answer(seen: Seen) -> None:
    await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    await asyncio.Event().wait()


@pytest.fixture(params=["gateway", "sidecar"])
async def start(request: pytest.FixtureRequest, gateway: Any, sidecar: Any) -> Any:
    return gateway if request.param == "gateway" else sidecar


@pytest.mark.parametrize(
    ("script", "stream", "begun", "why"),
    [
        (_never, False, b"", "no stream, nothing answered yet"),
        (_never, True, b"", "a stream, nothing answered yet"),
        (_head_only, True, b"", "before the first token"),
        (_endless, True, _EVENT, "between two tokens"),
        (_half_answer, False, b"{", "in the middle of an answer"),
    ],
)
@pytest.mark.parametrize("politely", [True, False])
async def test_the_engine_hears_of_it_at_once(
    start: Any, script: Any, stream: bool, begun: bytes, why: str, politely: bool
) -> None:
    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat(stream=stream)))
            seen = await engine.arrived.get()
            if begun:
                await client.until(begun)
            else:
                await until(lambda: router.live() == 1)
            if politely:
                client.writer.close()
            else:
                client.leave()

            async with asyncio.timeout(20):
                await seen.closed.wait()
        await router.settled()
        assert len(engine.requests) == 1, why


async def test_while_it_is_held_in_the_queue(gateway: Any) -> None:
    router = await gateway(wakes=True)
    pool = router.state.pools["default/pool"]
    async with RawClient(router.port) as client:
        await client.send(post(chat()))
        await until(lambda: pool.queue.held == 1)

    await until(lambda: pool.queue.held == 0)
    await router.settled()


async def test_with_pipelined_requests_behind_it(start: Any) -> None:
    async with ScriptedEngine(_never) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat()) * 3)
            seen = await engine.arrived.get()

        await seen.closed.wait()
        await router.settled()
        assert len(engine.requests) == 1


async def test_many_at_once_leave_the_ledger_at_zero(start: Any) -> None:
    async with ScriptedEngine(_endless) as engine:
        router = await start(engine.url)
        clients = [RawClient(router.port) for _ in range(50)]
        for client in clients:
            await client.__aenter__()
            await client.send(post(chat(stream=True)))
        await until(lambda: len(engine.requests) == 50 and router.live() == 50)
        for client in clients:
            client.leave()

        await router.settled()
        await until(lambda: sum(seen.closed.is_set() for seen in engine.requests) == 50)


async def test_a_new_request_does_not_meet_the_answer_to_one_that_was_given_up(start: Any) -> None:
    release = asyncio.Event()

    async def script(seen: Seen) -> None:
        if b'"late": true' in seen.body:
            await release.wait()
            await seen.answer(b'{"answer":"late"}')
        else:
            await seen.answer(b'{"answer":"mine"}')

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.ask(post(chat()))
            await client.send(post(chat(late=True)))
            await until(lambda: len(engine.requests) == 2)
        release.set()
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat()))).body == b'{"answer":"mine"}'
