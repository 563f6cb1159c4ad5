"""The proxy does what its script says, and nothing else, before a server of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from faults.proxy import FaultProxy
from faults.script import Break, Cut, Expire, Fault, Lose, Mute, Refuse, Rule, Verb

pytestmark = [pytest.mark.traffic]  # whole proxies

POD = "/api/v1/namespaces/ns/pods/p"
WATCH = "/api/v1/namespaces/ns/pods?watch=true"


@asynccontextmanager
async def proxied(fault: Fault | None, verb: Verb) -> AsyncIterator[tuple[FaultProxy, list[str]]]:
    """A proxy before a server that has two events to tell; what reached the server."""
    reached: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        kind = request.headers.get("Content-Type", "-")
        reached.append(f"{request.method} {request.rel_url} {kind} {await request.text()}")
        if "watch" not in request.query:
            return web.json_response({"ok": True})
        out = web.StreamResponse()
        await out.prepare(request)
        for number in range(2):
            await out.write(json.dumps({"type": "ADDED", "object": number}).encode() + b"\n")
        return out

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made = Configuration()
    made.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    proxy = FaultProxy(made)
    await proxy.start()
    if fault is not None:
        proxy.add(Rule(fault, frozenset({verb})))
    try:
        yield proxy, reached
    finally:
        await proxy.down()
        await runner.cleanup()


async def ask(proxy: FaultProxy, method: str, path: str, body: str | None = "body") -> tuple[int, str]:
    """Status and text; 0 for a connection that broke, with what came before."""
    text = b""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.request(method, proxy.url + path, data=body) as answer:
                async with asyncio.timeout(0.3):
                    async for chunk in answer.content.iter_any():
                        text += chunk
                return answer.status, text.decode()
        except TimeoutError:
            return -1, text.decode()
        except aiohttp.ClientError:
            return 0, text.decode()


async def test_what_no_rule_takes_passes_unchanged() -> None:
    async with proxied(None, Verb.PATCH) as (proxy, reached):
        assert await ask(proxy, "PATCH", f"{POD}?fieldManager=me") == (200, '{"ok": true}')
        status, text = await ask(proxy, "GET", WATCH, None)

    assert reached[0] == f"PATCH {POD}?fieldManager=me text/plain; charset=utf-8 body"
    assert reached[1].startswith(f"GET {WATCH}"), "nothing is added"
    assert reached[1].endswith(" - ")
    assert (status, text.count("ADDED")) == (200, 2)
    assert [one.verb for one in proxy.log] == [Verb.PATCH, Verb.WATCH]


@pytest.mark.parametrize(
    ("fault", "status", "arrives", "why"),
    [
        (Refuse(409), 409, False, "answered in the server's stead"),
        (Lose(), 0, True, "carried out, and the answer lost"),
        (Break(), 0, False, "broken before it was done"),
    ],
)
async def test_a_write_meets_its_fault_once(fault: Fault, status: int, arrives: bool, why: str) -> None:
    async with proxied(fault, Verb.PATCH) as (proxy, reached):
        found, _ = await ask(proxy, "PATCH", POD)
        assert (found, bool(reached)) == (status, arrives), why
        assert (await ask(proxy, "PATCH", POD))[0] == 200


@pytest.mark.parametrize(
    ("fault", "expected", "events"),
    [(Mute(1), -1, ["ADDED"]), (Cut(1), 0, ["ADDED"]), (Expire(1), 200, ["ADDED", "ERROR"])],
)
async def test_a_watch_meets_its_fault_after_its_events(fault: Fault, expected: int, events: list[str]) -> None:
    async with proxied(fault, Verb.WATCH) as (proxy, _):
        status, text = await ask(proxy, "GET", WATCH)

    assert status == expected
    assert [json.loads(line)["type"] for line in text.splitlines()] == events


async def test_while_it_is_down_nobody_is_there_and_then_it_is_where_it_was() -> None:
    async with proxied(None, Verb.GET) as (proxy, _):
        port = proxy.port
        await proxy.down()
        with contextlib.suppress(aiohttp.ClientError):
            assert (await ask(proxy, "GET", POD))[0] == 0
        await proxy.start()

        assert proxy.port == port
        assert (await ask(proxy, "GET", POD))[0] == 200
