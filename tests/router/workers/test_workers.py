"""Several gateways on one port, as whole programs: started, asked, killed, drained."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest

from scripted.clients import RawClient, chat, post
from scripted.programs import Program, run_program
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.load import GatewayReport
from tidepool_api.routing import Fleet, FleetPool
from tidepool_router.errors import SettingsError
from tidepool_router.settings import parse
from tidepool_router.workers.parent import reserved

pytestmark = pytest.mark.traffic

# For what other processes do. On a busy machine it takes long; nothing waits for it to end.
_SECONDS = 60.0
_COUNTED = re.compile(rb'tidepool_gateway_requests_total\{worker="\d",[^}]*code="200"[^}]*\} (\d+)')
_STARTED = re.compile(rb'tidepool_gateway_requests_total\{worker="(\d)"')


def gateways(*arguments: str, ready: str = "/readyz") -> AbstractAsyncContextManager[Program]:
    """Two workers."""
    return run_program("gateway", "--workers", "2", *arguments, ready=ready)


def written(tmp_path: Path, *endpoints: str) -> str:
    path = tmp_path / "fleet.json"
    pools = (FleetPool(name="default/pool", models=("tiny",), endpoints=endpoints),)
    path.write_text(Fleet(pools=pools).model_dump_json(by_alias=True))
    return str(path)


async def asked(url: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=_SECONDS) as client:
        return await client.get(url + path)


async def served(port: int, count: int) -> list[int]:
    """Statuses, each request on a connection of its own."""

    async def once() -> int:
        async with RawClient(port) as client:
            return (await client.ask(post(chat()))).status

    return list(await asyncio.gather(*(once() for _ in range(count))))


async def test_workers_share_the_port_and_are_one_gateway_to_whoever_asks(tmp_path: Path) -> None:
    async with (
        ScriptedEngine() as engine,
        run_program(
            "gateway", "--workers", "2", "--fleet", written(tmp_path, engine.url), ready="/readyz"
        ) as gateway,
    ):
        await eventually(lambda: both_listen(gateway.port))  # it is ready when one of them is
        assert await served(gateway.port, 60) == [200] * 60
        page = b""

        async def all_counted() -> bool:
            nonlocal page
            page = (await asked(gateway.url(1), "/metrics")).content  # of the workers that answer in time
            return sum(map(int, _COUNTED.findall(page))) == 60

        async def all_told() -> bool:
            report = GatewayReport.decode((await asked(gateway.url(2), "/tidepool/load")).content)
            return report.pools["default/pool"].arrived_total == 60

        await eventually(all_counted)
        await eventually(all_told)  # a worker's quiet counters go out each second
        status, _ = await gateway.stop()

    assert {*_STARTED.findall(page)} == {b"0", b"1"}
    assert b"tidepool_gateway_workers 2" in page
    assert page.count(b"# TYPE tidepool_gateway_requests_total") == 1
    assert status == 0


async def test_a_worker_that_dies_is_started_again_and_gets_the_fleet_that_was_pushed(tmp_path: Path) -> None:
    fleet = str(tmp_path / "none.json")
    async with (
        ScriptedEngine() as engine,
        gateways("--fleet", fleet, "--wait-for-file", "--control-open", ready="/healthz") as gateway,
    ):
        assert (await asked(gateway.url(2), "/readyz")).status_code == 503
        pools = (FleetPool(name="default/pool", models=("tiny",), endpoints=(engine.url,)),)
        body = Fleet(issued_at=5.0, pools=pools).model_dump_json(by_alias=True)
        async with httpx.AsyncClient(timeout=_SECONDS) as client:
            assert (await client.put(gateway.url(2) + "/fleet", content=body)).status_code == 204
            for worker in children(gateway.process.pid):
                os.kill(worker, signal.SIGKILL)

                async def replaced(worker: int = worker) -> bool:
                    # With the new process there its parent has forgotten what the old one told.
                    there = children(gateway.process.pid)
                    if worker in there or len(there) < 2:
                        return False
                    return await both_have(gateway.url(2), 5.0) and await both_listen(gateway.port)

                await eventually(replaced)
                assert await served(gateway.port, 10) == [200] * 10
        assert await served(gateway.port, 20) == [200] * 20
        page = (await asked(gateway.url(1), "/metrics")).content
        _, logs = await gateway.stop()

    assert b"tidepool_gateway_worker_restarts_total 2" in page
    assert sum("is started again" in str(record["message"]) for record in logs) == 2


async def test_a_worker_whose_parent_has_gone_before_it_serves_ends_by_itself() -> None:
    heard, told = os.pipe()
    os.close(heard)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidepool_router", "gateway", "--host", "127.0.0.1", "--port", "0",
        "--worker-fd", str(told), pass_fds=(told,), stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    os.close(told)
    try:
        async with asyncio.timeout(_SECONDS):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what other processes do, of which there is no event here."""
    async with asyncio.timeout(_SECONDS):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def both_listen(port: int) -> bool:
    return listeners(port) == 2


def listeners(port: int) -> int:
    """Sockets that listen on the port, as the kernel tells."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(f":{port:04X}") and state == "0A" for _, local, _, state, *_ in lines)


async def both_have(url: str, issued: float) -> bool:
    report = GatewayReport.decode((await asked(url, "/tidepool/load")).content)
    return report.fleet_issued_at == issued


def processes() -> set[str]:
    return {entry.name for entry in Path("/proc").iterdir()}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_signal_drains_the_workers_and_cuts_nothing(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
        begun.set()
        await go_on.wait()
        await seen.chunk(b"data: [DONE]\n\n")
        await seen.chunk(b"")

    async with (
        ScriptedEngine(script) as engine,
        run_program(
            "gateway", "--workers", "2", "--fleet", written(tmp_path, engine.url), ready="/readyz"
        ) as gateway,
    ):
        async with RawClient(gateway.port) as client:
            await client.send(post(chat(stream=True)))
            await begun.wait()
            gateway.process.send_signal(signal.SIGTERM)

            async def unready() -> bool:
                return (await asked(gateway.url(2), "/readyz")).status_code == 503

            await eventually(unready)
            assert gateway.process.returncode is None
            go_on.set()
            answer = await client.answer()
        status, _ = await gateway.ended()

    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert status == 0


async def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    async with gateways("--fleet", written(tmp_path), ready="/healthz") as gateway:
        workers = children(gateway.process.pid)
        await gateway.stop(signal.SIGKILL)

        async def gone() -> bool:
            return not set(map(str, workers)) & processes()

        await eventually(gone)

    assert len(workers) == 2


async def test_settings_that_no_worker_can_use_end_the_parent(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("pools: 7")
    async with run_program(
        "gateway", "--workers", "2", "--fleet", str(tmp_path / "fleet.json"), ready=""
    ) as gateway:
        async with asyncio.timeout(_SECONDS):
            _, err = await gateway.process.communicate()

    assert gateway.process.returncode == 2
    assert b"pools" in err


def test_a_port_that_somebody_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=str(port)), reserved("127.0.0.1", port):
            pass


@pytest.mark.parametrize(
    "flags",
    [
        ["--workers", "0"],
        ["--workers", "999"],
        ["--workers", "2", "--record-decisions", "f"],
        ["--workers", "2", "--workflow-store", "sqlite:////tmp/runs.db"],
    ],
)
def test_what_cannot_be_shared_is_refused(flags: list[str]) -> None:
    with pytest.raises(SettingsError, match="--workers"):
        parse(["gateway", *flags], {})
