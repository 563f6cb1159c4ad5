"""Sidecars of one pool: what one's engine does not take, another serves, once and in full."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.peers import ONE, POOL, THREE, TWO, counted
from scripted.routers import StartRouter
from scripted.upstreams import ScriptedEngine, Seen, answer_json
from tidepool_api import contract
from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import Routing, SidecarSettings
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.proxy.peers import Peer, best_peer

_EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
_MARK = b"x-tidepool-handed-on: 1\r\n"


@pytest.mark.parametrize(
    ("peers", "best", "why"),
    [
        ([], None, "nobody answered"),
        ([{"health": Health.STARTING}, {"health": Health.DOWN}], None, "nobody is ready"),
        ([{"health": Health.DRAINING}, {"health": Health.HUNG}, {"running": 9}], 2, "only the ready one"),
        ([{"held_tokens": 900, "running": 1}, {"held_tokens": 100, "running": 9}], 1, "tokens count first"),
        ([{"queued_tokens": 50}, {"expected_tokens": 40}, {"held_tokens": 60}], 1, "all kinds of tokens count"),
        ([{"running": 2}, {"running": 1}, {"running": 3}], 1, "with equal tokens the one with fewer requests"),
        ([{"waiting": 4}, {"running": 90}], 1, "a full queue takes nothing"),
        ([{"waiting": 4}, {"waiting": 5}], None, "all queues are full"),
    ],
)
def test_the_best_peer(peers: list[dict[str, Any]], best: int | None, why: str) -> None:
    known = [
        Peer(Endpoint.at("10.0.0.1", at), LoadReport(**({"health": Health.READY} | peer)))
        for at, peer in enumerate(peers)
    ]
    assert best_peer(known, 4) is (None if best is None else known[best]), why


def test_a_peer_that_failed_the_request_is_left_out() -> None:
    idle, busy = (
        Peer(Endpoint.at("10.0.0.1", at), LoadReport(health=Health.READY, running=at)) for at in range(2)
    )
    assert best_peer([idle, busy], 4, ("10.0.0.1:0",)) is busy


@pytest.mark.parametrize("mark", [b"", b"x-tidepool-gateway: 1\r\n"])
async def test_a_peer_serves_what_the_own_engine_cannot(member: StartRouter, pool_port: int, mark: bytes) -> None:
    async with ScriptedEngine() as engine:
        first = await member(ONE)
        second = await member(TWO, engine.url)
        async with RawClient(pool_port, ONE) as client:
            answer = await client.ask(post(chat(), extra=mark + b"x-request-id: abc\r\n"))
            assert await client.rest() == b""  # the next connection may lead elsewhere

        assert (answer.status, answer.headers[b"connection"]) == (200, b"close")
        assert (answer.headers[b"x-tidepool-pod"], answer.headers[b"x-request-id"]) == (b"pod-2", b"abc")
        assert b"x-tidepool-load" not in answer.headers
        seen = engine.requests[0]
        assert (seen.body, seen.headers[b"x-request-id"]) == (chat(), b"abc")
        assert b"x-tidepool-handed-on" not in seen.headers
        assert second.state.ledger.sums().closed_total == 1
        assert first.state.ledger.sums().opened_total == 0
        assert counted(first, contract.METRIC_HANDED_ON) == {'outcome="ok"': 1}
        assert not counted(first, contract.METRIC_REQUESTS)


async def test_a_ready_engine_is_never_left_and_asks_nobody(member: StartRouter, pool_port: int) -> None:
    def nobody(_: str) -> Sequence[str]:
        raise AssertionError

    async with ScriptedEngine() as engine:
        await member(ONE, engine.url, peers=nobody)
        async with RawClient(pool_port, ONE) as client:
            for extra in (b"", _MARK):
                answer = await client.ask(post(chat(), extra=extra))
                assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-1")
                assert b"connection" not in answer.headers

        assert b"x-tidepool-handed-on" not in engine.requests[1].headers


async def test_a_stream_passes_event_by_event_and_the_usage_asked_for_is_taken_out(
    member: StartRouter, pool_port: int
) -> None:
    read = asyncio.Event()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(_EVENT)
        await read.wait()
        await seen.chunk(_EVENT)
        await seen.chunk(_USAGE)
        await seen.chunk(b"data: [DONE]\n\n")
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        await member(ONE)
        second = await member(TWO, engine.url)
        async with RawClient(pool_port, ONE) as client:
            await client.send(post(chat(stream=True)))
            await client.head()
            assert await client.chunk() == _EVENT
            read.set()
            rest = await client.rest()

        assert _EVENT in rest
        assert b"[DONE]" in rest
        assert b"usage" not in rest
        assert second.state.ledger.sums().output_tokens_total == 1


async def test_what_was_handed_on_once_is_refused_and_not_handed_on_again(
    member: StartRouter, pool_port: int
) -> None:
    async with ScriptedEngine() as engine:
        first = await member(ONE)
        await member(TWO, engine.url)
        async with RawClient(pool_port, ONE) as client:
            answer = await client.ask(post(chat(), extra=_MARK))

        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_pods")
        assert answer.headers[b"retry-after"]
        assert not engine.requests
        assert counted(first, contract.METRIC_REQUESTS) == {'code="503",outcome="refused"': 1}


async def test_a_strangers_mark_means_nothing(member: StartRouter, pool_port: int) -> None:
    async with ScriptedEngine() as engine:
        await member(ONE)
        await member(TWO, engine.url)
        async with RawClient(pool_port, ONE, source="127.0.9.9") as client:
            assert (await client.ask(post(chat(), extra=_MARK))).status == 200


async def test_an_engine_that_is_found_gone_is_believed_gone_at_once(member: StartRouter, pool_port: int) -> None:
    async with ScriptedEngine() as well:
        async with ScriptedEngine() as engine:
            first = await member(ONE, engine.url)
            await member(TWO, well.url)
        async with RawClient(pool_port, ONE) as client:
            answer = await client.ask(post(chat()))

        assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-2")
        assert answer.headers[b"connection"] == b"close"
        assert first.state.health is Health.DOWN


async def _dies(seen: Seen) -> None:
    seen.reset()


async def _dies_before_the_first_event(seen: Seen) -> None:
    await seen.begin_stream()
    seen.reset()


@pytest.mark.parametrize("script", [_dies, _dies_before_the_first_event])
async def test_an_engine_that_dies_before_the_first_byte_costs_nothing(
    member: StartRouter, pool_port: int, script: Any
) -> None:
    async with ScriptedEngine(script) as engine, ScriptedEngine() as well:
        first = await member(ONE, engine.url)
        await member(TWO, well.url)
        body = chat(stream=True, stream_options={"include_usage": True})
        async with RawClient(pool_port, ONE) as client:
            answer = await client.ask(post(body))

        assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-2")
        assert well.requests[0].body == body
        assert well.requests[0].headers[b"x-request-id"] == answer.headers[b"x-request-id"]
        assert counted(first, contract.METRIC_REQUESTS) == {'code="502",outcome="error"': 1}


async def test_a_sidecar_knows_itself_under_an_address_that_it_did_not_know(
    member: StartRouter, pool_port: int
) -> None:
    async def dies_once(seen: Seen) -> None:
        await (_dies if len(engine.requests) == 1 else answer_json)(seen)

    async with ScriptedEngine(dies_once) as engine:
        unknown = "127.0.9.9"
        first = await member(unknown, engine.url, peers=lambda _: (*POOL, unknown))
        async with RawClient(pool_port, unknown) as client:
            assert (await client.ask(post(chat()))).status == 200

        assert len(engine.requests) == 2
        assert not counted(first, contract.METRIC_HANDED_ON)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"settings": SidecarSettings(pool="pool", routing=Routing(retries=0))}, "the pool wants no retries"),
        ({"replay_bytes": 10}, "the body is not kept"),
    ],
)
async def test_what_ran_is_not_always_run_again(
    member: StartRouter, pool_port: int, more: dict[str, Any], why: str
) -> None:
    async with ScriptedEngine(_dies) as engine, ScriptedEngine() as well:
        await member(ONE, engine.url, **more)
        await member(TWO, well.url)
        async with RawClient(pool_port, ONE) as client:
            assert (await client.ask(post(chat()))).status == 502, why

        assert not well.requests


async def test_an_answer_of_the_engines_own_is_passed_on_whatever_it_says(
    member: StartRouter, pool_port: int
) -> None:
    async def overloaded(seen: Seen) -> None:
        await seen.answer(b"{}", b"503 Service Unavailable")

    async with ScriptedEngine(overloaded) as engine, ScriptedEngine() as well:
        await member(ONE, engine.url)
        await member(TWO, well.url)
        async with RawClient(pool_port, ONE) as client:
            assert (await client.ask(post(chat()))).body == b"{}"

        assert not well.requests


@pytest.mark.parametrize("script", [_dies, None])
async def test_a_peer_that_is_not_what_it_said_is_passed_over(
    member: StartRouter, pool_port: int, script: Any
) -> None:
    async def refuses(seen: Seen) -> None:
        await seen.answer(b"{}", b"503 Service Unavailable")

    idle = LoadReport(health=Health.READY, boot="liar").encode()
    liar = ScriptedEngine(script or refuses, address=(THREE, pool_port), load=idle)
    busy = LoadReport(health=Health.READY, boot="busy", held_tokens=1000).encode()
    async with liar, ScriptedEngine(answer_json, address=(TWO, pool_port), load=busy) as second:
        first = await member(ONE)
        async with RawClient(pool_port, ONE) as client:
            assert (await client.ask(post(chat()))).status == 200

        assert (len(liar.requests), len(second.requests)) == (1, 1)
        assert second.requests[0].headers[b"x-tidepool-handed-on"] == b"1"
        assert counted(first, contract.METRIC_HANDED_ON) == {'outcome="ok"': 1}


async def test_a_request_that_a_peer_may_be_running_goes_to_no_other(member: StartRouter, pool_port: int) -> None:
    async def hangs(seen: Seen) -> None:
        await asyncio.Event().wait()

    ready = LoadReport(health=Health.READY, boot="peer").encode()
    async with (
        ScriptedEngine(hangs, address=(TWO, pool_port), load=ready) as one,
        ScriptedEngine(hangs, address=(THREE, pool_port), load=ready) as other,
    ):
        await member(ONE, first_byte_seconds=0.2)
        async with RawClient(pool_port, ONE) as client:
            assert (await client.ask(post(chat()))).status == 504

        assert len(one.requests) + len(other.requests) == 1


async def test_a_peer_that_dies_in_a_stream_ends_it_with_an_error(member: StartRouter, pool_port: int) -> None:
    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(_EVENT)
        seen.reset()

    ready = LoadReport(health=Health.READY, boot="peer").encode()
    async with ScriptedEngine(script, address=(TWO, pool_port), load=ready):
        first = await member(ONE)
        async with RawClient(pool_port, ONE) as client:
            await client.send(post(chat(stream=True)))
            await client.head()
            assert await client.chunk() == _EVENT
            event = await client.chunk()
            assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
            assert b"[DONE]" not in await client.rest()

        assert counted(first, contract.METRIC_HANDED_ON) == {'outcome="error"': 1}


async def test_a_client_that_leaves_ends_the_peers_work(member: StartRouter, pool_port: int) -> None:
    async def script(seen: Seen) -> None:
        await asyncio.Event().wait()

    async with ScriptedEngine(script) as engine:
        first = await member(ONE)
        await member(TWO, engine.url)
        async with RawClient(pool_port, ONE) as client:
            await client.send(post(chat()))
            seen = await engine.arrived.get()
        async with asyncio.timeout(20):
            await seen.closed.wait()

        await first.settled()
        assert counted(first, contract.METRIC_HANDED_ON) == {'outcome="cancelled"': 1}


async def test_many_requests_share_the_questions(member: StartRouter, pool_port: int) -> None:
    ready = LoadReport(health=Health.READY, boot="peer").encode()
    async with ScriptedEngine(address=(TWO, pool_port), load=ready) as peer:
        await member(ONE)
        clients = [RawClient(pool_port, ONE) for _ in range(40)]
        for client in clients:
            await client.__aenter__()
        answers = await asyncio.gather(*(client.ask(post(chat())) for client in clients))

        assert {answer.status for answer in answers} == {200}
        # A question has a connection of its own; without sharing there would be one for each request.
        assert peer.connections < 40 + 20
        for client in clients:
            client.leave()
