"""What a client may send, and what it gets for what it may not."""

import asyncio
import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import JSON_ANSWER, ScriptedEngine, Seen
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.upstream import ConnectionPools


@pytest.fixture
async def engine() -> Any:
    async with ScriptedEngine() as engine:
        yield engine


@pytest.fixture(params=["gateway", "sidecar"])
async def router(request: pytest.FixtureRequest, engine: ScriptedEngine, gateway: Any, sidecar: Any) -> Any:
    """Both roles must hold what is tested here."""
    start = gateway if request.param == "gateway" else sidecar
    return await start(engine.url, header_seconds=0.25, body_seconds=0.25)


async def test_body_and_headers_arrive_as_they_were_sent(router: Any, engine: ScriptedEngine) -> None:
    body = b' {"model" :"tiny", "x":"\xc3\xa9\\u00e9", "tool_calls":[{"a":null}], "return_token_ids":true}\n'
    async with RawClient(router.port) as client:
        answer = await client.ask(
            post(
                body,
                b"/v1/chat/completions?a=b",
                b"Authorization: Bearer k\r\nCookie: \xe9=1\r\nConnection: X-Hop\r\nX-Hop: 1\r\n",
            )
        )

    assert (answer.status, answer.body) == (200, JSON_ANSWER)
    seen = engine.requests[0]
    assert seen.line == b"POST /v1/chat/completions?a=b HTTP/1.1"
    assert seen.body == body
    assert seen.headers[b"authorization"] == b"Bearer k"
    assert seen.headers[b"cookie"] == b"\xe9=1"
    assert seen.headers[b"host"] == b"test"
    assert not {b"connection", b"x-hop", b"transfer-encoding"} & seen.headers.keys()


async def test_answer_headers_pass_but_for_those_of_the_hop(router: Any, engine: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(
            b"\x1f\x8b\x08gzip",
            extra=b"Content-Encoding: gzip\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
            b"Keep-Alive: timeout=5\r\nX-Kept: 1\r\n",
        )

    engine.script = script
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat()))

    assert answer.body == b"\x1f\x8b\x08gzip"
    assert answer.headers[b"content-encoding"] == b"gzip"
    assert answer.headers[b"x-kept"] == b"1"
    assert not {b"connection", b"keep-alive", b"x-hop"} & answer.headers.keys()


async def test_a_chunked_body_arrives_with_its_length(router: Any, engine: ScriptedEngine) -> None:
    body = chat()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]))
    async with RawClient(router.port) as client:
        answer = await client.ask(head + chunks + b"0\r\n\r\n")

    assert answer.status == 200
    assert engine.requests[0].body == body
    assert engine.requests[0].headers[b"content-length"] == b"%d" % len(body)


async def test_a_body_of_eight_megabytes_passes_untouched(router: Any, engine: ScriptedEngine) -> None:
    body = chat(image="data:" + "Q" * (8 << 20))
    async with RawClient(router.port) as client:
        answer = await client.ask(post(body))

    assert answer.status == 200
    assert engine.requests[0].body == body


async def test_pipelined_requests_are_answered_in_their_order(router: Any, engine: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(seen.body)

    engine.script = script
    wire = [post(chat(number=number)) for number in range(5)]
    async with RawClient(router.port) as client:
        await client.send(b"".join(wire[:3]) + b"GET /nowhere HTTP/1.1\r\n\r\n" + b"".join(wire[3:]))
        answers = [await client.answer() for _ in range(6)]

    assert [answer.status for answer in answers] == [200, 200, 200, 404, 200, 200]
    assert [json.loads(answer.body).get("number") for answer in answers] == [0, 1, 2, None, 3, 4]


async def test_a_good_request_before_a_bad_one_gets_its_answer(router: Any) -> None:
    async with RawClient(router.port) as client:
        await client.send(post(chat()) + b"garbage\r\n\r\n")
        good = await client.answer()
        bad = await client.answer()
        rest = await client.rest()

    assert (good.status, bad.status, rest) == (200, 400, b"")


async def test_expect_100_continue_is_answered_before_the_body(router: Any) -> None:
    whole = post(chat(), extra=b"Expect: 100-continue\r\n")
    head, body = whole.split(b"\r\n\r\n", 1)
    async with RawClient(router.port) as client:
        await client.send(head + b"\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = await client.ask(body)

    assert answer.status == 200


async def test_expect_100_continue_behind_another_request(router: Any) -> None:
    head, body = post(chat(), extra=b"Expect: 100-continue\r\n").split(b"\r\n\r\n", 1)
    async with RawClient(router.port) as client:
        await client.send(post(chat()) + head + b"\r\n\r\n")
        assert (await client.answer()).status == 200
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = await client.ask(body)

    assert answer.status == 200


async def test_http_1_0_closes_unless_asked_to_stay(router: Any) -> None:
    body = chat()
    head = b"POST /v1/chat/completions HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n%b"
    async with RawClient(router.port) as client:
        staying = await client.ask(head % (b"Connection: keep-alive\r\n", len(body), body))
        assert staying.headers[b"connection"] == b"keep-alive"
        closing = await client.ask(head % (b"", len(body), body))
        assert closing.headers[b"connection"] == b"close"
        assert await client.rest() == b""


async def test_http_1_0_gets_a_stream_without_chunks(router: Any, engine: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b"data: 1\n\n")
        await seen.chunk(b"")

    engine.script = script
    body = chat(stream=True)
    async with RawClient(router.port) as client:
        answer = await client.ask(
            b"POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    assert b"transfer-encoding" not in answer.headers
    assert answer.body == b"data: 1\n\n"


async def test_a_client_that_asks_to_close_is_closed(router: Any) -> None:
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat(), extra=b"Connection: close\r\n"))
        rest = await client.rest()

    assert answer.headers[b"connection"] == b"close"
    assert rest == b""


async def test_head_is_answered_without_a_body(router: Any) -> None:
    async with RawClient(router.port) as client:
        for path in (b"/v1/models", b"/health", b"/nowhere"):
            await client.send(b"HEAD %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            await client.answer(head_only=True)
        assert (await client.ask(post(chat()))).status == 200


@pytest.mark.parametrize(
    ("wire", "status", "code"),
    [
        (b"GARBAGE\r\n\r\n", 400, "malformed_request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000, 431, "headers_too_large"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 33554433\r\n\r\n", 413, "body_too_large"),
        (b"GET /v1/models HTTP/1.1\r\nA: b", 408, "request_timeout"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf", 408, "request_timeout"),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(
    router: Any, wire: bytes, status: int, code: str
) -> None:
    async with RawClient(router.port) as client:
        answer = await client.ask(wire)
        rest = await client.rest()

    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers[b"connection"] == b"close"
    assert rest == b""


async def test_a_trickled_head_does_not_win_time(router: Any) -> None:
    async with RawClient(router.port) as client:

        async def trickle() -> None:
            while not client.writer.transport.is_closing():
                client.writer.write(b"A: b\r\n")
                await asyncio.sleep(0.02)

        client.writer.write(b"GET /v1/models HTTP/1.1\r\n")
        trickling = asyncio.create_task(trickle())
        assert (await client.head())[0] == 408
        trickling.cancel()


@pytest.mark.parametrize(
    ("wire", "status", "code"),
    [
        (post(b"{oops"), 400, "invalid_json"),
        (post(b""), 400, "invalid_json"),
        (post(b"[]"), 400, "invalid_json"),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404, "unknown_path"),
        (b"GET /v1/completions HTTP/1.1\r\n\r\n", 405, "method_not_allowed"),
        (post(b"{}", b"/v1/load_lora_adapter"), 403, "path_closed"),
        (post(b"", b"/sleep"), 403, "path_closed"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 403, "path_closed"),
    ],
)
async def test_what_is_not_served_is_refused_and_the_connection_kept(
    router: Any, engine: ScriptedEngine, wire: bytes, status: int, code: str
) -> None:
    async with RawClient(router.port) as client:
        refused = await client.ask(wire)
        after = await client.ask(post(chat()))

    assert (refused.status, refused.json()["error"]["code"]) == (status, code)
    assert after.status == 200
    assert len(engine.requests) == 1


async def test_the_request_id_is_passed_on_or_made(router: Any, engine: ScriptedEngine) -> None:
    async with RawClient(router.port) as client:
        given = await client.ask(post(chat(), extra=b"X-Request-Id: mine\r\n"))
        made = [await client.ask(post(chat())) for _ in range(2)]

    assert given.headers[b"x-request-id"] == engine.requests[0].headers[b"x-request-id"] == b"mine"
    ids = [answer.headers[b"x-request-id"] for answer in made]
    assert ids == [seen.headers[b"x-request-id"] for seen in engine.requests[1:]]
    assert len(set(ids)) == 2


async def test_an_error_of_the_engine_passes_as_it_is(router: Any, engine: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(b'{"error":{"message":"too long"}}', b"400 Bad Request")

    engine.script = script
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat()))

    assert (answer.status, answer.body) == (400, b'{"error":{"message":"too long"}}')


async def test_upstream_connections_are_used_again(router: Any, engine: ScriptedEngine) -> None:
    async with RawClient(router.port) as client:
        for _ in range(5):
            await client.ask(post(chat()))

    assert len({seen.connection for seen in engine.requests}) == 1


async def test_more_connections_than_the_limit_are_closed(engine: ScriptedEngine, gateway: Any) -> None:
    router = await gateway(engine.url, max_connections=2)
    async with RawClient(router.port) as one, RawClient(router.port) as two:
        await until(lambda: len(router.server.connections) == 2)
        async with RawClient(router.port) as three:
            assert await three.rest() == b""
        assert [(await client.ask(post(chat()))).status for client in (one, two)] == [200, 200]


async def test_more_pipelined_requests_than_the_limit_close_the_connection(
    engine: ScriptedEngine, gateway: Any
) -> None:
    router = await gateway(engine.url, max_pipelined=5)
    async with RawClient(router.port) as client:
        await client.send(post(chat()) * 7)
        assert await client.rest() == b""

    assert not engine.requests


async def test_an_idle_connection_is_closed_without_a_word(engine: ScriptedEngine, gateway: Any) -> None:
    router = await gateway(engine.url, idle_seconds=0.1)
    async with RawClient(router.port) as client:
        assert (await client.ask(post(chat()))).status == 200
        assert await client.rest() == b""


async def test_a_refusal_carries_the_clients_request_id(router: Any) -> None:
    async with RawClient(router.port) as client:
        answer = await client.ask(post(b"{", extra=b"X-Request-Id: mine\r\n"))

    assert answer.headers[b"x-request-id"] == b"mine"


async def test_a_request_id_of_the_engine_does_not_stand_beside_the_routers(
    router: Any, engine: ScriptedEngine
) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(extra=b"X-Request-Id: engine\r\n")

    engine.script = script
    async with RawClient(router.port) as client:
        await client.send(post(chat(), extra=b"X-Request-Id: mine\r\n"))
        head = await client.until(b"\r\n\r\n")

    assert head.lower().count(b"x-request-id: ") == head.count(b"x-request-id: mine") == 1


async def test_a_pool_is_not_forgotten_between_the_look_for_a_connection_and_its_making() -> None:
    """Else the connection would be in a pool that nobody knows: not used again, and not closed when it is old."""
    pools = ConnectionPools(Limits())
    pool = pools.at("127.0.0.1", 1)
    assert pool.take() is None

    pools._trim()
    assert pools.at("127.0.0.1", 1) is pool
    pools._trim()
    assert pools.at("127.0.0.1", 1) is not pool
    await pools.close()
