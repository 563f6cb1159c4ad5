"""Large bodies that name their model last, as OpenAI's and Anthropic's clients write them: on disk until then."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.issuer import GATEWAY, line, token, trust
from scripted.peers import NOBODY, ONE, TWO
from scripted.routers import StartRouter, until
from scripted.upstreams import JSON_ANSWER, ScriptedEngine, Seen
from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import FleetPool, Routing, SidecarSettings
from tidepool_api.traffic import Traffic
from tidepool_router.errors import Refused
from tidepool_router.proxy.spool import Spool, Spools

# Small enough to be tested quickly: the front, and from where on a body is large.
SMALL = {"front_bytes": 3000, "replay_bytes": 200_000}
LARGE = 400_000


def late(model: str = "tiny", size: int = LARGE, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x" * size}], "model": model, **more}).encode()


def chunked(body: bytes, size: int = 20_000) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def nameless_files() -> int:
    """Files that this process holds open and that have no name."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += str(link.readlink()).endswith("(deleted)")
        except OSError:  # the folder's own, which is closed again
            continue
    return found


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("model", ["tiny", "alias"])
async def test_it_waits_on_disk_and_reaches_the_engine_byte_by_byte(
    gateway: StartRouter, framing: str, model: str
) -> None:
    before = nameless_files()
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, **SMALL)
        body = late(model, stream_options={"include_usage": True}, top_k=5)
        request = post(body) if framing == "length" else chunked(body)
        async with RawClient(router.port) as client:
            await client.send(request[:300_000])
            await until(lambda: router.services.spools.held_bytes > 250_000)
            assert (router.services.bodies_bytes, engine.requests) == (0, [])
            first = await client.ask(request[300_000:])
            held = router.services.spools.held_bytes
            again = await client.ask(post(chat()) + request)  # the connection is as good as before, and pipelines
            third = await client.answer()

    assert [answer.status for answer in (first, again, third)] == [200] * 3
    assert first.body == JSON_ANSWER
    expected = late("tiny", stream_options={"include_usage": True}, top_k=5)
    assert [seen.body for seen in engine.requests] == [expected, chat(), expected]
    assert (held, nameless_files()) == (0, before)


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(gateway: StartRouter) -> None:
    before = nameless_files()
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            await client.send(post(late())[:300_000])
            await until(lambda: router.services.spools.held_bytes)
            assert nameless_files() == before + 1
        await router.settled()

    assert (engine.requests, nameless_files()) == ([], before)


async def test_a_client_that_leaves_while_the_engine_works_leaves_nothing(gateway: StartRouter) -> None:
    before = nameless_files()

    async def never(seen: Seen) -> None:
        await seen.closed.wait()

    async with ScriptedEngine(never) as engine:
        router = await gateway(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            await client.send(post(late()))
            await engine.arrived.get()
            assert router.live() == 1
        await router.settled()

    assert nameless_files() == before


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_beyond_the_bound_the_next_one_is_told_what_to_do(gateway: StartRouter, framing: str) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, max_stored_bytes=LARGE + LARGE // 2, **SMALL)
        request = post(late())
        async with RawClient(router.port) as one, RawClient(router.port) as two:
            await one.send(request[:300_000])
            await until(lambda: router.services.spools.held_bytes)
            refused = await two.ask(request if framing == "length" else chunked(late()))
            first = await one.ask(request[300_000:])
            second = await two.ask(request)  # there is room again, and the connection is good

    assert (refused.status, refused.json()["error"]["code"]) == (503, "router_full")
    assert b"`model` before" in refused.body
    assert refused.headers[b"retry-after"] == b"1"
    assert (first.status, second.status) == (200, 200)
    assert [seen.body for seen in engine.requests] == [late(), late()]


def test_a_full_disk_is_told_as_such() -> None:
    spools = Spools(1000)
    spool = Spool(spools, Path("/dev/full").open("wb", buffering=0), 0)  # noqa: SIM115 (closed below)
    with pytest.raises(Refused, match=r"No space left on device.*try again") as caught:
        spool.write(b"x" * 10)
    spool.close()

    assert (caught.value.refusal.status, spools.held_bytes) == (503, 0)


@pytest.mark.parametrize(
    ("folder", "bound", "why"),
    [
        ("missing", 1 << 20, "a read-only root without a volume"),
        ("", 0, "switched off"),
        ("", LARGE // 2, "larger than all that may be kept"),
    ],
)
async def test_without_a_place_on_disk_it_waits_in_memory(
    gateway: StartRouter, tmp_path: Path, folder: str, bound: int, why: str
) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, **SMALL)
        router.services.spools = Spools(bound, tmp_path / folder)
        request = post(late())
        async with RawClient(router.port) as client:
            await client.send(request[:300_000])
            await until(lambda: router.services.bodies_bytes > 250_000)
            answer = await client.ask(request[300_000:])

    assert (answer.status, engine.requests[0].body) == (200, late()), why


async def test_a_pod_that_dies_with_all_of_it_leaves_it_to_another_one(gateway: StartRouter) -> None:
    async def dies(seen: Seen) -> None:
        seen.reset()

    async with ScriptedEngine(dies) as one, ScriptedEngine(dies) as two, ScriptedEngine() as three:
        router = await gateway(one.url, two.url, three.url, **SMALL)
        async with RawClient(router.port) as client:
            answers = [await client.ask(post(late())) for _ in range(3)]  # wherever each begins

    assert [answer.status for answer in answers] == [200] * 3
    assert one.requests
    assert {seen.body for engine in (one, two, three) for seen in engine.requests} == {late()}


async def test_an_engine_that_reads_slowly_is_not_sent_more_than_it_takes(gateway: StartRouter) -> None:
    size = 16 << 20
    gate = asyncio.Event()

    async def early(seen: Seen) -> None:
        if seen.line.startswith(b"POST"):
            seen.writer.transport.pause_reading()
            await gate.wait()
            seen.writer.transport.resume_reading()

    async with ScriptedEngine() as engine:
        engine.early = early
        router = await gateway(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            await client.send(post(late(size=size)))

            def held() -> list[int]:
                pools = [pool for pool in router.services.pools._pools.values() if pool.port == engine.port]
                return [each.transport.get_write_buffer_size() for pool in pools for each in pool.open]

            await until(lambda: any(held()))
            most = max(held())
            gate.set()
            answer = await client.answer()

    assert most <= (64 << 10) + (128 << 10)  # the high-water mark, and a piece
    assert (answer.status, len(engine.requests[0].body)) == (200, len(late(size=size)))


@pytest.mark.parametrize("first", [True, False], ids=["the front names the model", "the end does"])
async def test_a_rule_about_what_stands_at_the_end_of_a_large_body_holds(
    gateway: StartRouter, first: bool
) -> None:
    when = {"parameters": [{"name": "top_k", "values": ["5"]}]}
    rules = Traffic.model_validate({"rules": [{"name": "long", "when": when, "pool": "other"}]})
    body = late("alias", top_k=5)
    if first:
        body = b'{"model": "alias", ' + late("alias", top_k=5)[1:].replace(b', "model": "alias"', b"")
    async with ScriptedEngine() as own, ScriptedEngine() as engine:
        other = FleetPool(name="other", models=("big",), endpoints=(engine.url,))
        router = await gateway(own.url, traffic=rules, others=(other,), **SMALL)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(body))

    assert (answer.status, own.requests) == (200, [])
    assert json.loads(engine.requests[0].body) == json.loads(body) | {"model": "big"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (late("nobody"), 404, "model_not_found"),
        (late()[:-1], 400, "invalid_json"),
        (late().replace(b'"model"', b'"modem"'), 400, "missing_model"),
    ],
)
async def test_what_is_wrong_with_it_is_told_as_with_any_other(
    gateway: StartRouter, body: bytes, status: int, code: str
) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(body))
            again = await client.ask(post(chat()))

    assert (answer.status, answer.json()["error"]["code"], again.status) == (status, code, 200)


# What the gateway tells the sidecar.

_SAID = b'x-tidepool-facts: {"model":"sql"}\r\n'


def fresh() -> bytes:
    return line(token(GATEWAY, now=time.time()))


@pytest.mark.parametrize(
    ("trusted", "extra", "waits", "why"),
    [
        (False, b"", True, "nobody says what stands at the end"),
        (False, _SAID, False, "a gateway says it, and everybody is believed"),
        (False, b"x-tidepool-facts: sql\r\n", True, "what cannot be read says nothing"),
        (False, b'x-tidepool-facts: {"model":"alias"}\r\n', True, "an alias must be replaced in its place"),
        (True, _SAID, True, "a stranger says it"),
        (True, _SAID + fresh(), False, "a proven gateway says it"),
    ],
)
async def test_a_sidecar_that_is_told_the_model_need_not_wait_for_it(
    sidecar: StartRouter, trusted: bool, extra: bytes, waits: bool, why: str
) -> None:
    settings = SidecarSettings(pool="pool", model="tiny", aliases=("alias",), trust=trust() if trusted else None)
    heads: asyncio.Queue[Seen] = asyncio.Queue()

    async def early(seen: Seen) -> None:
        if seen.line.startswith(b"POST"):
            heads.put_nowait(seen)

    async with ScriptedEngine() as engine:
        engine.early = early
        router = await sidecar(engine.url, settings=settings, **SMALL)
        request = post(late("sql"), extra=extra)
        async with RawClient(router.port) as client:
            await client.send(request[:300_000])
            if waits:
                await until(lambda: router.services.spools.held_bytes)
                assert heads.empty(), why
            else:
                async with asyncio.timeout(20):
                    seen = await heads.get()
                assert b"x-tidepool-facts" not in seen.headers, why
            assert (await client.ask(request[300_000:])).status == 200

    assert engine.requests[0].body == late("sql")


@pytest.mark.parametrize("own", [{}, {"priority": -200}], ids=["no priority of its own", "one that is too high"])
async def test_the_engine_hears_of_its_priority_without_the_body_in_memory(
    sidecar: StartRouter, own: dict[str, int]
) -> None:
    may_end = asyncio.Event()

    async def script(seen: Seen) -> None:
        await may_end.wait()
        await seen.answer()

    routing = Routing(priorities={"interactive": 100})
    settings = SidecarSettings(
        pool="pool", model="tiny", aliases=("alias",), engine_priority=True, routing=routing
    )
    async with ScriptedEngine(script) as engine:
        router = await sidecar(engine.url, settings=settings, **SMALL)
        async with RawClient(router.port) as client:
            await client.send(post(late("alias", **own), extra=b"x-tidepool-priority: interactive\r\n"))
            seen = await engine.arrived.get()
            held = router.services.bodies_bytes, router.services.spools.held_bytes
            may_end.set()
            assert (await client.answer()).status == 200

    assert json.loads(seen.body) == json.loads(late("tiny")) | {"priority": -100}
    assert held[0] == 0
    assert held[1] > LARGE


async def test_a_gateway_says_what_it_has_read_and_not_what_its_client_says(gateway: StartRouter) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, **SMALL)
        async with RawClient(router.port) as client:
            await client.ask(post(late("alias", max_tokens=7, n=2), extra=_SAID))
            await client.ask(post(chat(), extra=_SAID))

    told = [seen.headers.get(b"x-tidepool-facts") for seen in engine.requests]
    assert told[1] is None
    assert json.loads(told[0] or b"") == {"model": "tiny", "max_tokens": 7, "n": 2}


async def test_a_peer_is_told_as_well_but_not_what_a_stranger_says(member: StartRouter, pool_port: int) -> None:
    ready = LoadReport(health=Health.READY, boot="peer").encode()
    async with ScriptedEngine(address=(TWO, pool_port), load=ready) as peer:
        await member(ONE, NOBODY, settings=SidecarSettings(pool="pool", trust=trust()), **SMALL)
        for extra in (_SAID + fresh(), _SAID):
            async with RawClient(pool_port, ONE) as client:
                assert (await client.ask(post(late("sql"), extra=extra))).status == 200

    told = [seen.headers.get(b"x-tidepool-facts") for seen in peer.requests]
    assert told == [b'{"model":"sql"}', None]
    assert [seen.body for seen in peer.requests] == [late("sql")] * 2
