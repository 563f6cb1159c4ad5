"""Requests that wait at a sidecar until its engine has room, and how an engine is told their priority."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.peers import counted
from scripted.routers import RunningRouter, start_gateway, until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api import contract
from tidepool_api.routing import Queue, Routing, SidecarSettings

PRIORITIES = {"interactive": 100, "batch": 0, "nightly": -20}


def settings(*, engine_priority: bool = False, **queue: Any) -> SidecarSettings:
    routing = Routing(queue=Queue(**queue), priorities=PRIORITIES)
    return SidecarSettings(pool="pool", routing=routing, engine_priority=engine_priority)


def page(running: int, waiting: int) -> bytes:
    return b"vllm:num_requests_running %d\nvllm:num_requests_waiting %d\n" % (running, waiting)


class OneAtATime:
    """An engine that runs one request at once, as its page says; each ends when the test lets it."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.may_end = asyncio.Semaphore(0)
        self.engine = ScriptedEngine(self.serve, page=page(1, 9))

    async def serve(self, seen: Seen) -> None:
        self.seen.append(seen)
        await self.may_end.acquire()
        await seen.answer()

    @property
    def users(self) -> list[str]:
        """Who asked, in the order in which the engine was asked."""
        return [json.loads(seen.body)["user"] for seen in self.seen]


async def full(start: Callable[..., Any], one: OneAtATime, **more: Any) -> RunningRouter:
    """A sidecar that knows that its engine runs one request at once, and has sent it that and two more."""
    router: RunningRouter = await start(one.engine.url, **more)
    await until(lambda: router.state.watch.figures.waiting == 9)
    router.state.waiting.room.looked(router.state.waiting.sent(), 1, 9, None, None)
    router.state.waiting.room.looked(router.state.waiting.sent(), 1, 9, None, None)
    router.state.watch.figures = type(router.state.watch.figures)(running=1, waiting=0)
    return router


async def test_what_the_engine_would_only_queue_waits_here_and_goes_by_priority(sidecar: Any) -> None:
    one = OneAtATime()
    async with one.engine:
        router = await full(sidecar, one, settings=settings())
        clients = [RawClient(router.port) for _ in range(6)]
        for client in clients:
            await client.__aenter__()
        for number, client in enumerate(clients[:3]):
            await client.send(post(chat(user=f"first-{number}")))
        await until(lambda: len(one.seen) == 3)
        for client, priority in zip(clients[3:], ("nightly", "batch", "interactive"), strict=True):
            extra = b"x-tidepool-priority: %b\r\n" % priority.encode()
            await client.send(post(chat(user=priority), extra=extra))
        await until(lambda: router.state.waiting.queue.held == 3)

        report = router.state.report()
        assert (report.held, report.limit) == (3, 3)
        assert report.running + report.waiting == 6
        assert counted(router, contract.METRIC_WAITING)[""] >= 3

        for ended in range(1, 7):
            one.may_end.release()
            await until(lambda ended=ended: len(one.seen) == min(6, 3 + ended))
        assert [(await client.answer()).status for client in clients] == [200] * 6
        assert one.users[3:] == ["interactive", "batch", "nightly"]
        for client in clients:
            client.leave()


@pytest.mark.parametrize("end", ["served", "left", "late"])
async def test_of_those_that_wait_gateways_are_told_how_many_came_by_none(sidecar: Any, end: str) -> None:
    one = OneAtATime()
    async with one.engine:
        router = await full(sidecar, one, settings=settings(timeout="1s" if end == "late" else "60s"))
        clients = [RawClient(router.port) for _ in range(6)]
        for client in clients:
            await client.__aenter__()
        for client in clients[:3]:
            await client.send(post(chat(user="runs")))
        await until(lambda: len(one.seen) == 3)
        assert router.state.report().held_direct == 0
        for client, extra in zip(clients[3:], (b"", b"", b"x-tidepool-gateway: 1\r\n"), strict=True):
            await client.send(post(chat(user="waits"), extra=extra))
        await until(lambda: router.state.waiting.queue.held == 3)

        report = router.state.report()
        assert (report.held, report.held_direct) == (3, 2)
        if end == "left":
            for client in clients[3:]:
                client.leave()
        elif end == "served":
            for _ in range(6):
                one.may_end.release()
        await until(lambda: router.state.waiting.queue.held == 0)
        await until(lambda: router.state.report().held_direct == 0)
        for _ in range(3):
            one.may_end.release()
        for client in clients[: 3 if end == "left" else 6]:
            assert (await client.answer()).status == (503 if end == "late" and client in clients[3:] else 200)
            client.leave()


async def test_whoever_comes_by_a_gateway_is_served_beside_those_who_always_wait_at_the_pod(sidecar: Any) -> None:
    """Callers of the pool's own Service come again as soon as they are answered: the pod is never without some."""
    one = OneAtATime()
    async with one.engine:
        router = await full(sidecar, one, settings=settings())
        gateway = await start_gateway(f"http://127.0.0.1:{router.port}")

        async def come_again(port: int, user: str) -> None:
            async with RawClient(port) as client:
                while True:
                    assert (await client.ask(post(chat(user=user)))).status == 200

        direct = [asyncio.create_task(come_again(router.port, "direct")) for _ in range(8)]
        await until(lambda: router.state.waiting.queue.held == 5)
        by_gateway = [asyncio.create_task(come_again(gateway.port, "gateway")) for _ in range(8)]
        try:
            for asked in range(4, 64):
                one.may_end.release()
                await until(lambda asked=asked: len(one.seen) >= asked)
        finally:
            for task in (*direct, *by_gateway):
                task.cancel()
            await asyncio.gather(*direct, *by_gateway, return_exceptions=True)
            for _ in range(20):
                one.may_end.release()
            await gateway.stop()

        assert one.users.count("gateway") >= 8, "one in eight of sixty at least; it was the first one alone"


async def test_a_client_that_leaves_while_its_request_waits_leaves_nothing(sidecar: Any) -> None:
    one = OneAtATime()
    async with one.engine:
        router = await full(sidecar, one, settings=settings())
        async with RawClient(router.port) as a, RawClient(router.port) as b, RawClient(router.port) as c:
            for client in (a, b, c):
                await client.send(post(chat(user="runs")))
            await until(lambda: len(one.seen) == 3)
            async with RawClient(router.port) as leaver:
                await leaver.send(post(chat(user="leaves")))
                await until(lambda: router.state.waiting.queue.held == 1)
            await until(lambda: router.state.waiting.queue.held == 0)
            for _ in range(3):
                one.may_end.release()
            assert [(await client.answer()).status for client in (a, b, c)] == [200] * 3

        assert one.users == ["runs"] * 3
        assert counted(router, contract.METRIC_REQUESTS)['code="499",outcome="cancelled"'] == 1


@pytest.mark.parametrize(
    ("queue", "extra", "status", "code", "why"),
    [
        ({"max_waiting": 0}, b"", 429, "queue_full", "nobody may wait"),
        ({"max_bytes": "10"}, b"", 429, "queue_full", "no body may"),
        ({"timeout": "1s"}, b"", 503, "queue_timeout", "it may wait as long as the pool lets it"),
        ({}, b"x-tidepool-deadline: 1\r\n", 503, "queue_timeout", "or as long as it lets itself"),
    ],
)
async def test_who_cannot_wait_is_told_when_to_come_back(
    sidecar: Any, queue: dict[str, Any], extra: bytes, status: int, code: str, why: str
) -> None:
    one = OneAtATime()
    async with one.engine:
        router = await full(sidecar, one, settings=settings(**queue))
        async with RawClient(router.port) as a, RawClient(router.port) as b, RawClient(router.port) as c:
            for client in (a, b, c):
                await client.send(post(chat(user="runs")))
            await until(lambda: len(one.seen) == 3)
            async with RawClient(router.port) as client:
                answer = await client.ask(post(chat(user="waits"), extra=extra))
            for _ in range(3):
                one.may_end.release()
            assert [(await client.answer()).status for client in (a, b, c)] == [200] * 3

        assert (answer.status, answer.json()["error"]["code"]) == (status, code), why
        assert int(answer.headers[b"retry-after"]) >= 1
        assert sum(counted(router, contract.METRIC_REFUSED).values()) == 1
        assert one.users == ["runs"] * 3


async def test_who_waits_when_the_engine_goes_hears_it(sidecar: Any) -> None:
    one = OneAtATime()
    async with one.engine:
        router = await full(sidecar, one, settings=settings())
        async with RawClient(router.port) as a, RawClient(router.port) as b, RawClient(router.port) as c:
            for client in (a, b, c):
                await client.send(post(chat(user="runs")))
            await until(lambda: len(one.seen) == 3)
            async with RawClient(router.port) as client:
                await client.send(post(chat(user="waits")))
                await until(lambda: router.state.waiting.queue.held == 1)
                router.state.engine_gone("it has been stopped")
                assert (await client.answer()).status == 503
            for _ in range(3):
                one.may_end.release()
            for client in (a, b, c):
                await client.answer()


@pytest.mark.parametrize(
    ("header", "body", "sent", "why"),
    [
        (b"interactive", b'{ "model":"m" }', b'{"priority":-100, "model":"m" }', "vLLM serves the lowest first"),
        (b"nightly", b'{"model":"m"}', b'{"priority":20,"model":"m"}', "below zero is later"),
        (b"batch", b'{ "model" : "m" }', None, "0 is what the engine takes for none"),
        (None, b'{"model":"m","messages":[{"priority":-9}]}', None, "nobody asked for anything"),
        (None, b'{"priority": -9, "model":"m"}', b'{"priority": 0, "model":"m"}', "it would go before all"),
        (None, b'{"priority": 9, "model":"m"}', None, "a client may put its own request back"),
        (b"interactive", b'{"priority":-200,"model":"m"}', b'{"priority":-100,"model":"m"}', "not beyond its own"),
        (b"interactive", b'{"priority":5,"model":"m"}', None, "a client may put its own request back"),
        (None, b'{"model":"m","priority":"-9"}', b'{"model":"m","priority":0}', "engines read that as a number"),
        (
            b"nightly",
            b'{"priority":1,"m":"\\"","pri\\u006frity":-7}',
            b'{"priority":20,"m":"\\"","pri\\u006frity":20}',
            "of equal names the last one counts",
        ),
    ],
)
async def test_the_engine_is_told_the_priority(
    sidecar: Any, header: bytes | None, body: bytes, sent: bytes | None, why: str
) -> None:
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url, settings=settings(engine_priority=True))
        async with RawClient(router.port) as client:
            extra = b"" if header is None else b"x-tidepool-priority: %b\r\n" % header
            await client.ask(post(body, extra=extra))

        assert engine.requests[0].body == (body if sent is None else sent), why


@pytest.mark.parametrize(
    ("engine_priority", "path", "why"),
    [
        (False, b"/v1/chat/completions", "an engine that schedules first come, first served refuses it"),
        (True, b"/tokenize", "its request has no such field"),
    ],
)
async def test_other_bodies_stay_as_they_are(sidecar: Any, engine_priority: bool, path: bytes, why: str) -> None:
    async with ScriptedEngine() as engine:
        router = await sidecar(engine.url, settings=settings(engine_priority=engine_priority))
        async with RawClient(router.port) as client:
            await client.ask(post(b'{"model":"m"}', path, b"x-tidepool-priority: interactive\r\n"))

        assert engine.requests[0].body == b'{"model":"m"}', why
