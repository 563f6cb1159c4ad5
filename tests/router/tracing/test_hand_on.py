"""A request that a sidecar hands on is one request in one trace, whoever serves it in the end."""

import json
from typing import Any

import pytest

from cluster.ports import free_ports
from scripted.clients import RawClient, chat, post
from scripted.peers import NOBODY, ONE, POOL, TWO
from scripted.upstreams import ScriptedEngine, Seen

ROOT = "POST /v1/chat/completions"


@pytest.fixture
def port() -> int:
    """One that all sidecars of the pool share."""
    return free_ports(1)[0]


async def test_the_peer_is_in_the_trace_of_the_sidecar_that_handed_on(watched: Any, port: int) -> None:
    async with ScriptedEngine() as engine:
        await watched.sidecar(NOBODY, ready=False, pod="pod-1", address=(ONE, port), peers=lambda _: POOL)
        await watched.sidecar(engine.url, pod="pod-2", address=(TWO, port), peers=lambda _: POOL)
        async with RawClient(port, ONE) as client:
            assert (await client.ask(post(chat()))).status == 200
        seen = await engine.arrived.get()
        collector = await watched.told()

    assert len({span.trace_id for span in collector.spans}) == 1
    first, second = sorted((span for span in collector.spans if span.name == ROOT), key=lambda span: span.began_at)
    clients = {span.parent_id: span for span in collector.spans if span.kind == "client"}
    assert (first.parent_id, second.parent_id) == ("", clients[first.span_id].span_id)
    assert first.attributes["tidepool.pod"] == second.attributes["tidepool.pod"] == "pod-2"
    assert clients[second.span_id].span_id.encode() in seen.headers[b"traceparent"]


async def test_a_request_that_its_engine_failed_and_a_peer_served_is_told_once(watched: Any, port: int) -> None:
    async def die(seen: Seen) -> None:
        seen.reset()

    async with ScriptedEngine(die) as bad, ScriptedEngine() as good:
        await watched.sidecar(bad.url, pod="pod-1", address=(ONE, port), peers=lambda _: POOL)
        await watched.sidecar(good.url, pod="pod-2", address=(TWO, port), peers=lambda _: POOL)
        async with RawClient(port, ONE) as client:
            assert (await client.ask(post(chat()))).status == 200
        collector = await watched.told()

    (root,) = [span for span in collector.spans if span.kind == "server" and not span.parent_id]
    assert root.attributes["tidepool.failed_attempts"] == 1
    assert root.attributes["tidepool.outcome"] == "ok"
    attempts = [span for span in collector.spans if span.parent_id == root.span_id and span.kind == "client"]
    assert [(span.failed, span.attributes.get("error.type")) for span in attempts] == [
        (True, "reset"),
        (False, None),
    ]
    lines = [json.loads(line) for text in watched.lines for line in text.splitlines()]
    # The sidecar that was asked tells of it once, and the peer once.
    assert sorted(line.get("failed_attempts", 0) for line in lines) == [0, 1]
