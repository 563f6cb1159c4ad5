"""Load streams and bare engines over real sockets."""

import asyncio
import json
from typing import Any

import pytest

from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import FleetPool
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet import listen
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.listen import Listener
from tidepool_router.fleet.pod import Pod, PodState
from tidepool_router.fleet.pool import PoolState
from tidepool_router.ledger import Estimate, Outcome

FACTS = RequestFacts(api=Api.CHAT, path="/v1/chat/completions", model="m")


class Listening:
    """A pool of one pod and its listener."""

    def __init__(self, endpoint: Any, clock: Any) -> None:
        self.pool = PoolState(FleetPool(name="p", models=("m",), wakes=True), GatewayMetrics(), clock)
        self.pool.set_pods([endpoint])
        self.clock = clock
        self.pod: Pod = next(iter(self.pool.pods.values()))

    @property
    def state(self) -> PodState:
        return self.pod.state(self.clock())

    async def __aenter__(self) -> "Listening":
        self.task = asyncio.create_task(Listener(self.pool, self.pod).run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_a_sidecars_reports_are_believed_as_they_come(sidecars: Any, clock: Any, eventually: Any) -> None:
    sidecar = await sidecars("llama-1")
    async with Listening(sidecar.endpoint, clock) as listening:
        await eventually(lambda: listening.state is PodState.STARTING)
        held = asyncio.create_task(listening.pool.wait_for_pod(FACTS, clock))
        await asyncio.sleep(0)

        sidecar.say(health=Health.READY)

        reservation = await asyncio.wait_for(held, 5)
        assert reservation.pod == "llama-1"
        sidecar.say(health=Health.DRAINING)
        await eventually(lambda: listening.state is PodState.DRAINING)


@pytest.mark.parametrize("name", ["a\r\nset-cookie: x=1", "a\nb", "a\n", "\x00", "p" * 254])
def test_a_pod_whose_name_would_be_a_header_of_its_own_is_not_believed(name: str) -> None:
    with pytest.raises(ValueError, match="pod"):
        LoadReport.decode(json.dumps({"pod": name}).encode())


async def test_lines_in_pieces_and_many_at_once_are_read(scripted: Any, clock: Any, eventually: Any) -> None:
    """Chunk borders and packets mean nothing: a report may come byte by byte, or three in one packet."""
    lines = b"".join(
        b'{"boot":"x","seq":%d,"health":"ready","running":%d}\n' % (number, number) for number in range(1, 4)
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in b"%x\r\n%b\r\n" % (len(lines), lines):
            writer.write(bytes([byte]))
            await writer.drain()
        for index in range(len(lines)):
            writer.write(b"1\r\n%b\r\n" % lines[index : index + 1].replace(b"x", b"y"))
        await reader.read()

    server = await scripted(serve)
    async with Listening(server.endpoint, clock) as listening:
        await eventually(lambda: listening.pod.report is not None and listening.pod.report.boot == "y")
        await eventually(lambda: listening.pod.load_requests == 3)


async def test_a_broken_stream_alone_takes_no_pod_out(sidecars: Any, clock: Any, eventually: Any) -> None:
    sidecar = await sidecars()
    sidecar.say(health=Health.READY)
    async with Listening(sidecar.endpoint, clock) as listening:
        await eventually(lambda: listening.state is PodState.READY)
        sidecar.hang_up()
        await eventually(lambda: sidecar.connections == 2)
        assert listening.state is PodState.READY

        await sidecar.stop()  # now connects fail too
        await eventually(lambda: listening.state is PodState.DOWN)

        await sidecar.start()  # and it is back at its address
        sidecar.say(health=Health.READY)
        await eventually(lambda: listening.state is PodState.READY)


async def test_a_silent_stream_is_left_and_tried_again(
    sidecars: Any, clock: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "SILENT_SECONDS", 0.05)
    sidecar = await sidecars()
    async with Listening(sidecar.endpoint, clock):
        await eventually(lambda: sidecar.connections >= 3)


async def test_a_stream_that_opens_and_says_nothing_takes_the_pod_out(
    sidecars: Any, scripted: Any, clock: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped, or wedged after its head: what it said last is not true any more."""
    monkeypatch.setattr(listen, "SILENT_SECONDS", 0.05)
    talks = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        if talks:
            writer.write(b'{"boot":"x","seq":1,"health":"ready"}\n')
        await reader.read()

    server = await scripted(serve)
    async with Listening(server.endpoint, clock) as listening:
        await eventually(lambda: listening.state is PodState.READY)
        talks = False
        await eventually(lambda: listening.state is PodState.DOWN)


async def test_where_a_sidecar_was_another_server_is_not_taken_for_a_bare_engine(
    sidecars: Any, scripted: Any, clock: Any, eventually: Any
) -> None:
    """The address was given away: whoever answers 404 there would swallow requests, and 4xx never counts."""
    sidecar = await sidecars()
    sidecar.say(health=Health.READY)
    async with Listening(sidecar.endpoint, clock) as listening:
        await eventually(lambda: listening.state is PodState.READY)
        await sidecar.stop()

        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

        sidecar._connection = other
        connections = sidecar.connections
        await sidecar.start()
        await eventually(lambda: sidecar.connections > connections + 1)
        assert listening.state is PodState.DOWN


@pytest.mark.parametrize(
    "junk",
    [b"not json\n", b"[1]\n", b'{"seq": "x"}\n', b'{"health": 5}\n', b"\xff\xfe\n"],
)
async def test_what_is_no_report_is_no_pod(scripted: Any, clock: Any, eventually: Any, junk: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + junk)
        await reader.read()

    server = await scripted(serve)
    async with Listening(server.endpoint, clock) as listening:
        await eventually(lambda: server.connections >= 2)
        assert listening.state is PodState.DOWN


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n", b""])
async def test_a_port_of_something_else_is_no_pod(scripted: Any, clock: Any, eventually: Any, raw: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()

    server = await scripted(serve)
    async with Listening(server.endpoint, clock) as listening:
        await eventually(lambda: server.connections >= 2)
        assert listening.state is PodState.DOWN


def page(running: int, waiting: int = 0, tokens: int = 0) -> tuple[int, bytes]:
    text = (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        f"vllm:generation_tokens_total {tokens}\n"
    )
    return 200, text.encode()


async def test_a_bare_engine_is_scraped(
    engine: Any, clock: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "_SCRAPE_SECONDS", 0.01)
    engine.pages["/metrics"] = page(running=3, waiting=2)
    async with Listening(engine.endpoint, clock) as listening:
        await eventually(lambda: listening.state is PodState.READY)
        assert listening.pod.load_requests == 5
        assert listening.pod.load_tokens > 0  # others' requests weigh something

        engine.pages["/metrics"] = (404, b"")  # not even that: own counting is left
        await eventually(lambda: listening.pod.load_requests == 0)
        assert listening.state is PodState.READY

        await engine.stop()
        await eventually(lambda: listening.state is PodState.DOWN)


async def test_own_requests_on_a_bare_engine_are_not_counted_twice(
    engine: Any, clock: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "_SCRAPE_SECONDS", 0.01)
    engine.pages["/metrics"] = page(running=0)
    async with Listening(engine.endpoint, clock) as listening:
        await eventually(lambda: listening.state is PodState.READY)
        for _ in range(3):
            listening.pool.pick(FACTS, clock())
        assert listening.pod.load_requests == 3

        engine.pages["/metrics"] = page(running=3)
        scrapes = len(engine.asked)
        await eventually(lambda: len(engine.asked) > scrapes + 2)

        assert listening.pod.load_requests == 3
        assert listening.pod.load_tokens == listening.pod.ledger.load_tokens


async def test_a_bare_engine_that_makes_no_tokens_is_hung(
    engine: Any, clock: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "_SCRAPE_SECONDS", 0.01)
    engine.pages["/metrics"] = page(running=1, tokens=50)
    async with Listening(engine.endpoint, clock) as listening:
        await eventually(lambda: listening.state is PodState.READY)
        entry = listening.pod.ledger.open(Estimate(1, 1), clock())
        clock.pass_(62.0)
        await eventually(lambda: listening.state is PodState.HUNG)
        entry.close(
            Outcome.CANCELLED, clock()
        )  # it went elsewhere: nothing runs, and nothing has been seen to work
        scrapes = len(engine.asked)
        await eventually(lambda: len(engine.asked) > scrapes + 2)
        assert listening.state is PodState.HUNG

        engine.pages["/metrics"] = page(running=1, tokens=51)  # one long answer, no stream: its counter moves
        await eventually(lambda: listening.state is PodState.READY)
