"""Who is at fault: clients' errors cost no pod its place; retries leave nothing where they failed. Report 14."""

import asyncio
from typing import Any

from fakes.faults import Fault, Wrong
from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.fleet.pod import PodState


async def test_bad_requests_of_one_client_take_no_pod_out(system: Any) -> None:
    """Report 14 (SGLang #25811, vLLM router PR #60): answers of 400 opened the breaker, and the fleet was out."""
    running = await system(pods=2)
    async with RawClient(running.port) as client:
        bad = [(await client.ask(post(chat(max_tokens=-1)))).status for _ in range(60)]
        good = [(await client.ask(post(chat(max_tokens=2)))).status for _ in range(10)]

    assert (bad, good) == ([400] * 60, [200] * 10)
    pods = list(running.pool.pods.values())
    assert {pod.state(running.pool.now()) for pod in pods} == {PodState.READY}
    assert {pod.ejection.failure_share for pod in pods} == {0.0}
    assert min(len(engine.journal.of("/v1/chat")) for engine in running.engines) > 20


async def test_answers_of_500_do_take_a_pod_out(system: Any) -> None:
    """The same, so that the test above cannot pass for want of a breaker."""
    running = await system(pods=2)
    running.engines[0].order(Fault(Wrong.STATUS, times=None, status=500))
    async with RawClient(running.port) as client:
        statuses = [(await client.ask(post(chat(max_tokens=2)))).status for _ in range(60)]

    assert running.pod(0).state(running.pool.now()) is PodState.EJECTED
    assert statuses[-20:].count(500) <= 1


async def test_a_retry_never_meets_the_pod_that_failed_and_holds_nothing_there(gateway: Any) -> None:
    """Read in KubeAI's code: the failed pod may be picked again, and its count is held until the end."""
    release = asyncio.Event()

    async def slow(seen: Seen) -> None:
        await release.wait()
        await seen.answer()

    async def unavailable(seen: Seen) -> None:
        await seen.answer(b"{}", b"503 Service Unavailable")

    async with ScriptedEngine(slow) as one, ScriptedEngine(slow) as other:
        router = await gateway(one.url, other.url)
        pool = router.state.pools["default/pool"]
        calls: list[ScriptedEngine] = []

        def first_fails(engine: ScriptedEngine) -> Any:
            async def script(seen: Seen) -> None:
                calls.append(engine)
                await (unavailable if len(calls) == 1 else slow)(seen)

            return script

        one.script, other.script = first_fails(one), first_fails(other)
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await until(lambda: len(calls) == 2)
            failed = pool.pods[f"127.0.0.1:{calls[0].port}"]

            assert calls[0] is not calls[1]
            assert (failed.ledger.running, failed.load_requests, pool.in_flight) == (0, 0, 1)
            release.set()
            assert (await client.answer()).status == 200
