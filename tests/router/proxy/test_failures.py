"""Engines that fail: elsewhere before the first byte, and an honest end after it."""

import asyncio
import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import JSON_ANSWER, Script, ScriptedEngine, Seen, answer_json

_EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


async def _reset(seen: Seen) -> None:
    seen.reset()


async def _unavailable(seen: Seen) -> None:
    await seen.answer(b'{"error":"overloaded"}', b"503 Service Unavailable")


async def _bad_gateway(seen: Seen) -> None:
    await seen.answer(b"", b"502 Bad Gateway")


async def _silent(seen: Seen) -> None:
    await asyncio.Event().wait()


async def _dies_before_the_first_event(seen: Seen) -> None:
    await seen.begin_stream()
    seen.reset()


async def _no_http(seen: Seen) -> None:
    await seen.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


def _then(first: Script, second: Script) -> Script:
    """The first request of all engines gets `first`, the others `second`."""
    calls = iter([first])

    async def script(seen: Seen) -> None:
        await next(calls, second)(seen)

    return script


@pytest.fixture(params=["gateway", "sidecar"])
async def start(request: pytest.FixtureRequest, gateway: Any, sidecar: Any) -> Any:
    return gateway if request.param == "gateway" else sidecar


@pytest.mark.parametrize(
    "fault", [_reset, _unavailable, _bad_gateway, _silent, _dies_before_the_first_event, _no_http]
)
async def test_before_the_first_byte_another_pod_answers(gateway: Any, fault: Script) -> None:
    script = _then(fault, answer_json)
    async with ScriptedEngine(script) as one, ScriptedEngine(script) as other:
        router = await gateway(one.url, other.url, first_byte_seconds=0.2)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))

        assert (answer.status, answer.body) == (200, JSON_ANSWER)
        assert len(one.requests) == len(other.requests) == 1
        assert one.requests[0].body == other.requests[0].body


async def test_a_pod_that_is_gone_costs_no_request(gateway: Any) -> None:
    async with ScriptedEngine() as stays:
        async with ScriptedEngine() as goes:
            router = await gateway(stays.url, goes.url)
        async with RawClient(router.port) as client:
            statuses = [(await client.ask(post(chat()))).status for _ in range(10)]

    assert statuses == [200] * 10


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [(_reset, 502, "upstream_error"), (_silent, 504, "upstream_timeout"), (_no_http, 502, "upstream_error")],
)
async def test_when_no_pod_is_left_the_error_has_the_shape_of_the_api(
    start: Any, fault: Script, status: int, code: str
) -> None:
    async with ScriptedEngine(fault) as engine:
        router = await start(engine.url, first_byte_seconds=0.2)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))
            assert (answer.status, answer.json()["error"]["code"]) == (status, code)
            engine.script = answer_json
            await until(lambda: router.live() == 0)


async def test_when_every_pod_is_busy_the_engines_own_answer_is_passed_on(gateway: Any) -> None:
    async with ScriptedEngine(_unavailable) as one, ScriptedEngine(_unavailable) as other:
        router = await gateway(one.url, other.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))

        assert (answer.status, answer.body) == (503, b'{"error":"overloaded"}')
        assert len(one.requests) == len(other.requests) == 1


@pytest.mark.parametrize(("retries", "tried"), [(0, 1), (1, 2), (2, 3)])
async def test_retries_are_bounded_by_the_pools_setting(gateway: Any, retries: int, tried: int) -> None:
    engines = [ScriptedEngine(_unavailable) for _ in range(4)]
    for engine in engines:
        await engine.__aenter__()
    router = await gateway(*(engine.url for engine in engines), retries=retries)
    async with RawClient(router.port) as client:
        assert (await client.ask(post(chat()))).status == 503

    assert sum(len(engine.requests) for engine in engines) == tried
    for engine in engines:
        await engine.__aexit__(None, None, None)


async def test_a_client_error_is_neither_retried_nor_held_against_the_pod(gateway: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(b"{}", b"400 Bad Request")

    async with ScriptedEngine(script) as one, ScriptedEngine(script) as other:
        router = await gateway(one.url, other.url)
        async with RawClient(router.port) as client:
            statuses = [(await client.ask(post(chat()))).status for _ in range(20)]

        assert statuses == [400] * 20
        assert len(one.requests) + len(other.requests) == 20
        assert one.requests
        assert other.requests


async def test_a_body_too_large_to_keep_is_not_sent_twice(gateway: Any) -> None:
    async with ScriptedEngine(_reset) as one, ScriptedEngine(_reset) as other:
        router = await gateway(one.url, other.url, replay_bytes=1000)
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat(filler="x" * 2000)))).status == 502

        assert len(one.requests) + len(other.requests) == 1


async def test_replay_memory_is_bounded_in_sum(gateway: Any) -> None:
    async with ScriptedEngine(_silent) as engine:
        router = await gateway(engine.url, replay_bytes=5000, replay_total_bytes=6000)
        clients = [RawClient(router.port) for _ in range(3)]
        for client in clients:
            await client.__aenter__()
            await client.send(post(chat(filler="x" * 2500)))
        await until(lambda: len(engine.requests) == 3)

        held = router.services.replay.held_bytes
        assert 5000 < held <= 6000
        for client in clients:
            client.leave()
        await router.settled()


async def test_an_idle_connection_that_the_engine_closed_costs_no_request(start: Any) -> None:
    """The engine closes a kept-alive connection just as the next request arrives on it."""

    async def script(seen: Seen) -> None:
        if seen.connection == engine.requests[0].connection and len(engine.requests) > 1:
            seen.reset()
        else:
            await seen.answer()

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            statuses = [(await client.ask(post(chat()))).status for _ in range(3)]

        assert statuses == [200, 200, 200]
        assert len(engine.requests) == 4


async def test_a_reset_on_a_fresh_connection_is_not_tried_again_on_the_same_engine(sidecar: Any) -> None:
    async with ScriptedEngine(_reset) as engine:
        router = await sidecar(engine.url)
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat()))).status == 502

        assert len(engine.requests) == 1


async def test_an_engine_that_does_not_listen_is_503(sidecar: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url)
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat()))

    assert answer.status == 503
    assert answer.headers[b"retry-after"]
    assert "error" in answer.json()


_CUTS = {
    b"/v1/chat/completions": ("error", "message"),
    b"/v1/completions": ("error", "message"),
    b"/v1/responses": ("type", "message"),
    b"/v1/messages": ("type", "error"),
}


@pytest.mark.parametrize("path", list(_CUTS))
@pytest.mark.parametrize("mid_event", [False, True])
@pytest.mark.parametrize("fault", ["reset", "silence"])
async def test_after_the_first_event_the_stream_ends_with_an_error_event(
    start: Any, path: bytes, mid_event: bool, fault: str
) -> None:
    async def script(seen: Seen) -> None:
        if len(engine.requests) > 1:
            await seen.answer()
            return
        await seen.begin_stream()
        await seen.chunk(_EVENT)
        if mid_event:
            await seen.chunk(b"data: {half")
        if fault == "silence":
            await asyncio.Event().wait()
        seen.reset()

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url, chunk_seconds=0.2)
        async with RawClient(router.port) as client:
            # The next request may be on its way already when the stream ends; it must not be lost with it.
            await client.send(post(chat(stream=True), path) + post(chat()))
            answer, following = await client.answer(), await client.answer()

    assert following.status == 200
    assert answer.body.startswith(_EVENT)
    assert b"[DONE]" not in answer.body
    last = answer.body.rstrip(b"\n").split(b"\n\n")[-1]
    data = json.loads(last[last.index(b"data: ") + 6 :])
    assert all(name in data or name in data["error"] for name in _CUTS[path])
    assert len(engine.requests) == 2


async def test_half_an_answer_is_not_passed_off_as_a_whole_one(start: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        seen.reset()

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            status, headers = await client.head()
            rest = await client.rest()

    assert (status, headers[b"content-length"]) == (200, b"100")
    assert rest == b"{"


async def test_half_a_chunked_answer_has_no_last_chunk(start: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
        )
        seen.reset()

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await client.head()
            assert await client.rest() == b"1\r\n{\r\n"


@pytest.mark.parametrize(("end", "whole"), [(b"data: [DONE]\n\n", True), (b"", False)])
async def test_a_stream_that_ends_with_its_connection_is_whole_only_with_its_last_event(
    start: Any, end: bytes, whole: bool
) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + _EVENT + end
        )
        seen.writer.close()
        await asyncio.Event().wait()

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat(stream=True)))

    assert answer.body.startswith(_EVENT + end)
    assert (b'"error"' in answer.body) is not whole


async def test_an_answer_that_ends_with_its_connection_passes(start: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + JSON_ANSWER)
        seen.writer.close()
        await asyncio.Event().wait()

    async with ScriptedEngine(script) as engine:
        router = await start(engine.url)
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat()))).body == JSON_ANSWER
            assert (await client.ask(post(chat()))).body == JSON_ANSWER


async def test_an_engine_that_hangs_does_not_hold_up_the_others(gateway: Any) -> None:
    async with ScriptedEngine(_silent) as hung, ScriptedEngine() as works:
        router = await gateway(hung.url, works.url)
        waiting = [RawClient(router.port) for _ in range(4)]
        for client in waiting:
            await client.__aenter__()
            await client.send(post(chat()))
        answered = [asyncio.create_task(client.answer()) for client in waiting]
        done, pending = await asyncio.wait(answered, timeout=0.5)

        assert done
        assert len(pending) == len(hung.requests)
        for task in pending:
            task.cancel()
        for client in waiting:
            client.leave()


async def test_a_request_that_came_from_a_gateway_is_not_sent_round(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat(), extra=b"x-tidepool-gateway: 1\r\n"))

        assert (answer.status, answer.json()["error"]["code"]) == (508, "loop_detected")
        assert not engine.requests


async def test_two_gateways_that_lead_to_each_other_do_not_loop(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        first = await gateway(engine.url)
        second = await gateway(f"http://127.0.0.1:{first.port}")
        async with RawClient(second.port) as client:
            answer = await client.ask(post(chat()))

        assert (answer.status, answer.json()["error"]["code"]) == (508, "loop_detected")
        assert not engine.requests


@pytest.mark.interpreted
async def test_a_defect_while_waiting_ends_the_request_and_is_logged(
    gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    router = await gateway(wakes=True)
    router.state.pools["default/pool"].wait_for_pod = broken
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat()))

    assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "a defect" in caplog.text
    assert "a defect" not in answer.body.decode()
