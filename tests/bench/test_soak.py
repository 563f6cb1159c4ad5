"""The soak's own books: what loses, doubles, mangles or forges must be seen; and a short soak of the router."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench import soak, soak_report
from bench.processes import free_port
from bench.programs import go_program

pytestmark = [pytest.mark.traffic]  # load through sockets

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
REQUESTS = 60
Ask = Callable[[bytes], Awaitable[bytes]]


async def whole(request: bytes, ask: Ask) -> bytes:
    return await ask(request)


async def doubled(request: bytes, ask: Ask) -> bytes:
    await ask(request)
    return await ask(request)


async def mangled(request: bytes, ask: Ask) -> bytes:
    return (await ask(request)).replace(b'"content":"', b'"content":"\xc3\xa9', 1)


async def another_ones(request: bytes, ask: Ask, kept: list[bytes] = []) -> bytes:  # noqa: B006 - kept on purpose
    kept.append(await ask(request))
    return kept[0]


async def forged(request: bytes, ask: Ask) -> bytes:
    """A stream without its first token that ends as a whole one does."""
    answer = await ask(request)
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"event-stream" not in head:
        return answer
    return head + b"\r\n\r\n" + body[body.index(b"\n\n") + 2 :]


async def lost(request: bytes, ask: Ask) -> bytes:
    await ask(request)
    return b""


async def unasked(request: bytes, ask: Ask) -> bytes:
    return b'HTTP/1.1 503 No\r\ncontent-length: 12\r\n\r\n{"error": 1}'


Router = Callable[[bytes, Ask], Awaitable[bytes]]


@asynccontextmanager
async def router(behaviour: Router, engine_port: int, gateway_port: int) -> AsyncIterator[None]:
    serving: list[asyncio.Task[Any]] = []

    async def ask(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine_port)
        writer.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        try:
            answer = await reader.read()
        finally:
            writer.close()
        return _unchunked(answer)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        try:
            writer.write(await behaviour(head + await reader.readexactly(length), ask))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", gateway_port)
    async with server:
        yield
    for task in serving:  # of clients that left
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


def _unchunked(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return answer
    plain = b""
    while body and not body.startswith(b"0\r\n"):
        size, _, rest = body.partition(b"\r\n")
        plain, body = plain + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return head.replace(b"Transfer-Encoding: chunked", b"Connection: close") + b"\r\n\r\n" + plain


async def books(behaviour: Router, *options: str) -> dict[str, Any]:
    engine_port, gateway_port = free_port(1), free_port(1)
    command = ["-gateway", f"127.0.0.1:{gateway_port}", "-engines", str(engine_port), "-clients", "4"]
    command += ["-requests", str(REQUESTS), *options]
    async with router(behaviour, engine_port, gateway_port):
        load = await asyncio.create_subprocess_exec(
            str(go_program("soak")), *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert load.stdin is not None
        assert load.stdout is not None
        load.stdin.write(b"begin\n")
        async with asyncio.timeout(60):
            while True:
                line: dict[str, Any] = json.loads(await load.stdout.readline())
                if "outcomes" in line:
                    break
        load.stdin.close()
        await load.wait()
        return line


@needs_go
@pytest.mark.parametrize(
    ("behaviour", "violation"),
    [
        (doubled, "completed twice"),
        (mangled, "wrong"),
        (another_ones, "wrong"),
        (forged, "forged"),
        (lost, "dropped"),
        (unasked, "refused with 503 without an engine's fault"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_a_router_must_not_do_is_seen(behaviour: Router, violation: str) -> None:
    assert (await books(behaviour, "-disconnects", "0", "-resets", "0"))["violations"].get(violation, 0) > 0


@needs_go
async def test_a_router_that_does_nothing_wrong_has_clean_books() -> None:
    found = await books(whole, "-disconnects", "0.2", "-resets", "0")

    assert found["violations"] == {}
    assert found["outcomes"]["left"] > 0
    assert sum(found["outcomes"].values()) == REQUESTS


def results(**changes: Any) -> dict[str, Any]:
    counts = {"violations": {}, "examples": [], "still_running": 0, "outcomes": {"whole": 9}, "engines": {}}
    base = {"counts": counts | {"seconds": 1.0}, "ledgers": {}, "moves": [], "memory": []}
    return base | {"load": {"requests": 1_000_000}} | changes


def samples(bytes_a_request: float) -> list[dict[str, float]]:
    """A warm-up that grows fast, then a line."""
    rising = [{"done": n * 1e5, "gateway": n * 5e7, "sidecar": 5e7} for n in range(3)]
    line = [{"done": n * 1e5, "gateway": 1e8 + n * 1e5 * bytes_a_request, "sidecar": 5e7} for n in range(3, 11)]
    return rising + line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"ledgers": {"gateway": {"in_flight": 0, "opened": 12}}}, []),
        ({"ledgers": {"gateway": {"in_flight": 1, "opened": 12}}}, ["the ledger of gateway is not empty"]),
        ({"moves": [{"how": "is killed", "ledger": {}}]}, []),
        ({"moves": [{"how": "drains", "ledger": {"open": 2}}]}, ["a ledger was not empty after its drain"]),
        ({"memory": samples(5.0)}, []),
        ({"memory": samples(20.0)}, ["the gateway's memory is not flat"]),
        ({"memory": samples(20.0), "load": {"requests": 20_000}}, []),
    ],
)
def test_faults_are_named(changes: dict[str, Any], said: list[str]) -> None:
    found = soak_report.faults(results(**changes))

    assert len(found) == len(said)
    assert all(fault.startswith(start) for fault, start in zip(found, said, strict=True))


def test_the_slope_does_not_see_the_warm_up() -> None:
    assert soak_report.slope(samples(3.0), "gateway", 1_000_000) == pytest.approx(3.0)
    assert soak_report.slope(samples(3.0)[:4], "gateway", 1_000_000) is None


@needs_go
@pytest.mark.traffic
@pytest.mark.timeout(400)
def test_a_short_soak_loses_nothing_and_doubles_nothing() -> None:
    found = soak.run(requests=20_000, clients=48, disconnects=0.05, resets=0.01, move_seconds=4.0)

    assert soak_report.faults(found) == []
    assert found["counts"]["outcomes"]["whole"] > 18_000
    assert {move["how"] for move in found["moves"]} >= {"drains, then leaves"}
