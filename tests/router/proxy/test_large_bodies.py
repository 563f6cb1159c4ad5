"""Bodies that are too large to be kept: they go on while they come, and what goes wrong on the way is told."""

import asyncio
import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.peers import NOBODY, ONE, TWO
from scripted.routers import RunningRouter, StartRouter, until
from scripted.upstreams import JSON_ANSWER, ScriptedEngine, Seen
from tidepool_api.routing import SidecarSettings
from tidepool_router.keys import ApiKey, KeyRing, mint

# Small enough to be tested quickly: the front, and from where on a body is large.
SMALL = {"front_bytes": 3000, "replay_bytes": 200_000}
LARGE = 400_000


def first(model: str = "tiny", size: int = LARGE, **more: Any) -> bytes:
    """The model stands before what is long."""
    body = {"model": model, **more, "messages": [{"role": "user", "content": "x" * size}]}
    return json.dumps(body).encode()


def last(size: int = LARGE) -> bytes:
    """As the clients of OpenAI and Anthropic write it."""
    return json.dumps({"messages": [{"role": "user", "content": "x" * size}], "model": "tiny"}).encode()


class Heads:
    """The heads that an engine has seen, each before its body; `gate` lets the bodies be read."""

    def __init__(self, engine: ScriptedEngine, *, closed: bool = False) -> None:
        self.seen: asyncio.Queue[Seen] = asyncio.Queue()
        self.gate = asyncio.Event()
        if not closed:
            self.gate.set()
        engine.early = self._early

    async def _early(self, seen: Seen) -> None:
        if seen.line.startswith(b"POST"):
            self.seen.put_nowait(seen)
            await self.gate.wait()

    async def next(self) -> Seen:
        async with asyncio.timeout(20):
            return await self.seen.get()


@pytest.fixture(params=["gateway", "sidecar"])
def start(request: pytest.FixtureRequest, gateway: StartRouter, sidecar: StartRouter) -> StartRouter:
    return gateway if request.param == "gateway" else sidecar


def parts(request: bytes, at: int = 50_000) -> tuple[bytes, bytes]:
    """The beginning, which the router reads before it knows the end, and the rest."""
    return request[:at], request[at:]


def chunked(body: bytes, size: int = 20_000, extra: bytes = b"") -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n%bTransfer-Encoding: chunked\r\n\r\n" % extra
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_large_body_goes_on_before_its_end_has_come(start: StartRouter, framing: str) -> None:
    async with ScriptedEngine() as engine:
        heads = Heads(engine)
        router = await start(engine.url, **SMALL)
        body = first()
        request = post(body) if framing == "length" else chunked(body)
        beginning, rest = parts(request)
        async with RawClient(router.port) as client:
            await client.send(beginning)
            seen = await heads.next()
            assert router.services.bodies_bytes < 100_000
            answer = await client.ask(rest)
            again = await client.ask(post(chat()))  # the connection is as good as before

    assert (answer.status, answer.body, again.status) == (200, JSON_ANSWER, 200)
    assert engine.requests[0].body == body
    told = seen.headers.get(b"content-length"), seen.headers.get(b"transfer-encoding")
    assert told == ((b"%d" % len(body), None) if framing == "length" else (None, b"chunked"))


async def test_small_bodies_and_large_ones_take_turns_on_a_connection(start: StartRouter) -> None:
    async with ScriptedEngine() as engine:
        router = await start(engine.url, **SMALL)
        bodies = [chat(), first(), chat(), last(), first(), chat()]
        async with RawClient(router.port) as client:
            sending = asyncio.create_task(client.send(b"".join(post(body) for body in bodies)))
            answers = [await client.answer() for _ in bodies]
            await sending

    assert [answer.status for answer in answers] == [200] * 6
    assert [seen.body for seen in engine.requests] == bodies


@pytest.mark.parametrize(
    ("settings", "extra", "waits", "why"),
    [
        ({}, b"", False, "it serves one model, whatever a body calls it"),
        ({"aliases": ("alias",), "model": "tiny"}, b"", True, "what is called by an alias must be renamed"),
        (
            {"aliases": ("alias",), "model": "tiny"},
            b"x-tidepool-gateway: 1\r\n",
            False,
            "a gateway has renamed it",
        ),
        ({"engine_priority": True}, b"", False, "the priority is seen to as it goes by"),
    ],
)
async def test_a_sidecar_waits_for_the_model_only_where_it_matters(
    sidecar: StartRouter, settings: dict[str, Any], extra: bytes, waits: bool, why: str
) -> None:
    async with ScriptedEngine() as engine:
        heads = Heads(engine)
        router = await sidecar(engine.url, settings=SidecarSettings(pool="pool", **settings), **SMALL)
        beginning, rest = parts(post(last(), extra=extra), 300_000)
        async with RawClient(router.port) as client:
            await client.send(beginning)
            if waits:
                await until(lambda: router.services.spools.held_bytes)
                assert heads.seen.empty(), why
            else:
                await heads.next()
            assert (await client.ask(rest)).status == 200

    assert engine.requests[0].body == last()


@pytest.mark.parametrize("role", ["gateway", "sidecar"])
async def test_an_alias_in_the_front_is_replaced(gateway: StartRouter, sidecar: StartRouter, role: str) -> None:
    settings = SidecarSettings(pool="pool", model="tiny", aliases=("alias",))
    async with ScriptedEngine() as engine:
        router = await (
            gateway(engine.url, **SMALL) if role == "gateway" else sidecar(engine.url, settings=settings, **SMALL)
        )
        async with RawClient(router.port) as client:
            answer = await client.ask(post(first("alias")))

    assert (answer.status, engine.requests[0].body) == (200, first("tiny"))


async def test_a_stream_that_is_asked_for_in_a_large_body_is_not_asked_for_usage(sidecar: StartRouter) -> None:
    """What stands behind the front may ask for it, and then the usage event is the client's."""
    body = first(stream=True)[:-1] + b',"stream_options":{"include_usage":true}}'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' + usage + b"data: [DONE]\n\n")
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        router = await sidecar(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(body))

    assert engine.requests[0].body == body
    assert usage in answer.body


@pytest.mark.parametrize(
    ("asked", "own", "told", "why"),
    [
        (b"", b"", 0, "it names none"),
        (b"x-tidepool-priority: interactive\r\n", b"", -100, "the router's"),
        (b"", b',"priority":-5', 0, "a client does not put itself forward behind the front either"),
        (b"x-tidepool-priority: interactive\r\n", b',"pri\\u006frity" : -500', -100, "nor by another spelling"),
    ],
)
async def test_the_engine_hears_the_routers_priority_wherever_the_body_names_one(
    sidecar: StartRouter, asked: bytes, own: bytes, told: int, why: str
) -> None:
    body = first(tools=[{"function": {"properties": {"priority": {"type": "integer"}}}}])[:-1] + own + b"}"
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url, settings=SidecarSettings(pool="pool", engine_priority=True), **SMALL)
        for request in (post(body, extra=asked), chunked(body, extra=asked)):
            async with RawClient(router.port) as client:
                assert (await client.ask(request)).status == 200

    for seen in engine.requests:
        heard, sent = json.loads(seen.body), json.loads(body)
        assert heard.get("priority", 0) == told, why
        assert heard["tools"] == sent["tools"]
        assert heard["messages"] == sent["messages"]


async def test_a_key_for_some_models_does_not_open_an_adapter_by_a_second_name(gateway: StartRouter) -> None:
    body = first()[:-1] + b',"model":"sql"}'  # for the engine the last one counts
    key = mint(bytes(range(35)))
    ring = KeyRing()
    ring.apply([ApiKey(id=key.id, sha256=key.digest, tenant="a", models=("tiny",))], 0.0)
    bearer = b"Authorization: Bearer %b\r\n" % key.text.encode()
    async with ScriptedEngine() as engine:
        for adapters, refused in (((), False), (("sql",), True)):
            router = await gateway(engine.url, keys=ring, **SMALL)
            pool = router.state.pools["default/pool"]
            pool.adapters = frozenset(adapters)
            router.state._models |= dict.fromkeys(adapters, pool)
            async with RawClient(router.port) as client:
                answer = await client.ask(post(body, extra=bearer))
            assert (answer.status == 403) is refused


async def test_before_more_than_the_front_has_gone_out_another_pod_may_have_it(gateway: StartRouter) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as other:
        heads = {one: Heads(one, closed=True), other: Heads(other, closed=True)}
        router = await gateway(one.url, other.url, **SMALL)
        beginning, rest = parts(post(first()), 20_000)
        async with RawClient(router.port) as client:
            await client.send(beginning)
            await until(lambda: not all(each.seen.empty() for each in heads.values()))
            met = one if not heads[one].seen.empty() else other
            (await heads[met].next()).reset()
            left = other if met is one else one
            await heads[left].next()
            heads[left].gate.set()
            answer = await client.ask(rest)

    assert (answer.status, left.requests[0].body) == (200, first())
    assert router.services.replay.held_bytes == 0


async def test_after_that_the_client_is_told_and_nothing_is_tried_again(gateway: StartRouter) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as other:
        heads = {one: Heads(one), other: Heads(other)}
        router = await gateway(one.url, other.url, **SMALL)
        request = post(first())
        async with RawClient(router.port) as client:
            await client.send(request[:20_000])
            await until(lambda: not all(each.seen.empty() for each in heads.values()))
            met = one if not heads[one].seen.empty() else other
            seen = await heads[met].next()
            await client.send(request[20_000:60_000])
            await until(lambda: router.services.bodies_bytes == 0)
            seen.reset()
            answer = await client.answer()
            await client.send(request[60_000:])  # the rest is thrown away
            again = await client.ask(post(chat()))

    assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_error")
    assert again.status == 200
    assert len(one.requests) + len(other.requests) == 1  # the small one


async def test_an_engine_that_reads_slowly_holds_the_client_back(start: StartRouter) -> None:
    size = 24 << 20
    async with ScriptedEngine() as engine:
        heads = Heads(engine, closed=True)
        router = await start(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            seen = await client_stuck(client, post(first(size=size)), heads)
            seen.writer.transport.pause_reading()
            heads.gate.set()
            sent = await still(client)
            held = [
                upstream.transport.get_write_buffer_size()
                for pool in router.services.pools._pools.values()
                for upstream in pool.open
            ]
            seen.writer.transport.resume_reading()
            answer = await client.answer()
            again = await client.ask(post(chat()))

    assert (answer.status, again.status) == (200, 200)
    assert sent < size, "the client was held back"
    assert max(held) <= (64 << 10) + (256 << 10)  # the high-water mark, and a read that was under way
    assert len(engine.requests[0].body) == len(first(size=size))


async def client_stuck(client: RawClient, request: bytes, heads: Heads) -> Seen:
    client.writer.write(request)
    return await heads.next()


async def still(client: RawClient) -> int:
    """Wait until no more is taken; how much was."""
    before = -1
    async with asyncio.timeout(20):
        while before != (left := client.writer.transport.get_write_buffer_size()):
            before = left
            await asyncio.sleep(0.2)
    return (24 << 20) - before


async def test_an_answer_before_the_end_of_the_body_reaches_a_client_that_reads_last(start: StartRouter) -> None:
    async def early(seen: Seen) -> None:
        if seen.line.startswith(b"POST") and int(seen.headers[b"content-length"]) > LARGE:
            await seen.answer(b'{"error":{"message":"too long"}}', b"400 Bad Request")

    async with ScriptedEngine() as engine:
        engine.early = early
        router = await start(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            await client.send(post(first(size=8 << 20)))
            answer = await client.answer()
            again = await client.ask(post(chat()))

    assert (answer.status, answer.body) == (400, b'{"error":{"message":"too long"}}')
    assert again.status == 200


async def test_what_is_refused_by_its_front_is_answered_at_once(gateway: StartRouter) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, **SMALL)
        beginning, rest = parts(post(first("nobody")))
        async with RawClient(router.port) as client:
            answer = await client.ask(beginning)
            again = await client.ask(rest + post(chat()))

    assert (answer.status, again.status) == (404, 200)


async def test_a_client_that_leaves_in_the_middle_ends_it_upstream(start: StartRouter) -> None:
    async with ScriptedEngine() as engine:
        heads = Heads(engine)
        router = await start(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            await client.send(parts(post(first()))[0])
            await heads.next()
        await until(lambda: router.services.pools.open_connections == 0)
        await router.settled()

    assert engine.requests == []


async def test_a_client_that_stops_in_the_middle_is_told_and_the_pod_is_not_blamed(gateway: StartRouter) -> None:
    async with ScriptedEngine() as engine:
        heads = Heads(engine)
        router = await gateway(engine.url, body_seconds=0.2, **SMALL)
        async with RawClient(router.port) as client:
            await client.send(parts(post(first()))[0])
            await heads.next()
            answer = await client.answer()
            assert await client.rest() == b""
        (pod,) = router.state.pools["default/pool"].pods.values()

    assert (answer.status, answer.json()["error"]["code"]) == (408, "request_timeout")
    assert answer.headers[b"connection"] == b"close"
    assert pod.ejection._strikes == 0.0


async def test_chunks_beyond_the_limit_end_what_has_begun(start: StartRouter) -> None:
    async with ScriptedEngine() as engine:
        heads = Heads(engine)
        router = await start(engine.url, max_body_bytes=300_000, **SMALL)
        async with RawClient(router.port) as client:
            client.writer.write(chunked(first()))
            seen = await heads.next()
            answer = await client.answer()
        await until(lambda: router.services.pools.open_connections == 0)
        del seen

    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert engine.requests == []


async def test_what_a_dead_engine_had_of_the_front_goes_to_a_peer_with_the_rest(
    member: StartRouter, pool_port: int
) -> None:
    async with ScriptedEngine() as engine:
        await member(ONE, NOBODY, **SMALL)
        await member(TWO, engine.url, **SMALL)
        async with RawClient(pool_port, ONE) as client:
            answer = await client.ask(post(first()))

    assert (answer.status, engine.requests[0].body) == (200, first())


async def test_a_form_goes_on_before_its_file_is_whole(start: StartRouter) -> None:
    field = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n'
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n%b\r\n--b--\r\n' % (
        b"\0" * LARGE
    )
    body = field + file
    head = (
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: %d\r\n\r\n"
    )
    async with ScriptedEngine() as engine:
        heads = Heads(engine)
        router: RunningRouter = await start(engine.url, **SMALL)
        beginning, rest = parts(head % len(body) + body)
        async with RawClient(router.port) as client:
            await client.send(beginning)
            await heads.next()
            answer = await client.ask(rest)

    assert (answer.status, engine.requests[0].body) == (200, body)


async def test_a_compressed_body_is_waited_for(gateway: StartRouter) -> None:
    import gzip
    import random

    letters = random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=LARGE * 2)
    plain = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "".join(letters)}]}).encode()
    body = gzip.compress(plain, 1)
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(body, extra=b"Content-Encoding: gzip\r\n"))

    assert len(body) > 300_000
    assert (answer.status, engine.requests[0].body) == (200, body)
