"""Pods that are gone, going or hung get no requests, whatever a list says. Reports 10, 11 and 12."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from fakes.faults import Fault, Wrong
from fakes.settings import EngineSettings, Pace
from scripted.clients import RawClient, chat, crowd, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine
from tidepool_api.load import Health
from tidepool_api.routing import Fleet, FleetPool
from tidepool_router.errors import UpstreamError
from tidepool_router.fleet import resolve
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.fleet.pod import PodState
from tidepool_router.proxy.limits import Limits
from tidepool_router.proxy.upstream import ConnectionPool

pytestmark = [pytest.mark.traffic]  # waits for what does not come


class Names:
    """DNS that a test writes: addresses on the loopback net."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: tuple[str, ...] = addresses
        self.asked = 0

    def __call__(self, host: str) -> Sequence[str]:
        self.asked += 1
        return self.addresses


async def test_a_pod_whose_deletion_nobody_told_of_is_out_when_its_connects_fail(system: Any) -> None:
    """Report 10 (production-stack #1091, #656; SGLang PR #32322): 22 hours of requests went to a dead address."""
    running = await system(pods=2)
    dead = running.pod(0)
    await running.sidecars[0].stop()  # the list still has it
    await until(lambda: dead.state(running.pool.now()) is PodState.DOWN)
    lives = running.engines[1]
    async with RawClient(running.port) as client:
        statuses = [(await client.ask(post(chat(max_tokens=2)))).status for _ in range(20)]

    assert statuses == [200] * 20
    assert len(lives.journal.of("/v1/chat")) == 20
    retries = running.gateway.state.metrics.registry.render().decode()
    assert 'tidepool_gateway_retries_total{pool="default/pool",reason="connect"} 1' not in retries


async def test_an_address_that_leaves_the_list_without_an_event_leaves_the_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Report 10: nothing is watched that could lose an event; the whole list is asked for again and again."""
    monkeypatch.setattr(resolve, "_INTERVAL_SECONDS", 0.01)
    names = Names("127.0.0.1", "127.0.1.1")
    fleet = GatewayFleet(name="g", boot="b", lookup=names)
    await fleet.start()
    source = FleetPool(name="p", models=("tiny",), endpoints=("dns+http://pool-peers.default.svc:1",))
    fleet.apply(Fleet(pools=(source,)))
    pods = fleet.pools["p"].pods
    await until(lambda: len(pods) == 2)

    names.addresses = ("127.0.0.1",)

    await until(lambda: all(pod.leaving for key, pod in pods.items() if key.startswith("127.0.1.1")))
    assert not pods["127.0.0.1:1"].leaving
    await fleet.close()


async def test_a_pod_that_drains_gets_no_more_though_it_is_listed_and_ready(system: Any) -> None:
    """Report 11 (production-stack #601): a pod that terminates is Ready for a while, and was sent requests."""
    running = await system(pods=2, settings=EngineSettings(pace=Pace.MANUAL))
    going, stays = running.engines
    running.sidecars[0].state.begin_drain()
    await until(lambda: running.pod(0).state(running.pool.now()) is PodState.DRAINING)
    async with crowd(running.port, 6) as clients:
        for client in clients:
            await client.send(post(chat(stream=True)))
        await stays.until(lambda: stays.waiting == 6)

        assert running.pod(0).report.health is Health.DRAINING
        assert not going.journal.of("/v1/chat")
    await running.empty()


async def test_what_runs_on_a_pod_that_drains_is_finished(system: Any) -> None:
    """Report 11: no new requests does not mean no old ones."""
    running = await system(settings=EngineSettings(pace=Pace.MANUAL, eos_after_tokens=4))
    (engine,) = running.engines
    async with RawClient(running.port) as client:
        await client.send(post(chat(stream=True)))
        await engine.until(lambda: engine.waiting == 1)
        await engine.step(2)
        running.sidecars[0].state.begin_drain()
        await engine.step(4)
        answer = await client.answer()

    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_one_hung_pod_holds_up_no_request_for_longer_than_the_timeout(system: Any) -> None:
    """Report 12 (production-stack #749): one backend without an answer, no timeouts: the whole router stood."""
    timeout_seconds = 2.0  # so much more than an answer takes that a busy machine is not told from a hung pod
    running = await system(pods=2, first_byte_seconds=timeout_seconds)
    hung = running.engines[0]
    hung.order(Fault(Wrong.HANG, times=None))
    loop = asyncio.get_running_loop()

    async def timed() -> tuple[int, float]:
        began = loop.time()
        async with RawClient(running.port) as client:
            answer = await client.ask(post(chat(max_tokens=2)))
        return answer.status, loop.time() - began

    answers = await asyncio.gather(*(timed() for _ in range(12)))

    assert [status for status, _ in answers] == [200] * 12
    assert hung.faults.met > 0
    quick = [seconds for _, seconds in answers if seconds < timeout_seconds]
    assert len(quick) >= 12 - hung.faults.met
    await running.empty()


async def test_a_host_that_takes_no_connection_costs_the_connect_timeout_and_no_more() -> None:
    """Report 12: a node that is gone answers nothing at all, not even a refusal."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # its queue is full: further SYNs are dropped
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        pool = ConnectionPool("127.0.0.1", full.getsockname()[1], Limits(connect_seconds=0.2))
        async with asyncio.timeout(20):
            with pytest.raises(UpstreamError, match="no connection to") as failed:
                await pool.connect()
        for each in waiting:
            each.close()

    assert failed.value.kind == "connect"


async def test_an_engine_that_is_gone_while_its_sidecar_lives_is_seen_at_once(gateway: Any) -> None:
    """Report 10, the other way: a green health page says nothing about the port that serves."""
    async with ScriptedEngine() as stays:
        async with ScriptedEngine() as goes:
            router = await gateway(stays.url, goes.url)
        pool = router.state.pools["default/pool"]
        async with RawClient(router.port) as client:
            assert [(await client.ask(post(chat()))).status for _ in range(10)] == [200] * 10

        gone = pool.pods[f"127.0.0.1:{goes.port}"]
        assert gone.state(pool.now()) in (PodState.DOWN, PodState.EJECTED)
