"""The access log: a line a request, with what helps to find it again, and with nothing that is secret."""

import asyncio
import json
from typing import Any

import pytest

from scripted.clients import RawClient, chat, post
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.ledger import Outcome
from tidepool_router.tracing.access import AccessLines
from tidepool_router.tracing.life import Life

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def told(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for text in lines for line in text.splitlines()]


async def test_a_request_is_one_line_with_its_id_pod_times_and_tokens(watched: Any) -> None:
    async def slow(seen: Seen) -> None:
        await asyncio.sleep(0.02)
        await seen.answer()

    async with ScriptedEngine(slow) as engine:
        router = await watched.gateway(engine.url)
        async with RawClient(router.port) as client:
            extra = f"x-request-id: r-7\r\ntraceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n".encode()
            await client.ask(post(chat("alias"), extra=extra + b"authorization: Bearer sk-secret\r\n"))
        await watched.told()

    (line,) = told(watched.lines)
    assert 0.015 <= line.pop("first_token_seconds") <= line.pop("duration_seconds") < 5
    assert line.pop("time")[10] == "T"
    assert line == {
        "level": "info",
        "logger": "tidepool.access",
        "message": "request",
        "request_id": "r-7",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "outcome": "ok",
        "client": "127.0.0.1",
        "pool": "default/pool",
        "pod": f"127.0.0.1:{engine.port}",
        "model": "alias",
        "prompt_tokens": 7,
        "output_tokens": 3,
        "trace_id": TRACE,
    }
    assert b"sk-secret" not in b"".join(watched.lines)
    assert b"hello" not in b"".join(watched.lines)


async def test_what_was_turned_away_and_who_left_are_lines_too(watched: Any) -> None:
    async def never(seen: Seen) -> None:
        await seen.closed.wait()

    async with ScriptedEngine(never) as engine:
        router = await watched.gateway(engine.url)
        async with RawClient(router.port) as client:
            await client.ask(post(chat("gpt-9"), extra=b"x-request-id: r-1\r\n"))
            await client.send(post(chat(), extra=b"x-request-id: r-2\r\n"))
            await engine.arrived.get()
        await watched.told()

    refused, left = told(watched.lines)
    assert (refused["request_id"], refused["status"], refused["outcome"]) == ("r-1", 404, "refused")
    assert refused["error"] == "model_not_found"
    assert (left["request_id"], left["status"], left["outcome"]) == ("r-2", 499, "cancelled")


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1.25, "1970-01-01T00:00:01.250Z"),
        (86399.9996, "1970-01-01T23:59:59.999Z"),
    ],
)
def test_a_line_has_its_own_time(now: float, text: str) -> None:
    lines = AccessLines()
    life = Life(1.0, 1.0, None, 0, lambda: 1)
    life.outcome = Outcome.OK
    lines.line(life, 5000.0)

    assert json.loads(lines.line(life, now))["time"] == text
