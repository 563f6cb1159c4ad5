"""The scripted engine leaves nothing open behind, or a test fails for what the one before it left."""

import asyncio
import contextlib
import socket

import pytest

from scripted.upstreams import ScriptedEngine


@pytest.mark.parametrize("turns", range(6))
async def test_an_engine_that_goes_down_closes_what_is_just_coming_in(turns: int) -> None:
    async with ScriptedEngine() as engine:
        client = socket.create_connection(("127.0.0.1", engine.port))
        client.setblocking(False)
        for _ in range(turns):  # of the loop: the connection is accepted, gets its task, is served
            await asyncio.sleep(0)

    with client:
        async with asyncio.timeout(2):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
