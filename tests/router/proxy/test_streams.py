"""Streams pass at once, untouched, and no faster than their reader."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import SidecarSettings

_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
_DONE = b"data: [DONE]\n\n"


def _event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


@pytest.fixture(params=["gateway", "sidecar"])
async def start(request: pytest.FixtureRequest, gateway: Any, sidecar: Any) -> Any:
    return gateway if request.param == "gateway" else sidecar


async def test_each_event_is_passed_on_before_the_next_one_comes(start: Any) -> None:
    seen_by_client = asyncio.Event()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        for number in range(5):
            await seen.chunk(_event(str(number)))
            async with asyncio.timeout(20):
                await seen_by_client.wait()
            seen_by_client.clear()
        await seen.chunk(_DONE)
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat(stream=True)))
            await client.head()
            for number in range(5):
                assert await client.chunk() == _event(str(number))
                seen_by_client.set()
            assert [await client.chunk(), await client.chunk()] == [_DONE, b""]


async def _asked(seen: Seen) -> None:
    """As vLLM: usage when it was asked for, split in the middle of the event."""
    await seen.begin_stream()
    await seen.chunk(_event("a") + _event("b"))
    if json.loads(seen.body).get("stream_options", {}).get("include_usage"):
        await seen.chunk(_USAGE[:30])
        await asyncio.sleep(0.01)
        await seen.chunk(_USAGE[30:])
    await seen.chunk(_DONE)
    await seen.chunk(b"")


async def test_the_sidecar_asks_for_usage_reads_it_and_takes_it_out(sidecar: Any) -> None:
    async with ScriptedEngine(_asked) as engine:
        router = await sidecar(engine.url)
        body = chat(stream=True)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(body))

        assert answer.body == _event("a") + _event("b") + _DONE
        assert engine.requests[0].body == body.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)
        sums = router.state.ledger.sums()
        assert (sums.prompt_tokens_total, sums.output_tokens_total, sums.running) == (9, 2, 0)


async def test_usage_that_the_client_asked_for_stays(sidecar: Any) -> None:
    async with ScriptedEngine(_asked) as engine:
        router = await sidecar(engine.url)
        body = chat(stream=True, stream_options={"include_usage": True})
        async with RawClient(router.port) as client:
            answer = await client.ask(post(body))

        assert answer.body == _event("a") + _event("b") + _USAGE + _DONE
        assert engine.requests[0].body == body
        assert router.state.ledger.sums().prompt_tokens_total == 9


async def test_without_asking_tokens_are_counted_from_the_stream(sidecar: Any) -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(role)
        for number in range(7):
            await seen.chunk(_event(str(number)))
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        router = await sidecar(engine.url, settings=SidecarSettings(pool="p", ask_usage=False))
        body = chat(stream=True)
        async with RawClient(router.port) as client:
            await client.ask(post(body))

        assert engine.requests[0].body == body
        assert router.state.ledger.sums().output_tokens_total == 7


@pytest.mark.parametrize("path", [b"/v1/responses", b"/v1/messages"])
async def test_apis_that_always_tell_usage_are_not_asked(sidecar: Any, path: bytes) -> None:
    async with ScriptedEngine(_asked) as engine:
        router = await sidecar(engine.url)
        body = chat(stream=True)
        async with RawClient(router.port) as client:
            await client.ask(post(body, path))

        assert engine.requests[0].body == body


async def test_the_usage_of_a_whole_answer_is_booked(start: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.ask(post(chat()))

        ledgers = (
            [router.state.ledger]
            if hasattr(router.state, "ledger")
            else [pod.ledger for pool in router.state.pools.values() for pod in pool.pods.values()]
        )
        sums = ledgers[0].sums()
        assert (sums.prompt_tokens_total, sums.output_tokens_total) == (7, 3)


async def test_a_slow_reader_slows_the_engine_down_and_gets_every_byte(start: Any) -> None:
    block = b"data: " + b"x" * 65_000 + b"\n\n"
    count = 400
    sent = 0

    async def script(seen: Seen) -> None:
        nonlocal sent
        await seen.begin_stream()
        for _ in range(count):
            await seen.chunk(block)
            sent += 1
        await seen.chunk(b"data: [DONE]\n\n")
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            client.reader._limit = 1000
            await client.send(post(chat(stream=True)))
            await engine.arrived.get()
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.3)
            # The sockets' buffers hold some; the router itself must not hold the rest.
            assert sent < count
            (connection,) = router.server.connections
            assert connection.transport.get_write_buffer_size() < 2_000_000

            client.reader._limit = 1 << 27
            answer = await client.answer()
            again = await client.ask(post(chat()))

    assert answer.body == block * count + b"data: [DONE]\n\n"
    assert again.status == 200


async def test_a_reader_that_never_comes_back_is_cut(start: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        while True:
            await seen.chunk(b"data: " + b"x" * 65_000 + b"\n\n")

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url, stall_seconds=0.3)
        async with RawClient(router.port) as client:
            client.reader._limit = 1000
            await client.send(post(chat(stream=True)))
            seen = await engine.arrived.get()
            async with asyncio.timeout(20):
                await seen.closed.wait()
            await until(lambda: not router.leftovers())


async def test_an_answer_that_comes_before_the_whole_request_was_sent(sidecar: Any) -> None:
    """The engine refuses by the head alone and never reads the body: that connection is of no more use."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0")
                body = b'{"object":"list","data":[{"id":"tiny"}]}'
                status = b"200 OK" if size < 10_000 else b"400 Bad Request"
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                if size >= 10_000:
                    return
                await reader.readexactly(size)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        router = await sidecar(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with RawClient(router.port) as client:
            refused = await client.ask(post(chat(filler="x" * 20_000_000)))
            after = await client.ask(post(chat()))
        await router.stop()
        for writer in connections:
            writer.transport.abort()

    assert (refused.status, after.status) == (400, 200)


async def test_a_connection_whose_reader_was_slow_is_read_again_for_the_next_answer(start: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(b'"' + b"x" * 200_000 + b'"')

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            client.reader._limit = 1000
            await client.send(post(chat()) * 60)
            before = -1
            while before != len(engine.requests):
                before = len(engine.requests)
                await asyncio.sleep(0.2)
            assert before < 60
            client.reader._limit = 1 << 27
            bodies = [len((await client.answer()).body) for _ in range(60)]

    assert bodies == [200_002] * 60


async def test_idle_streams_are_held_and_let_go(start: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(_event("x"))
        await asyncio.Event().wait()

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        clients = [RawClient(router.port) for _ in range(200)]
        for client in clients:
            await client.__aenter__()
            await client.send(post(chat(stream=True)))
        for client in clients:
            await client.until(b'"x"')
        assert router.live() == 200
        for client in clients:
            client.leave()
        await router.settled()
