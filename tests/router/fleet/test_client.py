"""The small HTTP reader: bounded in time and bytes, and clear about what went wrong."""

import asyncio
from typing import Any

import pytest

from cluster.ports import free_ports
from tidepool_router.errors import UpstreamError
from tidepool_router.fleet import client
from tidepool_router.fleet.endpoint import Endpoint


def serving(raw: bytes, *, hang: bool = False) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        if hang:
            await reader.read()

    return serve


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "by length"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", "chunked"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello", "until the end"),
    ],
)
async def test_bodies_in_each_framing(scripted: Any, raw: bytes, why: str) -> None:
    server = await scripted(serving(raw))

    assert await client.get(server.endpoint, "/x", 5.0) == client.Answer(200, b"hello"), why


async def test_nobody_listens() -> None:
    (port,) = free_ports(1)

    with pytest.raises(UpstreamError) as caught:
        await client.get(Endpoint.at("127.0.0.1", port), "/", 5.0)

    assert caught.value.kind == "connect"


@pytest.mark.parametrize(
    ("raw", "hang", "kind"),
    [
        (b"", True, "first_byte_timeout"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", True, "first_byte_timeout"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False, "reset"),
        (b"nonsense\r\n\r\n", True, "reset"),
        (b"", False, "reset"),
    ],
)
async def test_failures_have_their_kind(scripted: Any, raw: bytes, hang: bool, kind: str) -> None:
    server = await scripted(serving(raw, hang=hang))

    with pytest.raises(UpstreamError) as caught:
        await client.get(server.endpoint, "/", 0.1)

    assert caught.value.kind == kind


async def test_an_answer_without_end_is_cut(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_BODY_BYTES", 1000)
    server = await scripted(serving(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000))

    with pytest.raises(UpstreamError, match="longer than 1000 bytes"):
        await client.get(server.endpoint, "/", 5.0)


async def test_a_line_without_end_is_cut(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_LINE_BYTES", 1000)
    server = await scripted(serving(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000, hang=True))
    stream = await client.open_stream(server.endpoint, "/")

    with pytest.raises(UpstreamError, match="longer than 1000 bytes"):
        await stream.line()
    stream.close()
