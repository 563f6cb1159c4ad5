"""What a scrape tells of requests that ended: each once, under its pool and its outcome."""

import asyncio
import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.peers import counted
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api import contract
from tidepool_api.routing import Fleet, FleetPool, Queue, Routing

OK, REFUSED = 'pool="default/pool",outcome="ok"', 'pool="default/pool",outcome="refused"'


def event(content: str | None, usage: dict[str, int] | None = None) -> bytes:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


async def three_tokens(seen: Seen) -> None:
    await seen.begin_stream()
    for token in ("a", "b", "c"):
        await seen.chunk(event(token))
        await asyncio.sleep(0.02)
    await seen.chunk(event(None, {"prompt_tokens": 5, "completion_tokens": 3}) + b"data: [DONE]\n\n")
    await seen.chunk(b"")


async def refuse(seen: Seen) -> None:
    await seen.answer(b'{"error":{}}', b"400 Bad Request")


async def test_a_stream_is_in_each_histogram_of_its_pool_and_outcome_once(gateway: Any) -> None:
    async with ScriptedEngine(three_tokens) as engine:
        router = await gateway(engine.url)
        async with RawClient(router.port) as client:
            await client.ask(post(chat(stream=True)))
        await router.settled()

    assert counted(router, contract.METRIC_GATEWAY_REQUESTS) == {'pool="default/pool",code="200",outcome="ok"': 1}
    for name in (contract.METRIC_TTFT, contract.METRIC_TPOT, contract.METRIC_REQUEST_TIME):
        assert counted(router, f"{name}_count") == {OK: 1}, name
    each = counted(router, f"{contract.METRIC_TPOT}_sum")[OK]
    assert 0.02 <= each <= counted(router, f"{contract.METRIC_REQUEST_TIME}_sum")[OK] / 2


@pytest.mark.parametrize("role", ["gateway", "sidecar"])
async def test_an_answer_that_is_an_error_has_no_first_token(role: str, gateway: Any, sidecar: Any) -> None:
    async with ScriptedEngine(refuse) as engine:
        router = await (gateway if role == "gateway" else sidecar)(engine.url)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))
        await router.settled()

    assert answer.status == 400
    assert not any(counted(router, f"{contract.METRIC_TTFT}_count").values())
    assert sum(counted(router, f"{contract.METRIC_REQUEST_TIME}_count").values()) == 1


async def test_what_no_pool_is_found_for_is_counted_without_one(gateway: Any) -> None:
    router = await gateway()
    async with RawClient(router.port) as client:
        await client.ask(post(chat("gpt-9")))
        await client.ask(post(b"{"))
        await client.ask(post(b"{}", b"/v1/load_lora_adapter"))

    assert counted(router, contract.METRIC_GATEWAY_REQUESTS) == {
        'pool="",code="404",outcome="refused"': 1,
        'pool="",code="400",outcome="refused"': 1,
        'pool="",code="403",outcome="refused"': 1,
    }


async def test_time_in_the_queue_counts_for_those_who_waited_whatever_became_of_them(gateway: Any) -> None:
    router = await gateway(wakes=True, routing=Routing(queue=Queue(timeout="10s", cold_start_timeout="300ms")))
    pool = router.state.pools["default/pool"]
    async with RawClient(router.port) as client:
        refused = await client.ask(post(chat()))
    assert refused.status == 503
    assert counted(router, f"{contract.METRIC_QUEUE_TIME}_sum")[REFUSED] >= 0.3

    async with RawClient(router.port) as client:
        await client.send(post(chat()))
        await until(lambda: pool.queue.held == 1)
    await router.settled()
    async with ScriptedEngine() as engine, RawClient(router.port) as client:
        await client.send(post(chat()))
        await until(lambda: pool.queue.held == 1)
        router.state.apply(Fleet(pools=(pool.config.model_copy(update={"endpoints": (engine.url,)}),)))
        assert (await client.answer()).status == 200
        assert (await client.ask(post(chat()))).status == 200  # this one did not wait

    assert counted(router, f"{contract.METRIC_QUEUE_TIME}_count") == {
        REFUSED: 1,
        'pool="default/pool",outcome="cancelled"': 1,
        OK: 1,
    }


async def test_the_ledgers_sums_are_on_the_page_and_end_at_zero(gateway: Any) -> None:
    go = asyncio.Event()

    async def hold(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(event("a"))
        await go.wait()
        await seen.chunk(b"data: [DONE]\n\n")
        await seen.chunk(b"")

    async with ScriptedEngine(hold) as engine:
        router = await gateway(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat(stream=True)))
            await client.until(b"data:")
            phases = counted(router, contract.METRIC_LEDGER_REQUESTS)
            tokens = counted(router, contract.METRIC_LEDGER_TOKENS)
            go.set()
            await client.until(b"[DONE]")
        await router.settled()

    assert phases == {'pool="default/pool",phase="prefill"': 0, 'pool="default/pool",phase="decode"': 1}
    assert tokens['pool="default/pool",kind="held"'] > 0
    assert not any(counted(router, contract.METRIC_LEDGER_TOKENS).values())


async def test_a_pool_that_is_gone_leaves_no_series_even_when_its_last_request_ends_later(gateway: Any) -> None:
    go = asyncio.Event()

    async def hold(seen: Seen) -> None:
        await go.wait()
        await seen.answer()

    async with ScriptedEngine(hold) as engine:
        router = await gateway(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await engine.arrived.get()
            router.state.apply(Fleet(pools=(FleetPool(name="default/other", models=("other",)),)))
            go.set()
            assert (await client.answer()).status == 200
        await router.settled()

    assert b"default/pool" not in router.state.metrics.registry.render()
