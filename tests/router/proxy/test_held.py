"""Sidecars of one pool: what neither the own engine nor a peer takes is held until one does, within bounds."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.peers import ONE, THREE, TWO, counted, routing
from scripted.routers import StartRouter, until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api import contract
from tidepool_api.load import Health, LoadReport


async def test_without_a_ready_peer_a_request_is_held_and_then_refused(
    member: StartRouter, pool_port: int
) -> None:
    first = await member(ONE, settings=routing(timeout="300ms"))
    await member(TWO)
    async with RawClient(pool_port, ONE) as client:
        await client.send(post(chat()))
        await until(lambda: counted(first, contract.METRIC_HELD) == {"": 1})
        answer = await client.answer()

    assert (answer.status, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert answer.headers[b"retry-after"]
    assert answer.headers[b"connection"] == b"close"
    assert counted(first, contract.METRIC_HELD) == {"": 0}
    assert counted(first, contract.METRIC_REQUESTS) == {'code="503",outcome="refused"': 1}


@pytest.mark.parametrize("bounds", [{"max_waiting": 1}, {"max_bytes": "100"}])
async def test_what_is_held_is_bounded(member: StartRouter, pool_port: int, bounds: dict[str, Any]) -> None:
    first = await member(ONE, settings=routing(timeout="20s", **bounds))
    async with RawClient(pool_port, ONE) as held, RawClient(pool_port, ONE) as client:
        await held.send(post(chat()))
        await until(lambda: counted(first, contract.METRIC_HELD) == {"": 1})
        answer = await client.ask(post(chat()))

    assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_full")


async def test_what_is_held_goes_to_the_peer_that_becomes_ready(member: StartRouter, pool_port: int) -> None:
    async with ScriptedEngine() as engine:
        first = await member(ONE)
        async with RawClient(pool_port, ONE) as client:
            await client.send(post(chat()))
            await until(lambda: counted(first, contract.METRIC_HELD) == {"": 1})
            await member(TWO, engine.url)
            answer = await client.answer()

    assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-2")


async def test_what_is_held_goes_to_the_own_engine_when_that_is_back(member: StartRouter, pool_port: int) -> None:
    engine = ScriptedEngine()
    async with engine:
        first = await member(ONE, engine.url)
    async with RawClient(pool_port, ONE) as one, RawClient(pool_port, ONE) as other:
        for client in (one, other):
            await client.send(post(chat(), extra=b"x-request-id: abc\r\n"))
        await until(lambda: counted(first, contract.METRIC_HELD) == {"": 2})
        async with engine:
            answers = [await client.answer() for client in (one, other)]

    for answer in answers:
        assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-1")
        assert answer.headers[b"x-request-id"] == b"abc"
    assert [seen.body for seen in engine.requests] == [chat(), chat()]
    assert counted(first, contract.METRIC_REQUESTS)['code="200",outcome="ok"'] == 2
    assert not counted(first, contract.METRIC_HANDED_ON)


@pytest.mark.parametrize("held", [True, False])
async def test_a_burst_is_spread_over_the_peers(member: StartRouter, pool_port: int, held: bool) -> None:
    starting, ready = (
        LoadReport(health=health, boot="peer").encode() for health in (Health.STARTING, Health.READY)
    )
    first = await member(ONE)
    async with (
        ScriptedEngine(address=(TWO, pool_port)) as one,
        ScriptedEngine(address=(THREE, pool_port)) as other,
    ):
        one.load = other.load = starting if held else ready
        clients = [RawClient(pool_port, ONE) for _ in range(8)]
        for client in clients:
            await client.__aenter__()
            await client.send(post(chat()))
        if held:
            await until(lambda: counted(first, contract.METRIC_HELD) == {"": 8})
            one.load = other.load = ready
        assert {(await client.answer()).status for client in clients} == {200}

        assert min(len(one.requests), len(other.requests)) >= 2
        for client in clients:
            client.leave()


async def test_what_is_held_goes_by_priority(member: StartRouter, pool_port: int) -> None:
    ready = LoadReport(health=Health.READY, boot="peer").encode()
    first = await member(ONE)
    clients = [RawClient(pool_port, ONE) for _ in range(9)]  # a round has eight
    for count, client in enumerate(clients, 1):
        await client.__aenter__()
        name = b"interactive" if client is clients[-1] else b"batch"
        await client.send(post(chat(), extra=b"x-tidepool-priority: %b\r\n" % name))
        await until(lambda count=count: counted(first, contract.METRIC_HELD) == {"": count})
    async with ScriptedEngine(address=(TWO, pool_port), load=ready) as peer:
        assert {(await client.answer()).status for client in clients} == {200}

    places = [seen.headers[b"x-tidepool-priority"] for seen in peer.requests]
    assert b"interactive" in places[:8]
    for client in clients:
        client.leave()


async def test_after_a_peer_failed_it_the_own_engine_may_still_serve_it_under_the_same_id(
    member: StartRouter, pool_port: int
) -> None:
    starting, ready = (
        LoadReport(health=health, boot="peer").encode() for health in (Health.STARTING, Health.READY)
    )

    async def dies(seen: Seen) -> None:
        peer.load = starting
        seen.reset()

    engine = ScriptedEngine()
    async with ScriptedEngine(dies, address=(TWO, pool_port), load=ready) as peer:
        async with engine:
            first = await member(ONE, engine.url)
        async with RawClient(pool_port, ONE) as client:
            await client.send(post(chat()))
            await until(lambda: counted(first, contract.METRIC_HELD) == {"": 1})
            async with engine:
                answer = await client.answer()

    assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-1")
    assert peer.requests[0].headers[b"x-request-id"] == answer.headers[b"x-request-id"]


async def test_a_client_that_leaves_is_held_no_longer(member: StartRouter, pool_port: int) -> None:
    first = await member(ONE)
    async with RawClient(pool_port, ONE) as client:
        await client.send(post(chat()))
        await until(lambda: counted(first, contract.METRIC_HELD) == {"": 1})
    await first.settled()

    assert counted(first, contract.METRIC_HELD) == {"": 0}
    assert counted(first, contract.METRIC_REQUESTS) == {'code="499",outcome="cancelled"': 1}


async def test_a_full_queue_is_relieved_by_a_peer_and_else_says_so(member: StartRouter, pool_port: int) -> None:
    async def script(seen: Seen) -> None:
        await asyncio.Event().wait()

    page = b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 5\n"
    async with ScriptedEngine(script, page=page) as engine, ScriptedEngine() as well:
        first = await member(ONE, engine.url, settings=routing(max_waiting=1))
        await until(lambda: first.state.watch.figures.waiting == 5)
        async with RawClient(pool_port, ONE) as waiting, RawClient(pool_port, ONE) as client:
            await waiting.send(post(chat()))
            await engine.arrived.get()
            answer = await client.ask(post(chat()))
            assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_full")
            assert b"connection" not in answer.headers

            await member(TWO, well.url)
            async with asyncio.timeout(20):  # what peers said is shared for a moment
                while (answer := await client.ask(post(chat()))).status == 429:
                    pass
            assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-2")


async def test_while_dns_says_nothing_requests_are_held(member: StartRouter, pool_port: int) -> None:
    names: list[str] = []

    def lookup(_: str) -> Sequence[str]:
        if not names:
            raise OSError("no answer")
        return names

    async with ScriptedEngine() as engine:
        first = await member(ONE, peers=lookup)
        await member(TWO, engine.url)
        async with RawClient(pool_port, ONE) as client:
            await client.send(post(chat()))
            await until(lambda: counted(first, contract.METRIC_HELD) == {"": 1})
            names.append(TWO)
            assert (await client.answer()).status == 200
