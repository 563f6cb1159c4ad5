"""Traffic of a pool over sockets: rules, shares, copies, fallback, classifiers."""

import asyncio
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.load import Health
from tidepool_api.routing import Fleet, FleetPool, Queue, Routing
from tidepool_api.traffic import Traffic
from tidepool_router.workflow.hosts import Hosts


def pool(name: str, *endpoints: str, **more: Any) -> FleetPool:
    return FleetPool(name=name, models=(f"{name}-model",), endpoints=endpoints, **more)


def traffic(**fields: Any) -> Traffic:
    return Traffic.model_validate(fields)


def page(router: Any) -> str:
    text: bytes = router.state.metrics.registry.render()
    return text.decode()


async def test_a_rule_sends_a_request_to_another_pool_under_its_model(gateway: Any) -> None:
    rules = [{"name": "high", "when": {"parameters": [{"name": "effort", "values": ["high"]}]}, "pool": "big"}]
    async with ScriptedEngine() as own, ScriptedEngine() as big:
        router = await gateway(own.url, traffic=traffic(rules=rules), others=(pool("big", big.url),))
        async with RawClient(router.port) as client:
            plain = await client.ask(post(chat("alias")))
            high = await client.ask(post(chat("alias", effort="high")))

    assert (plain.headers[b"x-tidepool-pool"], high.headers[b"x-tidepool-pool"]) == (b"default/pool", b"big")
    assert json.loads(own.requests[0].body)["model"] == "tiny"
    assert json.loads(big.requests[0].body) == json.loads(chat("big-model", effort="high"))
    assert 'tidepool_gateway_routed_total{pool="default/pool",to="big",reason="rule:high"} 1' in page(router)


async def test_a_canary_that_serves_the_same_name_does_not_take_it(gateway: Any) -> None:
    canary = FleetPool(name="a-canary", models=("shared",), wakes=True)
    async with ScriptedEngine() as own:
        router = await gateway()
        split = traffic(split=[{"pool": "a-canary", "percent": 0}])
        owner = FleetPool(name="b-owner", models=("shared",), endpoints=(own.url,), traffic=split)
        router.state.apply(Fleet(pools=(canary, owner)))
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat("shared")))

    assert (answer.status, answer.headers[b"x-tidepool-pool"]) == (200, b"b-owner")


async def test_shares_go_by_session(gateway: Any) -> None:
    split = [{"pool": "next", "percent": 50}]
    async with ScriptedEngine() as own, ScriptedEngine() as canary:
        router = await gateway(own.url, traffic=traffic(split=split), others=(pool("next", canary.url),))
        seen: dict[int, set[bytes]] = {}
        async with RawClient(router.port) as client:
            for number in range(60):
                extra = b"x-tidepool-session: s%d\r\n" % (number % 20)
                answer = await client.ask(post(chat(), extra=extra))
                seen.setdefault(number % 20, set()).add(answer.headers[b"x-tidepool-pool"])

    assert all(len(pools) == 1 for pools in seen.values())
    assert set.union(*seen.values()) == {b"default/pool", b"next"}


async def test_without_a_session_shares_go_by_the_id_that_the_client_is_told(gateway: Any) -> None:
    split = [{"pool": "next", "percent": 50}]
    async with ScriptedEngine() as own, ScriptedEngine() as canary:
        router = await gateway(own.url, traffic=traffic(split=split), others=(pool("next", canary.url),))
        async with RawClient(router.port) as client:
            for _ in range(20):
                first = await client.ask(post(chat()))
                again = await client.ask(
                    post(chat(), extra=b"x-request-id: %b\r\n" % first.headers[b"x-request-id"])
                )
                assert again.headers[b"x-tidepool-pool"] == first.headers[b"x-tidepool-pool"]

    assert own.requests
    assert canary.requests


async def test_a_copy_goes_elsewhere_and_its_answer_to_nobody(gateway: Any) -> None:
    async def other(seen: Seen) -> None:
        await seen.answer(b'{"other": true}')

    async with ScriptedEngine() as own, ScriptedEngine(other) as copies:
        mirror = traffic(mirror={"pool": "next"})
        router = await gateway(own.url, traffic=mirror, others=(pool("next", copies.url),))
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))
        copy = await asyncio.wait_for(copies.arrived.get(), 20)
        await router.settled()

    assert b"other" not in answer.body
    assert json.loads(copy.body)["model"] == "next-model"
    assert json.loads(own.requests[0].body)["model"] == "tiny"
    assert copy.headers[b"x-request-id"] == answer.headers[b"x-request-id"]
    assert 'tidepool_gateway_mirrored_total{pool="default/pool",outcome="ok"} 1' in page(router)


async def test_a_pool_of_copies_that_hangs_or_fails_costs_the_client_nothing(gateway: Any) -> None:
    async def hang(seen: Seen) -> None:
        await seen.closed.wait()

    async with ScriptedEngine() as own, ScriptedEngine(hang) as copies:
        mirror = traffic(mirror={"pool": "next"})
        router = await gateway(own.url, traffic=mirror, others=(pool("next", copies.url),))
        async with RawClient(router.port) as client:
            for _ in range(5):
                assert (await client.ask(post(chat()))).status == 200
        for _ in range(5):
            await asyncio.wait_for(copies.arrived.get(), 20)
    await router.settled()

    assert 'tidepool_gateway_mirrored_total{pool="default/pool",outcome="error"} 5' in page(router)


async def test_copies_that_no_pod_takes_at_once_are_dropped(gateway: Any) -> None:
    async with ScriptedEngine() as own:
        mirror = traffic(mirror={"pool": "next"})
        router = await gateway(own.url, traffic=mirror, others=(pool("next", wakes=True),))
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat()))).status == 200

    assert router.state.pools["next"].queue.held == 0
    assert 'mirrored_total{pool="default/pool",outcome="no_pod"} 1' in page(router)


async def test_a_pool_without_pods_falls_back(gateway: Any) -> None:
    async with ScriptedEngine() as small:
        fallback = traffic(fallback=["gone", "empty", "small"])
        router = await gateway(traffic=fallback, others=(pool("small", small.url), pool("empty")))
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))

    assert (answer.status, answer.headers[b"x-tidepool-pool"]) == (200, b"small")
    assert json.loads(small.requests[0].body)["model"] == "small-model"
    assert 'routed_total{pool="default/pool",to="small",reason="fallback"} 1' in page(router)


async def test_a_pool_at_zero_that_wakes_is_waited_for(gateway: Any) -> None:
    async with ScriptedEngine() as small:
        router = await gateway(wakes=True, traffic=traffic(fallback=["small"]), others=(pool("small", small.url),))
        held = router.state.pools["default/pool"].queue
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await until(lambda: held.held == 1)

    assert not small.requests


async def test_a_request_whose_last_pod_dies_falls_back_at_once(gateway: Any) -> None:
    async with ScriptedEngine() as small:
        async with ScriptedEngine() as own:
            router = await gateway(
                own.url, traffic=traffic(fallback=["small"]), others=(pool("small", small.url),)
            )
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))

    assert (answer.status, answer.headers[b"x-tidepool-pool"]) == (200, b"small")


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"503 Service Unavailable"])
async def test_a_pod_that_is_over_its_queue_falls_back_and_only_then_says_so(gateway: Any, status: bytes) -> None:
    async def full(seen: Seen) -> None:
        await seen.answer(b'{"error": "full"}', status)

    async with ScriptedEngine(full) as own, ScriptedEngine() as small, ScriptedEngine(full) as third:
        both = (pool("small", small.url), pool("third", third.url))
        router = await gateway(own.url, traffic=traffic(fallback=["small"]), others=both)
        async with RawClient(router.port) as client:
            served = await client.ask(post(chat()))
        small.script = full
        async with RawClient(router.port) as client:
            refused = await client.ask(post(chat()))

    assert (served.status, served.headers[b"x-tidepool-pool"]) == (200, b"small")
    assert refused.status == int(status[:3])


async def test_a_request_that_the_model_refuses_stays_refused(gateway: Any) -> None:
    async def bad(seen: Seen) -> None:
        await seen.answer(b'{"error": "bad"}', b"400 Bad Request")

    async with ScriptedEngine(bad) as own, ScriptedEngine() as small:
        router = await gateway(own.url, traffic=traffic(fallback=["small"]), others=(pool("small", small.url),))
        async with RawClient(router.port) as client:
            assert (await client.ask(post(chat()))).status == 400

    assert not small.requests


async def test_a_full_queue_falls_back(gateway: Any) -> None:
    async with ScriptedEngine() as small:
        routing = Routing(queue=Queue(max_waiting=0))
        router = await gateway(
            wakes=True, routing=routing, traffic=traffic(fallback=["small"]), others=(pool("small", small.url),)
        )
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))

    assert (answer.status, answer.headers[b"x-tidepool-pool"]) == (200, b"small")


async def test_a_stream_that_has_begun_does_not_fall_back(gateway: Any) -> None:
    async def die(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        seen.reset()

    async with ScriptedEngine(die) as own, ScriptedEngine() as small:
        router = await gateway(own.url, traffic=traffic(fallback=["small"]), others=(pool("small", small.url),))
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat(stream=True)))

    assert b"error" in answer.body
    assert not small.requests


def classifier(url: str, timeout: str = "2s") -> Traffic:
    ask = {"url": f"{url}/route", "timeout": timeout, "classes": [{"name": "hard", "pool": "big"}]}
    return traffic(rules=[{"name": "ask", "classifier": ask}, {"name": "rest", "pool": "small"}])


def at(judge: ScriptedEngine) -> tuple[str, ...]:
    """What allows a gateway to ask it."""
    return (f"127.0.0.1:{judge.port}",)


async def test_a_classifier_that_nobody_allowed_is_not_asked(
    gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedEngine() as judge, ScriptedEngine() as small, ScriptedEngine() as big:
        others = (pool("big", big.url), pool("small", small.url))
        router = await gateway(traffic=classifier(judge.url), hosts=("classifier.tools",), others=others)
        async with RawClient(router.port) as client:
            answers = [await client.ask(post(chat())) for _ in range(2)]

    assert [(each.status, each.headers[b"x-tidepool-pool"]) for each in answers] == [(200, b"small")] * 2
    assert judge.requests == []
    assert 'classified_total{pool="default/pool",outcome="not_allowed"} 2' in page(router)
    (told,) = [record for record in caplog.records if record.message == "a classifier may not be asked"]
    assert "gateway.workflows.allowedHosts" in told.__dict__["reason"]


async def test_a_classifier_is_asked_by_its_name_at_the_address_that_was_judged(gateway: Any) -> None:
    looked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        looked.append(host)
        return ["127.0.0.1"]

    async with ScriptedEngine(_hard) as judge, ScriptedEngine() as small, ScriptedEngine() as big:
        others = (pool("big", big.url), pool("small", small.url))
        asks = classifier(f"http://judge.tools:{judge.port}")
        router = await gateway(traffic=asks, hosts=(f"*.tools:{judge.port}",), others=others)
        governance = router.server.application._governance
        governance.classifiers._hosts = Hosts(resolve=resolve, loopback=True)
        async with RawClient(router.port) as client:
            answers = [await client.ask(post(chat())) for _ in range(3)]

    assert [answer.headers[b"x-tidepool-pool"] for answer in answers] == [b"big"] * 3
    assert judge.requests[0].headers[b"host"] == f"judge.tools:{judge.port}".encode()
    assert looked == ["judge.tools"]  # and not for each request


async def test_a_classifier_chooses(gateway: Any) -> None:
    async def script(seen: Seen) -> None:
        text = json.loads(seen.body)["messages"][0]["content"]
        await seen.answer(json.dumps({"class": "hard" if text == "hello" else "easy"}).encode())

    async with ScriptedEngine(script) as judge, ScriptedEngine() as big, ScriptedEngine() as small:
        others = (pool("big", big.url), pool("small", small.url))
        router = await gateway(traffic=classifier(judge.url), hosts=at(judge), others=others)
        async with RawClient(router.port) as client:
            hard = await client.ask(post(chat()))
            easy = await client.ask(post(chat(messages=[{"role": "user", "content": "bye"}])))

    assert (hard.headers[b"x-tidepool-pool"], easy.headers[b"x-tidepool-pool"]) == (b"big", b"small")
    assert judge.requests[0].headers[b"x-request-id"] == hard.headers[b"x-request-id"]
    assert 'classified_total{pool="default/pool",outcome="ok"} 1' in page(router)
    assert 'classified_total{pool="default/pool",outcome="unknown_class"} 1' in page(router)


async def _hard(seen: Seen) -> None:
    await seen.answer(b'{"class": "hard"}')


async def _hang(seen: Seen) -> None:
    await seen.closed.wait()


async def _nonsense(seen: Seen) -> None:
    await seen.answer(b"hard")


async def _error(seen: Seen) -> None:
    await seen.answer(b'{"class": "hard"}', b"500 Internal Server Error")


async def _endless(seen: Seen) -> None:
    await seen.answer(b" " * 100_000)


async def _packed(seen: Seen) -> None:  # a few bytes may be gigabytes when they are unpacked
    await seen.answer(gzip.compress(b'{"class": "hard"}'), extra=b"content-encoding: gzip\r\n")


@pytest.mark.parametrize(
    ("script", "outcome"),
    [(_hang, "timeout"), (_nonsense, "error"), (_error, "error"), (_endless, "error"), (_packed, "error")],
)
async def test_a_classifier_that_is_of_no_use_leaves_it_to_the_next_rules(
    gateway: Any, script: Any, outcome: str
) -> None:
    async with ScriptedEngine(script) as judge, ScriptedEngine() as small, ScriptedEngine() as big:
        others = (pool("big", big.url), pool("small", small.url))
        timeout = "50ms" if script is _hang else "2s"
        router = await gateway(traffic=classifier(judge.url, timeout), hosts=at(judge), others=others)
        async with RawClient(router.port) as client:
            answer = await client.ask(post(chat()))

    assert (answer.status, answer.headers[b"x-tidepool-pool"]) == (200, b"small")
    assert f'classified_total{{pool="default/pool",outcome="{outcome}"}} 1' in page(router)


async def test_a_request_that_no_pool_can_be_given_is_its_clients_fault_in_the_books_too(gateway: Any) -> None:
    async with ScriptedEngine() as own, ScriptedEngine() as small:
        router = await gateway(own.url, traffic=traffic(fallback=["small"]), others=(pool("small", small.url),))
        async with RawClient(router.port) as client:
            packed = await client.ask(post(gzip.compress(chat("alias")), extra=b"content-encoding: gzip\r\n"))
            plain = await client.ask(post(chat("alias")))

    assert (packed.status, plain.status) == (415, 200)
    assert 'code="415"' in page(router)
    assert 'code="500"' not in page(router)


async def test_a_classifier_that_keeps_failing_is_left_alone(gateway: Any) -> None:
    async with ScriptedEngine(_error) as judge, ScriptedEngine() as small, ScriptedEngine() as big:
        others = (pool("big", big.url), pool("small", small.url))
        router = await gateway(traffic=classifier(judge.url), hosts=at(judge), others=others)
        async with RawClient(router.port) as client:
            for _ in range(20):
                assert (await client.ask(post(chat()))).status == 200

    assert len(judge.requests) < 10


async def test_a_client_that_leaves_while_its_request_is_classified_is_forgotten(gateway: Any) -> None:
    async with ScriptedEngine(_hang) as judge, ScriptedEngine() as small, ScriptedEngine() as big:
        others = (pool("big", big.url), pool("small", small.url))
        router = await gateway(traffic=classifier(judge.url), hosts=at(judge), others=others)
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await asyncio.wait_for(judge.arrived.get(), 20)
        await router.settled()

    assert not small.requests


async def test_a_request_that_waits_on_the_only_pod_leaves_for_the_fallback_when_that_hangs(gateway: Any) -> None:
    async with ScriptedEngine(_hang) as own, ScriptedEngine() as small:
        router = await gateway(own.url, traffic=traffic(fallback=["small"]), others=(pool("small", small.url),))
        state = router.state.pools["default/pool"]
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            seen = await asyncio.wait_for(own.arrived.get(), 20)
            for members in router.state._members.values():
                for task in members._listeners.values():
                    task.cancel()  # nobody but the test says how the pods are
            await asyncio.sleep(0)
            (pod,) = state.pods.values()
            pod.report = replace(pod.report, health=Health.HUNG)
            state.pod_changed()
            answer = await client.answer()
            await asyncio.wait_for(seen.closed.wait(), 20)

    assert (answer.status, answer.headers[b"x-tidepool-pool"]) == (200, b"small")
