"""Pods that are gone or hang while requests wait on them, and peers that vanish without a word."""

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import JSON_ANSWER, ScriptedEngine, Seen, answer_json
from tidepool_api.load import Health
from tidepool_router.fleet.pod import Pod


async def _silent(seen: Seen) -> None:
    await asyncio.Event().wait()


def _hangs(pod: Pod) -> None:
    assert pod.report is not None
    pod.report = replace(pod.report, health=Health.HUNG)


def _vanishes(pod: Pod) -> None:
    pod.reachable = False


@pytest.mark.parametrize("strike", [_hangs, _vanishes])
async def test_a_request_that_waits_on_a_dead_pod_is_answered_by_another(gateway: Any, strike: Any) -> None:
    """No socket tells of it: its node is gone, or its engine hangs. The first-byte timeout is ten minutes."""
    async with ScriptedEngine(_silent) as one, ScriptedEngine(_silent) as other:
        router = await gateway(one.url, other.url)
        pool = router.state.pools["default/pool"]
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await until(lambda: len(one.requests) + len(other.requests) == 1)
            struck, lives = (one, other) if one.requests else (other, one)
            lives.script = answer_json
            await _forget_listeners(router)
            strike(pool.pods[f"127.0.0.1:{struck.port}"])
            pool.pod_changed()

            assert (await client.answer()).body == JSON_ANSWER
        assert len(struck.requests) == len(lives.requests) == 1
        async with asyncio.timeout(20):
            await struck.requests[0].closed.wait()


async def test_a_request_on_the_only_pod_goes_on_waiting(gateway: Any) -> None:
    """There is nothing better: an engine that seemed to hang may still answer."""
    async with ScriptedEngine(_silent) as engine:
        router = await gateway(engine.url)
        (pod,) = router.state.pools["default/pool"].pods.values()
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            seen = await engine.arrived.get()
            await _forget_listeners(router)
            _hangs(pod)
            await asyncio.sleep(5 * router.services.limits.sweep_seconds)
            await seen.answer()

            assert (await client.answer()).body == JSON_ANSWER
        assert len(engine.requests) == 1


async def test_a_request_on_a_hung_pod_moves_when_another_one_comes_up(gateway: Any) -> None:
    """That there was nothing better at first must not be held against it later."""
    async with ScriptedEngine(_silent) as one, ScriptedEngine(_silent) as other:
        router = await gateway(one.url, other.url)
        pool = router.state.pools["default/pool"]
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await until(lambda: len(one.requests) + len(other.requests) == 1)
            struck, comes = (one, other) if one.requests else (other, one)
            comes.script = answer_json
            await _forget_listeners(router)
            _vanishes(pool.pods[f"127.0.0.1:{comes.port}"])
            _hangs(pool.pods[f"127.0.0.1:{struck.port}"])
            pool.pod_changed()
            await asyncio.sleep(5 * router.services.limits.sweep_seconds)
            assert not comes.requests

            pool.pods[f"127.0.0.1:{comes.port}"].reachable = True
            pool.pod_changed()

            assert (await client.answer()).body == JSON_ANSWER


async def test_connections_to_engines_and_from_clients_notice_a_peer_that_vanished(gateway: Any) -> None:
    async with ScriptedEngine(_silent) as engine:
        router = await gateway(engine.url)
        async with RawClient(router.port) as client:
            await client.send(post(chat()))
            await engine.arrived.get()
            (upstream,) = router.services.pools.at("127.0.0.1", engine.port).open
            (served,) = router.server.connections
            sockets = [each.transport.get_extra_info("socket") for each in (upstream, served)]

            for each in sockets:
                assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                asked = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + each.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_KEEPINTVL
                ) * each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
                assert asked <= 30
            # Sent bytes without an answer end a connection to an engine; a client may read as slowly as it likes.
            unacknowledged = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in sockets]
            assert unacknowledged == [30_000, 0]


async def _forget_listeners(router: Any) -> None:
    """Nobody but the test says how the pods are."""
    for members in router.state._members.values():
        for task in members._listeners.values():
            task.cancel()
    await asyncio.sleep(0)
