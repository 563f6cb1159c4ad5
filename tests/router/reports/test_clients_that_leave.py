"""Clients that leave: the engine stops, and every count goes back. Reports 1, 2, 3 and 4."""

import json
from typing import Any

import pytest

from fakes.journal import Ending
from fakes.settings import EngineSettings, Pace
from scripted.clients import RawClient, chat, crowd, post
from scripted.routers import until
from tidepool_api.load import Health, LoadReport
from tidepool_router.fleet import engine_watch

MANUAL = EngineSettings(pace=Pace.MANUAL)


def messages(**more: Any) -> bytes:
    return chat(max_tokens=50, **more)


def ask(path: bytes, *, stream: bool) -> bytes:
    """A request of the path's API."""
    common = {"model": "tiny", "stream": stream}
    bodies = {
        b"/v1/chat/completions": messages(stream=stream),
        b"/v1/completions": json.dumps(common | {"prompt": "a b", "max_tokens": 50}).encode(),
        b"/v1/responses": json.dumps(common | {"input": "a b"}).encode(),
        b"/v1/messages": messages(stream=stream),
    }
    return post(bodies[path], path)


ROUTES = (b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages")


@pytest.mark.parametrize("politely", [True, False])
async def test_a_client_that_closes_during_an_answer_without_a_stream_aborts_it_on_the_engine(
    system: Any, politely: bool
) -> None:
    """Report 1 (production-stack #634 and PR #1040, LiteLLM #37140): the engine worked on for nobody."""
    running = await system(settings=MANUAL)
    (engine,) = running.engines
    async with RawClient(running.port) as client:
        await client.send(ask(ROUTES[0], stream=False))
        await engine.until(lambda: engine.waiting + engine.running == 1)
        await engine.step()
        if politely:
            client.writer.close()
        else:
            client.leave()
        await engine.until(lambda: engine.aborted == 1)

    await running.empty()
    assert engine.kv_blocks_used == 0
    assert engine.ended(Ending.ABORTED) == 1


@pytest.mark.parametrize("path", ROUTES)
async def test_a_client_that_leaves_before_the_first_token_aborts_it_on_the_engine(
    system: Any, path: bytes
) -> None:
    """Report 2 (LiteLLM PR #31499): the proxy waited for the first chunk and saw nothing else."""
    running = await system(settings=MANUAL)
    (engine,) = running.engines
    async with RawClient(running.port) as client:
        await client.send(ask(path, stream=True))
        await engine.until(lambda: engine.waiting == 1)
        client.leave()
        await engine.until(lambda: engine.aborted == 1)

    await running.empty()


@pytest.mark.parametrize("path", ROUTES)
async def test_a_client_that_leaves_between_two_tokens_closes_the_upstream_on_every_route(
    system: Any, path: bytes
) -> None:
    """Report 3 (LiteLLM #30244 and #36123): the body's iterator was dropped and its connection kept."""
    running = await system(settings=MANUAL)
    (engine,) = running.engines
    async with RawClient(running.port) as client:
        await client.send(ask(path, stream=True))
        await engine.until(lambda: engine.waiting == 1)
        await engine.step(2)
        await client.until(b"data: ")
        client.leave()
        await engine.until(lambda: engine.aborted == 1)

    await running.empty()
    assert running.gateway.services.bodies_bytes == 0


async def test_aborted_requests_leave_no_load_behind_and_a_restarted_pod_gets_no_more_than_its_part(
    system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report 4 (vLLM router #215, #200): a worker leaked 400 counts a day; one restarted at 0 got everything."""
    # A look at an engine that makes no step finds that requests wait in it, and the next ones would be held.
    monkeypatch.setattr(engine_watch, "_BUSY_SCRAPE_SECONDS", 3600.0)
    running = await system(pods=2, settings=MANUAL)
    for _ in range(20):
        async with crowd(running.port, 10) as clients:
            await _begin(running, clients)
        await running.empty()

    pods = [running.pod(0), running.pod(1)]
    assert sum(engine.aborted for engine in running.engines) == 200
    await until(lambda: all((pod.load_requests, pod.load_tokens) == (0, 0) for pod in pods))

    running.pool.pod_heard(pods[0], LoadReport(boot="restarted", seq=1, health=Health.READY))
    async with crowd(running.port, 20) as clients:
        await _begin(running, clients)
        parts = [engine.waiting for engine in running.engines]

    assert sum(parts) == 20
    assert min(parts) >= 4  # with 100 leaked counts on each, the restarted one would get all
    await running.empty()


async def _begin(running: Any, clients: list[RawClient]) -> None:
    """Each asks; all have reached an engine, none of which makes a step."""
    for number, client in enumerate(clients):
        await client.send(ask(ROUTES[0], stream=True))
        await until(lambda wanted=number + 1: running.live()["engines"] == wanted)
