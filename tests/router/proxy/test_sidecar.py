"""What only the sidecar does: aliases, load on each answer, models, refusals while the engine is away, drain."""

import asyncio
import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import SidecarSettings

_SETTINGS = SidecarSettings(pool="pool", model="tiny", aliases=("small", "gpt"))


async def test_an_alias_becomes_the_engines_model_and_nothing_else_changes(sidecar: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url, settings=_SETTINGS)
        body = b'{ "messages":[{"model":"small"}] , "model" : "small" }'
        async with RawClient(router.port) as client:
            await client.ask(post(body))

        assert engine.requests[0].body == body.replace(b'"model" : "small"', b'"model" : "tiny"')


async def test_models_are_the_engines_and_the_aliases(sidecar: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url, settings=_SETTINGS)
        async with RawClient(router.port) as client:
            answer = await client.ask(b"GET /v1/models HTTP/1.1\r\n\r\n")

    assert [card["id"] for card in answer.json()["data"]] == ["tiny", "small", "gpt"]


async def test_each_answer_carries_pod_and_load(sidecar: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))

    assert answer.headers[b"x-tidepool-pod"] == b"pod-1"
    assert answer.headers[b"x-tidepool-load"].startswith(b"test-pod-1;")


async def test_the_gateway_takes_the_load_off_and_keeps_the_pod(sidecar: Any, gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        behind = await sidecar(engine.url)
        front = await gateway(f"http://127.0.0.1:{behind.port}")
        async with RawClient(front.port) as client:
            answer = await client.ask(post(chat("alias"), extra=b"x-tidepool-priority: batch\r\n"))

        assert answer.headers[b"x-tidepool-pod"] == b"pod-1"
        assert b"x-tidepool-load" not in answer.headers
        assert answer.headers[b"x-tidepool-queue-ms"] == b"0"
        assert json.loads(engine.requests[0].body)["model"] == "tiny"
        assert engine.requests[0].headers[b"x-tidepool-priority"] == b"batch"
        assert b"x-tidepool-gateway" not in engine.requests[0].headers


async def test_load_reports_are_given_once_and_as_a_stream(sidecar: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url)
        async with RawClient(router.port) as client, RawClient(router.port) as listener:
            once = await client.ask(b"GET /tidepool/load HTTP/1.1\r\n\r\n")
            assert LoadReport.decode(once.body).health is Health.READY

            await listener.send(b"GET /tidepool/load/stream HTTP/1.1\r\n\r\n")
            await listener.head()
            first = LoadReport.decode(await listener.chunk())
            await client.ask(post(chat()))
            while (report := LoadReport.decode(await listener.chunk())).closed_total == first.closed_total:
                pass
            assert report.running == 0


async def test_while_the_engine_is_away_requests_are_refused_and_their_connections_closed(sidecar: Any) -> None:
    router = await sidecar("http://127.0.0.1:1", ready=False)
    for request in (post(chat()), b"GET /health HTTP/1.1\r\n\r\n"):
        async with RawClient(router.port) as client:
            answer = await client.ask(request)
            assert (answer.status, answer.headers[b"connection"]) == (503, b"close")
            assert answer.headers[b"retry-after"]
            assert await client.rest() == b""


async def test_draining_serves_what_comes_and_closes_each_connection(sidecar: Any) -> None:
    release = asyncio.Event()

    async def script(seen: Seen) -> None:
        await release.wait()
        await seen.answer()

    async with ScriptedEngine(script) as engine:
        router = await sidecar(engine.url, linger_seconds=0.05)
        async with RawClient(router.port) as idle, RawClient(router.port) as busy:
            await until(lambda: len(router.server.connections) == 2)
            await busy.send(post(chat()))
            await engine.arrived.get()

            router.server.begin_drain()
            assert await idle.rest() == b""
            async with RawClient(router.port) as late:
                await late.send(post(chat()))
                await engine.arrived.get()
                release.set()
                for client in (busy, late):
                    answer = await client.answer()
                    assert (answer.status, answer.headers[b"connection"]) == (200, b"close")
                    assert await client.rest() == b""


async def test_a_stream_that_ends_in_a_drain_leaves_its_connection_to_the_request_on_its_way(sidecar: Any) -> None:
    """Its head went out before the drain, without a word of closing: the client may send on at any moment."""
    release = asyncio.Event()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        await release.wait()
        await seen.chunk(b"data: [DONE]\n\n")
        await seen.send(b"0\r\n\r\n")

    async with ScriptedEngine(script) as engine:
        router = await sidecar(engine.url, linger_seconds=30.0)
        async with RawClient(router.port) as client:
            await client.send(post(chat(stream=True)))
            assert b"connection" not in (await client.head())[1]
            router.server.begin_drain()
            ending = asyncio.create_task(router.server.wait_idle())
            release.set()
            while await client.chunk():
                pass
            await until(lambda: not router.live())

            assert not ending.done()  # somebody may still come
            await client.send(post(chat(stream=True)))
            status, headers = await client.head()
            assert (status, headers[b"connection"]) == (200, b"close")
            while await client.chunk():
                pass
            assert await client.rest() == b""
            ending.cancel()


@pytest.mark.parametrize(
    "path", [b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/tokenize", b"/v1/rerank"]
)
async def test_every_inference_path_is_in_the_ledger_while_it_lives(sidecar: Any, path: bytes) -> None:
    release = asyncio.Event()

    async def script(seen: Seen) -> None:
        await release.wait()
        await seen.answer()

    async with ScriptedEngine(script) as engine:
        router = await sidecar(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat(), path))
            await engine.arrived.get()
            assert router.live() == 1
            release.set()
            assert (await client.answer()).status == 200
            assert router.live() == 0
