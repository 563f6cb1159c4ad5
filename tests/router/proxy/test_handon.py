"""Sidecars of one pool: what one's engine does not take, another serves, or it is held until one does.

All sidecars of the test's pool have one port, each on a loopback address of its own. Connections among them come
from 127.0.0.1, so that address stands for a peer's wherever a mark is to be believed.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import RunningRouter, until
from scripted.upstreams import ScriptedEngine, Seen, answer_json
from tidepool_api import contract
from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import Queue, Routing, SidecarSettings
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.proxy.peers import Peer, best_peer

StartSidecar = Callable[..., Awaitable[RunningRouter]]

_EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
_NOBODY = "http://127.0.0.1:1"
_MARK = b"x-tidepool-handed-on: 1\r\n"
_ONE, _TWO, _THREE = "127.0.1.1", "127.0.1.2", "127.0.1.3"
_POOL = (_ONE, _TWO, _THREE, "127.0.0.1")


def _routing(**queue: Any) -> SidecarSettings:
    return SidecarSettings(pool="pool", routing=Routing(queue=Queue(**queue)))


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind((_ONE, 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
async def start(sidecar: Any, port: int) -> AsyncIterator[StartSidecar]:
    """`await start(_ONE, engine.url, ...)`; what they keep open among them is closed when nothing runs."""
    started: list[RunningRouter] = []

    async def begin(address: str, engine: str = _NOBODY, **more: Any) -> RunningRouter:
        options = {"ready": engine is not _NOBODY, "peers": lambda _: _POOL} | more
        router: RunningRouter = await sidecar(engine, pod=f"pod-{address[-1]}", address=(address, port), **options)
        started.append(router)
        return router

    yield begin
    for router in started:
        await until(lambda router=router: not router.live() and not router.services.tasks)
        await router.services.pools.close()


def _counted(router: RunningRouter, name: str) -> dict[str, float]:
    """Series of one family by their labels."""
    lines = router.state.metrics.registry.render().decode().splitlines()
    series = (line.removeprefix(name).rpartition(" ") for line in lines if line.startswith(name))
    return {labels.strip("{}"): float(value) for labels, _, value in series}


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
async def test_a_peer_serves_what_the_own_engine_cannot(start: StartSidecar, port: int, mark: bytes) -> None:
    async with ScriptedEngine() as engine:
        first = await start(_ONE)
        second = await start(_TWO, engine.url)
        async with RawClient(port, _ONE) as client:
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
        assert _counted(first, contract.METRIC_HANDED_ON) == {'outcome="ok"': 1}
        assert not _counted(first, contract.METRIC_REQUESTS)


async def test_a_ready_engine_is_never_left_and_asks_nobody(start: StartSidecar, port: int) -> None:
    def nobody(_: str) -> Sequence[str]:
        raise AssertionError

    async with ScriptedEngine() as engine:
        await start(_ONE, engine.url, peers=nobody)
        async with RawClient(port, _ONE) as client:
            for extra in (b"", _MARK):
                answer = await client.ask(post(chat(), extra=extra))
                assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-1")
                assert b"connection" not in answer.headers

        assert b"x-tidepool-handed-on" not in engine.requests[1].headers


async def test_a_stream_passes_event_by_event_and_the_usage_asked_for_is_taken_out(
    start: StartSidecar, port: int
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
        await start(_ONE)
        second = await start(_TWO, engine.url)
        async with RawClient(port, _ONE) as client:
            await client.send(post(chat(stream=True)))
            await client.head()
            assert await client.chunk() == _EVENT
            read.set()
            rest = await client.rest()

        assert _EVENT in rest
        assert b"[DONE]" in rest
        assert b"usage" not in rest
        assert second.state.ledger.sums().output_tokens_total == 1


async def test_what_was_handed_on_once_is_refused_and_not_handed_on_again(start: StartSidecar, port: int) -> None:
    async with ScriptedEngine() as engine:
        first = await start(_ONE)
        await start(_TWO, engine.url)
        async with RawClient(port, _ONE) as client:
            answer = await client.ask(post(chat(), extra=_MARK))

        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_pods")
        assert answer.headers[b"retry-after"]
        assert not engine.requests
        assert _counted(first, contract.METRIC_REQUESTS) == {'code="503",outcome="refused"': 1}


async def test_a_strangers_mark_means_nothing(start: StartSidecar, port: int) -> None:
    async with ScriptedEngine() as engine:
        await start(_ONE)
        await start(_TWO, engine.url)
        async with RawClient(port, _ONE, source="127.0.9.9") as client:
            assert (await client.ask(post(chat(), extra=_MARK))).status == 200


async def test_without_a_ready_peer_a_request_is_held_and_then_refused(start: StartSidecar, port: int) -> None:
    first = await start(_ONE, settings=_routing(timeout="300ms"))
    await start(_TWO)
    async with RawClient(port, _ONE) as client:
        await client.send(post(chat()))
        await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 1})
        answer = await client.answer()

    assert (answer.status, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert answer.headers[b"retry-after"]
    assert answer.headers[b"connection"] == b"close"
    assert _counted(first, contract.METRIC_HELD) == {"": 0}
    assert _counted(first, contract.METRIC_REQUESTS) == {'code="503",outcome="refused"': 1}


@pytest.mark.parametrize("bounds", [{"max_waiting": 1}, {"max_bytes": "100"}])
async def test_what_is_held_is_bounded(start: StartSidecar, port: int, bounds: dict[str, Any]) -> None:
    first = await start(_ONE, settings=_routing(timeout="20s", **bounds))
    async with RawClient(port, _ONE) as held, RawClient(port, _ONE) as client:
        await held.send(post(chat()))
        await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 1})
        answer = await client.ask(post(chat()))

    assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_full")


async def test_what_is_held_goes_to_the_peer_that_becomes_ready(start: StartSidecar, port: int) -> None:
    async with ScriptedEngine() as engine:
        first = await start(_ONE)
        async with RawClient(port, _ONE) as client:
            await client.send(post(chat()))
            await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 1})
            await start(_TWO, engine.url)
            answer = await client.answer()

    assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-2")


async def test_what_is_held_goes_to_the_own_engine_when_that_is_back(start: StartSidecar, port: int) -> None:
    engine = ScriptedEngine()
    async with engine:
        first = await start(_ONE, engine.url)
    async with RawClient(port, _ONE) as one, RawClient(port, _ONE) as other:
        for client in (one, other):
            await client.send(post(chat(), extra=b"x-request-id: abc\r\n"))
        await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 2})
        async with engine:
            answers = [await client.answer() for client in (one, other)]

    for answer in answers:
        assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-1")
        assert answer.headers[b"x-request-id"] == b"abc"
    assert [seen.body for seen in engine.requests] == [chat(), chat()]
    assert _counted(first, contract.METRIC_REQUESTS)['code="200",outcome="ok"'] == 2
    assert not _counted(first, contract.METRIC_HANDED_ON)


@pytest.mark.parametrize("held", [True, False])
async def test_a_burst_is_spread_over_the_peers(start: StartSidecar, port: int, held: bool) -> None:
    starting, ready = (
        LoadReport(health=health, boot="peer").encode() for health in (Health.STARTING, Health.READY)
    )
    first = await start(_ONE)
    async with ScriptedEngine(address=(_TWO, port)) as one, ScriptedEngine(address=(_THREE, port)) as other:
        one.load = other.load = starting if held else ready
        clients = [RawClient(port, _ONE) for _ in range(8)]
        for client in clients:
            await client.__aenter__()
            await client.send(post(chat()))
        if held:
            await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 8})
            one.load = other.load = ready
        assert {(await client.answer()).status for client in clients} == {200}

        assert min(len(one.requests), len(other.requests)) >= 2
        for client in clients:
            client.leave()


async def test_what_is_held_goes_by_priority(start: StartSidecar, port: int) -> None:
    ready = LoadReport(health=Health.READY, boot="peer").encode()
    first = await start(_ONE)
    clients = [RawClient(port, _ONE) for _ in range(9)]  # a round has eight
    for count, client in enumerate(clients, 1):
        await client.__aenter__()
        name = b"interactive" if client is clients[-1] else b"batch"
        await client.send(post(chat(), extra=b"x-tidepool-priority: %b\r\n" % name))
        await until(lambda count=count: _counted(first, contract.METRIC_HELD) == {"": count})
    async with ScriptedEngine(address=(_TWO, port), load=ready) as peer:
        assert {(await client.answer()).status for client in clients} == {200}

    places = [seen.headers[b"x-tidepool-priority"] for seen in peer.requests]
    assert b"interactive" in places[:8]
    for client in clients:
        client.leave()


async def test_an_engine_that_is_found_gone_is_believed_gone_at_once(start: StartSidecar, port: int) -> None:
    async with ScriptedEngine() as well:
        async with ScriptedEngine() as engine:
            first = await start(_ONE, engine.url)
            await start(_TWO, well.url)
        async with RawClient(port, _ONE) as client:
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
    start: StartSidecar, port: int, script: Any
) -> None:
    async with ScriptedEngine(script) as engine, ScriptedEngine() as well:
        first = await start(_ONE, engine.url)
        await start(_TWO, well.url)
        body = chat(stream=True, stream_options={"include_usage": True})
        async with RawClient(port, _ONE) as client:
            answer = await client.ask(post(body))

        assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-2")
        assert well.requests[0].body == body
        assert well.requests[0].headers[b"x-request-id"] == answer.headers[b"x-request-id"]
        assert _counted(first, contract.METRIC_REQUESTS) == {'code="502",outcome="error"': 1}


async def test_a_sidecar_knows_itself_under_an_address_that_it_did_not_know(
    start: StartSidecar, port: int
) -> None:
    async def dies_once(seen: Seen) -> None:
        await (_dies if len(engine.requests) == 1 else answer_json)(seen)

    async with ScriptedEngine(dies_once) as engine:
        first = await start("0.0.0.0", engine.url)
        async with RawClient(port, "127.0.9.9") as client:
            assert (await client.ask(post(chat()))).status == 200

        assert len(engine.requests) == 2
        assert not _counted(first, contract.METRIC_HANDED_ON)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"settings": SidecarSettings(pool="pool", routing=Routing(retries=0))}, "the pool wants no retries"),
        ({"replay_bytes": 10}, "the body is not kept"),
    ],
)
async def test_what_ran_is_not_always_run_again(
    start: StartSidecar, port: int, more: dict[str, Any], why: str
) -> None:
    async with ScriptedEngine(_dies) as engine, ScriptedEngine() as well:
        await start(_ONE, engine.url, **more)
        await start(_TWO, well.url)
        async with RawClient(port, _ONE) as client:
            assert (await client.ask(post(chat()))).status == 502, why

        assert not well.requests


async def test_an_answer_of_the_engines_own_is_passed_on_whatever_it_says(start: StartSidecar, port: int) -> None:
    async def overloaded(seen: Seen) -> None:
        await seen.answer(b"{}", b"503 Service Unavailable")

    async with ScriptedEngine(overloaded) as engine, ScriptedEngine() as well:
        await start(_ONE, engine.url)
        await start(_TWO, well.url)
        async with RawClient(port, _ONE) as client:
            assert (await client.ask(post(chat()))).body == b"{}"

        assert not well.requests


@pytest.mark.parametrize("script", [_dies, None])
async def test_a_peer_that_is_not_what_it_said_is_passed_over(start: StartSidecar, port: int, script: Any) -> None:
    async def refuses(seen: Seen) -> None:
        await seen.answer(b"{}", b"503 Service Unavailable")

    idle = LoadReport(health=Health.READY, boot="liar").encode()
    liar = ScriptedEngine(script or refuses, address=(_THREE, port), load=idle)
    busy = LoadReport(health=Health.READY, boot="busy", held_tokens=1000).encode()
    async with liar, ScriptedEngine(answer_json, address=(_TWO, port), load=busy) as second:
        first = await start(_ONE)
        async with RawClient(port, _ONE) as client:
            assert (await client.ask(post(chat()))).status == 200

        assert (len(liar.requests), len(second.requests)) == (1, 1)
        assert second.requests[0].headers[b"x-tidepool-handed-on"] == b"1"
        assert _counted(first, contract.METRIC_HANDED_ON) == {'outcome="ok"': 1}


async def test_after_a_peer_failed_it_the_own_engine_may_still_serve_it_under_the_same_id(
    start: StartSidecar, port: int
) -> None:
    starting, ready = (
        LoadReport(health=health, boot="peer").encode() for health in (Health.STARTING, Health.READY)
    )

    async def dies(seen: Seen) -> None:
        peer.load = starting
        seen.reset()

    engine = ScriptedEngine()
    async with ScriptedEngine(dies, address=(_TWO, port), load=ready) as peer:
        async with engine:
            first = await start(_ONE, engine.url)
        async with RawClient(port, _ONE) as client:
            await client.send(post(chat()))
            await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 1})
            async with engine:
                answer = await client.answer()

    assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-1")
    assert peer.requests[0].headers[b"x-request-id"] == answer.headers[b"x-request-id"]


async def test_a_request_that_a_peer_may_be_running_goes_to_no_other(start: StartSidecar, port: int) -> None:
    async def hangs(seen: Seen) -> None:
        await asyncio.Event().wait()

    ready = LoadReport(health=Health.READY, boot="peer").encode()
    async with (
        ScriptedEngine(hangs, address=(_TWO, port), load=ready) as one,
        ScriptedEngine(hangs, address=(_THREE, port), load=ready) as other,
    ):
        await start(_ONE, first_byte_seconds=0.2)
        async with RawClient(port, _ONE) as client:
            assert (await client.ask(post(chat()))).status == 504

        assert len(one.requests) + len(other.requests) == 1


async def test_a_peer_that_dies_in_a_stream_ends_it_with_an_error(start: StartSidecar, port: int) -> None:
    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(_EVENT)
        seen.reset()

    ready = LoadReport(health=Health.READY, boot="peer").encode()
    async with ScriptedEngine(script, address=(_TWO, port), load=ready):
        first = await start(_ONE)
        async with RawClient(port, _ONE) as client:
            await client.send(post(chat(stream=True)))
            await client.head()
            assert await client.chunk() == _EVENT
            event = await client.chunk()
            assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
            assert b"[DONE]" not in await client.rest()

        assert _counted(first, contract.METRIC_HANDED_ON) == {'outcome="error"': 1}


async def test_a_client_that_leaves_ends_the_peers_work(start: StartSidecar, port: int) -> None:
    async def script(seen: Seen) -> None:
        await asyncio.Event().wait()

    async with ScriptedEngine(script) as engine:
        first = await start(_ONE)
        await start(_TWO, engine.url)
        async with RawClient(port, _ONE) as client:
            await client.send(post(chat()))
            seen = await engine.arrived.get()
        async with asyncio.timeout(5):
            await seen.closed.wait()

        await first.settled()
        assert _counted(first, contract.METRIC_HANDED_ON) == {'outcome="cancelled"': 1}


async def test_a_client_that_leaves_is_held_no_longer(start: StartSidecar, port: int) -> None:
    first = await start(_ONE)
    async with RawClient(port, _ONE) as client:
        await client.send(post(chat()))
        await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 1})
    await first.settled()

    assert _counted(first, contract.METRIC_HELD) == {"": 0}
    assert _counted(first, contract.METRIC_REQUESTS) == {'code="499",outcome="cancelled"': 1}


async def test_a_full_queue_is_relieved_by_a_peer_and_else_says_so(start: StartSidecar, port: int) -> None:
    async def script(seen: Seen) -> None:
        await asyncio.Event().wait()

    page = b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 5\n"
    async with ScriptedEngine(script, page=page) as engine, ScriptedEngine() as well:
        first = await start(_ONE, engine.url, settings=_routing(max_waiting=1))
        await until(lambda: first.state.watch.figures.waiting == 5)
        async with RawClient(port, _ONE) as waiting, RawClient(port, _ONE) as client:
            await waiting.send(post(chat()))
            await engine.arrived.get()
            answer = await client.ask(post(chat()))
            assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_full")
            assert b"connection" not in answer.headers

            await start(_TWO, well.url)
            async with asyncio.timeout(5):  # what peers said is shared for a moment
                while (answer := await client.ask(post(chat()))).status == 429:
                    pass
            assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-2")


async def test_while_dns_says_nothing_requests_are_held(start: StartSidecar, port: int) -> None:
    names: list[str] = []

    def lookup(_: str) -> Sequence[str]:
        if not names:
            raise OSError("no answer")
        return names

    async with ScriptedEngine() as engine:
        first = await start(_ONE, peers=lookup)
        await start(_TWO, engine.url)
        async with RawClient(port, _ONE) as client:
            await client.send(post(chat()))
            await until(lambda: _counted(first, contract.METRIC_HELD) == {"": 1})
            names.append(_TWO)
            assert (await client.answer()).status == 200


async def test_many_requests_share_the_questions(start: StartSidecar, port: int) -> None:
    ready = LoadReport(health=Health.READY, boot="peer").encode()
    async with ScriptedEngine(address=(_TWO, port), load=ready) as peer:
        await start(_ONE)
        clients = [RawClient(port, _ONE) for _ in range(40)]
        for client in clients:
            await client.__aenter__()
        answers = await asyncio.gather(*(client.ask(post(chat())) for client in clients))

        assert {answer.status for answer in answers} == {200}
        # A question has a connection of its own; without sharing there would be one for each request.
        assert peer.connections < 40 + 20
        for client in clients:
            client.leave()
