"""What a request's headers say of its place in a queue: priority, tenant, deadline."""

import asyncio
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.peers import ONE, TWO, counted
from scripted.routers import StartRouter, until
from scripted.upstreams import ScriptedEngine
from tidepool_api import contract
from tidepool_api.routing import Fleet
from tidepool_router.errors import Refused
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.proxy.begin import prioritised
from tidepool_router.wire.messages import Request

FACTS = RequestFacts(api=Api.CHAT, path="/v1/chat/completions", model="m")
PRIORITIES = {"interactive": 100, "batch": 0}


def asked(**headers: bytes) -> RequestFacts:
    request = Request(b"POST", b"/v1/chat/completions")
    request.special = {b"x-tidepool-" + name.encode(): value for name, value in headers.items()}
    return prioritised(FACTS, request, PRIORITIES)


def test_a_request_that_says_nothing_keeps_its_facts() -> None:
    assert asked() is FACTS


@pytest.mark.parametrize(
    ("text", "seconds", "why"),
    [
        (b"30", 30.0, "seconds are what most will write"),
        (b"2.5s", 2.5, "as durations are written in a ModelPool"),
        (b"1500ms", 1.5, "as durations are written in a ModelPool"),
        (b" 1m ", 60.0, "spaces around a value mean nothing"),
    ],
)
def test_a_deadline_is_read(text: bytes, seconds: float, why: str) -> None:
    assert asked(deadline=text).deadline_seconds == seconds, why


@pytest.mark.parametrize("text", [b"soon", b"-1", b"0", b"1e3", b"2d", b"99999999", b"nan", b"", b"1" * 5000])
def test_a_deadline_that_is_none_is_refused_with_the_way_to_write_it(text: bytes) -> None:
    with pytest.raises(Refused, match=r"x-tidepool-deadline.*write it like 30, 2.5s or 1500ms") as caught:
        asked(deadline=text)

    assert caught.value.refusal.status == 400
    assert len(caught.value.refusal.message) < 250


def test_priority_and_tenant_are_read_beside_it() -> None:
    facts = asked(priority=b"interactive", tenant=b"acme", deadline=b"5")

    assert (facts.priority, facts.tenant, facts.deadline_seconds) == (100, "acme", 5.0)


def test_an_unknown_priority_changes_nothing() -> None:
    assert asked(priority=b"urgent").priority == 0


def test_a_tenants_name_is_bounded() -> None:
    assert asked(tenant=b"x" * 60_000).tenant == "x" * 128


_DEADLINE = b"x-tidepool-deadline: 20s\r\n"


def seconds_left(engine: ScriptedEngine) -> float:
    (seen,) = engine.requests
    return float(seen.headers[b"x-tidepool-deadline"])


async def test_time_in_the_gateways_queue_is_taken_off_the_deadline(gateway: Any) -> None:
    router = await gateway(wakes=True)
    pool = router.state.pools["default/pool"]
    async with ScriptedEngine() as engine, RawClient(router.port) as client:
        await client.send(post(chat(), extra=_DEADLINE))
        await until(lambda: pool.queue.held == 1)
        await asyncio.sleep(0.1)  # what is taken off is time itself
        router.state.apply(Fleet(pools=(pool.config.model_copy(update={"endpoints": (engine.url,)}),)))
        answer = await client.answer()

        assert answer.status == 200
        assert 15 < seconds_left(engine) <= 20 - int(answer.headers[b"x-tidepool-queue-ms"]) / 1000 + 0.002
        assert seconds_left(engine) <= 19.9


async def test_a_request_that_is_not_held_keeps_its_deadline_as_it_was_written(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url)
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat(), extra=_DEADLINE))).status == 200

        assert engine.requests[0].headers[b"x-tidepool-deadline"] == b"20s"


async def test_time_with_a_sidecar_that_hands_on_is_taken_off_the_deadline(
    member: StartRouter, pool_port: int
) -> None:
    async with ScriptedEngine() as engine:
        first = await member(ONE)
        async with RawClient(pool_port, ONE) as client:
            await client.send(post(chat(), extra=_DEADLINE))
            await until(lambda: counted(first, contract.METRIC_HELD) == {"": 1})
            await asyncio.sleep(0.1)  # what is taken off is time itself
            await member(TWO, engine.url)
            assert (await client.answer()).status == 200

        assert 15 < seconds_left(engine) <= 19.9
