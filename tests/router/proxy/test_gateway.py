"""What only the gateway does: names of models, holding requests for a pool that wakes."""

import asyncio
from typing import Any

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import Fleet, FleetPool, Queue, Routing


async def test_models_of_all_pools_with_their_aliases(gateway: Any) -> None:
    router = await gateway()
    pools = [FleetPool(name="a/x", models=("m", "n")), FleetPool(name="b/y", models=("o",))]
    router.state.apply(Fleet(pools=tuple(pools)))
    async with RawClient(router.port) as client:
        answer = await client.ask(b"GET /v1/models HTTP/1.1\r\n\r\n")

    assert [card["id"] for card in answer.json()["data"]] == ["m", "n", "o"]


async def test_an_unknown_model_is_404_and_the_known_ones_are_named(gateway: Any) -> None:
    router = await gateway()
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat("gpt-9")))
        messages = await client.ask(post(chat("gpt-9"), b"/v1/messages"))
        nameless = await client.ask(post(b"{}"))

    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (404, "model_not_found")
    assert all(name in error["message"] for name in ("gpt-9", "tiny", "alias"))
    assert messages.json()["error"]["type"] == "not_found_error"
    assert (nameless.status, nameless.json()["error"]["code"]) == (400, "missing_model")
    assert "tiny" in nameless.json()["error"]["message"]


async def test_requests_for_a_pool_at_zero_are_held_until_a_pod_comes(gateway: Any) -> None:
    router = await gateway(wakes=True)
    pool = router.state.pools["default/pool"]
    async with ScriptedEngine() as engine, RawClient(router.port) as client:
        await client.send(post(chat()))
        await until(lambda: pool.queue.held == 1)
        config = pool.config.model_copy(update={"endpoints": (engine.url,)})
        router.state.apply(Fleet(pools=(config,)))
        answer = await client.answer()

    assert answer.status == 200
    assert int(answer.headers[b"x-tidepool-queue-ms"]) > 0


async def test_a_request_that_meets_the_death_of_the_only_pod_is_held_until_it_is_back(gateway: Any) -> None:
    engine = ScriptedEngine()
    async with engine:
        router = await gateway(engine.url)
    pool = router.state.pools["default/pool"]
    async with RawClient(router.port) as client:
        await client.send(post(chat()))
        await until(lambda: pool.queue.held == 1)
        assert pool.in_flight == 0
        async with engine:
            answer = await client.answer()

    assert answer.status == 200
    assert int(answer.headers[b"x-tidepool-queue-ms"]) > 0


async def test_a_request_whose_only_pod_stays_dead_is_held_no_longer_than_the_queue_allows(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url, routing=Routing(queue=Queue(timeout="300ms")))
    (pod,) = router.state.pools["default/pool"].pods.values()
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat()))

    assert pod.ledger.sums().late_calls_total == 0

    assert (answer.status, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert answer.headers[b"retry-after"]


async def test_what_is_held_is_bounded_in_number_and_time(gateway: Any) -> None:
    queue = Queue(max_waiting=2, timeout="300ms", cold_start_timeout="300ms")
    router = await gateway(wakes=True, routing=Routing(queue=queue))
    clients = [RawClient(router.port) for _ in range(3)]
    for client in clients:
        await client.__aenter__()
        await client.send(post(chat()))
    answers = await asyncio.gather(*(client.answer() for client in clients))

    assert sorted(answer.status for answer in answers) == [429, 503, 503]
    assert all(answer.headers[b"retry-after"] for answer in answers)
    for client in clients:
        client.leave()


async def test_a_pool_without_pods_that_nothing_wakes_is_503_at_once(gateway: Any) -> None:
    router = await gateway()
    async with RawClient(router.port) as client:
        answer = await client.ask(post(chat()))

    assert (answer.status, answer.json()["error"]["code"]) == (503, "no_pods")


async def test_requests_are_spread_over_the_pods(gateway: Any) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as other:
        router = await gateway(one.url, other.url)
        async with RawClient(router.port) as client:
            for _ in range(20):
                await client.ask(post(chat()))

        assert len(one.requests) >= 5
        assert len(other.requests) >= 5


async def test_bodies_of_all_requests_are_bounded_in_sum(gateway: Any) -> None:
    router = await gateway(wakes=True, max_bodies_bytes=5000)
    pool = router.state.pools["default/pool"]
    async with RawClient(router.port) as held, RawClient(router.port) as client:
        await held.send(post(chat(filler="x" * 3000)))
        await until(lambda: pool.queue.held == 1)
        answer = await client.ask(post(chat(filler="x" * 3000)))

    assert (answer.status, answer.json()["error"]["code"]) == (503, "router_full")


async def test_bodies_that_are_still_on_their_way_count_as_well(gateway: Any) -> None:
    router = await gateway(wakes=True, max_bodies_bytes=5000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n"
    async with RawClient(router.port) as slow, RawClient(router.port) as other:
        await slow.send(head + b"x" * 3000)
        await until(lambda: router.services.bodies_bytes == 3000)
        answer = await other.ask(head + b"x" * 3000)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "router_full")
        assert answer.headers[b"connection"] == b"close"
        assert await other.rest() == b""
        assert router.services.bodies_bytes == 3000
    await until(lambda: router.services.bodies_bytes == 0)


async def test_the_load_on_an_answer_is_believed_before_the_next_report(gateway: Any) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(extra=b"x-tidepool-load: bare;1000;7;0;0;0;0;0;0\r\n")

    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url)
        (pod,) = router.state.pools["default/pool"].pods.values()
        async with RawClient(router.port) as client:
            await client.ask(post(chat()))
            assert pod.report.running == 7


async def test_the_scores_of_a_pick_are_told_only_where_the_gateway_allows_it(gateway: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await gateway(engine.url)
        pool = router.state.pools["default/pool"]
        await until(lambda: any(pod.reachable for pod in pool.pods.values()))
        asks = post(chat(), b"/v1/chat/completions", b"x-tidepool-debug: scores\r\n")
        async with RawClient(router.port) as client:
            closed = await client.ask(asks)
            pool.explains = True
            told = await client.ask(asks)
            unasked = await client.ask(post(chat()))

    assert b"x-tidepool-scores" not in closed.headers
    assert b"x-tidepool-scores" not in unasked.headers
    assert b"harm=" in told.headers[b"x-tidepool-scores"]
    assert all(b"x-tidepool-debug" not in seen.head for seen in engine.requests)
