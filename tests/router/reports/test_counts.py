"""What runs is counted for as long as it runs, and by nobody but its own end. Reports 5, 6 and 22."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fakes.settings import EngineSettings, Pace
from pools.gateway import READY, first, make_pool, must_pick
from scripted.clients import RawClient, chat, crowd, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine
from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import Fleet
from tidepool_router.fleet import feed, listen
from tidepool_router.ledger import Outcome


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


async def test_probes_reports_and_new_settings_leave_live_counts_alone(system: Any) -> None:
    """Report 5 (vLLM router #197): the health loop set the counters of live requests to zero."""
    running = await system(settings=EngineSettings(pace=Pace.MANUAL))
    (sidecar,), (engine,) = running.sidecars, running.engines
    async with crowd(running.port, 3) as clients:
        for client in clients:
            await client.send(post(chat(stream=True)))
        await engine.until(lambda: engine.waiting == 3)
        await _disturb(running, sidecar)

        assert running.live() == {"gateway": 3, "sidecars": 3, "engines": 3}
        assert running.pod(0).load_requests == 3
    await running.empty()


async def _disturb(running: Any, sidecar: Any) -> None:
    """Everything that looks at counts, several times; the last of it says that nothing runs."""
    for _ in range(3):
        await sidecar.state.look_at_engine()
        sidecar.state.apply(sidecar.state.settings)
        running.gateway.state.apply(_same_fleet(running.gateway.state))
        report = running.pod(0).report
        running.pool.pod_heard(running.pod(0), replace(report, seq=report.seq + 1, running=0, waiting=0))


def _same_fleet(fleet: Any) -> Fleet:
    return Fleet(pools=tuple(pool.config for pool in fleet.pools.values()))


def test_a_request_of_an_hour_counts_until_it_ends() -> None:
    """Report 6 (llm-d #2295, #2137): after five minutes it was no longer counted, and the pod was overfilled."""
    clock = Clock()
    pool = make_pool(clock, 2)
    long = must_pick(pool)
    pod = pool.pods[long.endpoint.key]
    for minute in range(60):
        clock.seconds += 60
        pool.tick(clock())
        pool.set_pods([each.endpoint for each in pool.pods.values()])
        # A gateway that hears nothing of it from the pod, as after a report that was lost.
        pool.pod_heard(pod, replace(READY, seq=2 + minute))

    assert (pod.ledger.running, pod.load_requests) == (1, 1)
    assert must_pick(pool).endpoint.key != pod.key
    long.close(Outcome.OK, clock())
    assert (pod.ledger.running, pod.load_requests) == (0, 0)


async def test_what_an_engine_runs_for_others_counts_too(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report 6, the other half: own counting is corrected by what the engine itself says that it runs."""
    monkeypatch.setattr(listen, "_SCRAPE_SECONDS", 0.01)
    busy = b"vllm:num_requests_running 7\nvllm:num_requests_waiting 2\n"
    async with ScriptedEngine(page=busy) as full, ScriptedEngine() as idle:
        router = await gateway(full.url, idle.url)
        pod = router.state.pools["default/pool"].pods[f"127.0.0.1:{full.port}"]
        await until(lambda: pod.load_requests == 9)
        async with RawClient(router.port) as client:
            for _ in range(6):
                await client.ask(post(chat()))

        assert (len(full.requests), len(idle.requests)) == (0, 6)
        full.page = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        await until(lambda: pod.load_requests == 0)


async def test_a_pod_that_reports_at_its_own_pace_is_not_stale(
    sidecar: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report 22 (llm-d #2514): scraped every 15 s, figures were stale after 200 ms: 98.7 % of the time."""
    monkeypatch.setattr(feed, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(listen, "SILENT_SECONDS", listen.SILENT_HEARTBEATS * 0.2)
    async with ScriptedEngine() as engine:
        side = await sidecar(engine.url)
        door = await gateway(f"http://127.0.0.1:{side.port}")
        (pod,) = door.state.pools["default/pool"].pods.values()
        streams = len(side.server.connections)
        for _ in range(20):  # five heartbeats, in which nothing changes
            await asyncio.sleep(0.05)
            assert pod.state(door.state.pools["default/pool"].now()).value == "ready"
            assert pod.streaming
        assert len(side.server.connections) == streams


def test_how_long_a_stream_may_be_silent_follows_from_its_heartbeat() -> None:
    """Report 22: two figures that must fit each other are one figure."""
    assert listen.SILENT_SECONDS == listen.SILENT_HEARTBEATS * feed.HEARTBEAT_SECONDS
    assert listen.SILENT_HEARTBEATS >= 3


def test_a_report_that_is_old_changes_nothing() -> None:
    """Report 22, the other way: only what really is older than what is known is stale."""
    pool = make_pool(Clock(), 1)
    pod = first(pool)
    pool.pod_heard(pod, LoadReport(boot="b", seq=9, health=Health.READY, running=4))
    pool.pod_heard(pod, LoadReport(boot="b", seq=8, health=Health.DOWN, running=0))

    assert (pod.load_requests, pod.report.health if pod.report else None) == (4, Health.READY)
