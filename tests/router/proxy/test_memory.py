"""What a client does not take must not pile up here."""

import asyncio
import gc
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from scripted.certificates import Secret, client_of
from scripted.clients import RawClient, chat, post
from scripted.routers import until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.tls import OwnCertificate
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.messages import RequestReader

_CLIENTS = 6
_EVENT = b"data: " + b"x" * 8192 + b"\n\n"
# asyncio's high-water mark, and one read of uvloop's that may have been under way when it was reached.
_HELD_BYTES = (64 << 10) + (256 << 10)
_PLENTY = 64 << 20


@pytest.mark.parametrize("role", ["gateway", "sidecar"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_clients_that_take_nothing_hold_no_more_than_a_bound(
    sidecar: Any, gateway: Any, tmp_path: Path, role: str, secure: bool
) -> None:
    sent = [0] * _CLIENTS

    async def script(seen: Seen) -> None:
        number = len(engine.requests) - 1
        await seen.begin_stream()
        while sent[number] < _PLENTY and not seen.closed.is_set():
            await seen.chunk(_EVENT)
            sent[number] += len(_EVENT)

    secret = Secret(tmp_path, trustme.CA())
    secret.issue("127.0.0.1")
    server = OwnCertificate(secret.certificate, secret.key).context if secure else None
    trusting: ssl.SSLContext | None = client_of(secret.authority) if secure else None
    async with ScriptedEngine(script) as engine:
        router = await (gateway if role == "gateway" else sidecar)(engine.url, tls=server)
        clients = [RawClient(router.port, tls=trusting) for _ in range(_CLIENTS)]
        for client in clients:
            await client.__aenter__()
            client.writer.transport.pause_reading()
            await client.send(post(chat(stream=True)))
        await until(lambda: sum(connection.writing_paused for connection in router.server.connections) == _CLIENTS)
        await _still(sent)
        held = [connection.transport.get_write_buffer_size() for connection in router.server.connections]

        assert max(held) <= _HELD_BYTES
        assert max(sent) < _PLENTY // 2  # the engine was held back; what it sent lies in the sockets
        for client in clients:
            client.leave()


async def _still(sent: list[int]) -> None:
    """Wait until nothing has moved for a while: the sockets between are full."""
    before: list[int] = []
    async with asyncio.timeout(20):
        while before != sent:
            before = list(sent)
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("leaves", [True, False], ids=["by the client", "by the engine"])
async def test_a_connection_that_closes_in_an_answer_leaves_no_cycle(gateway: Any, leaves: bool) -> None:
    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b"data: {}\n\n")
        if leaves:
            await seen.closed.wait()
        else:
            seen.writer.close()  # so that the upstream connection ends as well

    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                async with RawClient(router.port) as client:
                    await client.send(post(chat(stream=True)))
                    await client.until(b"data: {}")
            await until(lambda: not router.server.connections)
            await until(lambda: not _alive(RequestReader) and not _alive(AnswerReader))
        finally:
            gc.enable()


def _alive(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())
