"""Demand from the gateways' load streams, over real sockets; only time is the test's own."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from cluster.ports import free_ports
from tidepool_api.load import GatewayReport, PoolDemand
from tidepool_operator.scaling.model import Demand, Known, Stale
from tidepool_operator.telemetry.gateways import MOST_COMING, Gateways

POOL = "team/llama"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Gateway:
    """Answers every load stream with what it is told to say, and counts the streams."""

    address: str
    port: int
    streams: list[asyncio.StreamWriter] = field(default_factory=list)
    opened: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    status: bytes = HEAD
    server: asyncio.Server | None = None
    heads: list[bytes] = field(default_factory=list)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, self.address, self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.status)
        self.streams.append(writer)
        self.opened.release()

    async def connected(self) -> None:
        async with asyncio.timeout(10):
            await self.opened.acquire()

    def say(self, *, boot: str = "one", **demand: int) -> None:
        self.send(GatewayReport(gateway=self.address, boot=boot, pools={POOL: PoolDemand(**demand)}).encode())

    def send(self, line: bytes, pieces: int = 1) -> None:
        size = -(-len(line) // pieces)
        for start in range(0, len(line), size):
            part = line[start : start + size]
            self.streams[-1].write(b"%x\r\n%b\r\n" % (len(part), part))

    def hang_up(self) -> None:
        self.streams[-1].close()

    async def close(self) -> None:
        for stream in self.streams:
            stream.close()
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()


class World:
    """Two gateways, the operator's view of them, and a clock that stands still until it is moved."""

    def __init__(self) -> None:
        port = free_ports(1)[0]
        self.one, self.two = Gateway("127.0.0.1", port), Gateway("127.0.0.2", port)
        self.addresses = {"gateway-1": "127.0.0.1"}
        self.now = 1000.0
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.gateways = Gateways(
            lambda: self.addresses,
            self.asked.put_nowait,
            lambda: self.now,
            port=port,
            look_seconds=0.01,
            proof=self._proof,
        )

    async def _proof(self) -> dict[str, str]:
        return {"x-tidepool-proof": f"token-{len(self.one.streams)}"}

    def demand(self) -> Demand:
        return self.gateways.demand(POOL)

    async def until(self, holds: Callable[[Demand], bool]) -> Demand:
        async with asyncio.timeout(10):
            while not holds(self.demand()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return self.demand()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.one.start()
    await made.two.start()
    await made.gateways.start()
    yield made
    await made.gateways.close()
    await made.one.close()
    await made.two.close()


async def both(world: World) -> None:
    world.addresses["gateway-2"] = "127.0.0.2"
    await world.one.connected()
    await world.two.connected()


async def test_demand_is_the_sum_over_the_gateways(world: World) -> None:
    await both(world)
    world.one.say(held=2, in_flight=5)
    world.two.say(held=1, in_flight=7)

    found = await world.until(lambda demand: demand.in_flight == Known(12))

    assert found == Demand(held=Known(3), refused=Known(0), in_flight=Known(12), gateways=2, coming=Known(0))


async def test_what_runs_will_ask_adds_up_also_beside_a_gateway_of_a_release_that_does_not_tell(
    world: World,
) -> None:
    await both(world)
    world.one.say(coming=40, in_flight=5)
    told = {"in_flight": 7, "held": 1}
    world.two.send(json.dumps({"boot": "one", "pools": {POOL: told}}).encode() + b"\n")

    found = await world.until(lambda demand: demand.in_flight == Known(12))

    assert (found.coming, found.held) == (Known(40), Known(1))


async def test_a_gateway_that_announces_nonsense_is_believed_within_bounds(world: World) -> None:
    await both(world)
    world.one.say(coming=-(10**6), held=1)
    world.two.say(coming=10**9, held=1)

    found = await world.until(lambda demand: demand.held == Known(2))

    assert found.coming == Known(MOST_COMING)


async def test_each_stream_is_asked_for_with_the_proof_of_that_moment(world: World) -> None:
    await world.one.connected()
    world.one.hang_up()
    await world.one.connected()

    shown = [head.partition(b"x-tidepool-proof: ")[2].partition(b"\r\n")[0] for head in world.one.heads]
    assert shown == [b"token-0", b"token-1"]


async def test_the_first_held_request_calls_at_once(world: World) -> None:
    await world.one.connected()
    world.one.say(held=0)
    world.one.say(held=1)

    async with asyncio.timeout(10):
        assert await world.asked.get() == POOL
    assert world.demand().held == Known(1)
    assert world.asked.empty()


async def test_a_refused_request_calls_and_is_remembered_for_half_a_minute(world: World) -> None:
    await world.one.connected()
    world.one.say(refused_total=40)  # from before the operator listened
    world.one.say(refused_total=43)

    async with asyncio.timeout(10):
        await world.asked.get()
    assert world.demand().refused == Known(3)
    world.now += 31
    world.one.say(refused_total=43)
    await world.until(lambda demand: demand.refused == Known(0))


@pytest.mark.parametrize("refused", [2, 45], ids=["fewer than before", "more than before"])
async def test_refusals_of_a_gateway_that_restarted_count_from_zero(world: World, refused: int) -> None:
    await world.one.connected()
    world.one.say(refused_total=40)
    world.one.say(boot="two", refused_total=refused)

    await world.until(lambda demand: demand.refused == Known(refused))


async def test_a_silent_gateway_makes_zero_unknown_but_not_what_others_hold(world: World) -> None:
    await both(world)
    world.one.say(held=0, in_flight=1)
    world.two.say(held=0, in_flight=1)
    await world.until(lambda demand: demand.in_flight == Known(2))

    world.now += 5.5
    world.one.say(held=0, in_flight=1)
    quiet = await world.until(lambda demand: demand.in_flight.value == 1)  # type: ignore[union-attr]
    world.one.say(held=4, in_flight=1)
    asked = await world.until(lambda demand: demand.held == Known(4))

    silence = Stale(0, 5.5, "gateway gateway-2 is silent")
    assert (quiet.held, quiet.refused, quiet.gateways) == (silence, silence, 2)
    assert isinstance(quiet.in_flight, Stale)
    assert isinstance(asked.in_flight, Stale)


async def test_a_gateway_that_was_never_heard_is_silent(world: World) -> None:
    await world.one.connected()

    assert isinstance(world.demand().held, Stale)


@pytest.mark.parametrize("break_off", [Gateway.hang_up, lambda gateway: gateway.send(b"{no json\n")])
async def test_a_stream_that_breaks_is_opened_again(world: World, break_off: Callable[[Gateway], None]) -> None:
    await world.one.connected()
    world.one.say(held=1)
    await world.until(lambda demand: demand.held == Known(1))

    break_off(world.one)
    await world.one.connected()
    world.one.say(held=2)

    await world.until(lambda demand: demand.held == Known(2))


async def test_a_gateway_that_answers_with_an_error_is_asked_again(world: World) -> None:
    world.one.status = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
    await world.one.connected()
    world.one.status = HEAD

    await world.one.connected()
    world.one.say(held=1)

    await world.until(lambda demand: demand.held == Known(1))


async def test_a_line_may_come_in_pieces(world: World) -> None:
    await world.one.connected()
    report = GatewayReport(boot="one", pools={POOL: PoolDemand(held=3)})

    world.one.send(report.encode() * 2, pieces=7)

    await world.until(lambda demand: demand.held == Known(3))


async def test_a_gateway_that_is_gone_counts_no_more(world: World) -> None:
    await both(world)
    world.one.say(held=1)
    world.two.say(held=2)
    await world.until(lambda demand: demand.held == Known(3))

    del world.addresses["gateway-2"]

    found = await world.until(lambda demand: demand.gateways == 1)
    assert found.held == Known(1)


async def test_without_gateways_nothing_is_held_and_nobody_could_wake(world: World) -> None:
    world.addresses.clear()
    await asyncio.wait_for(world.until(lambda demand: demand.gateways == 0), 10)

    assert world.demand() == Demand(
        held=Known(0), refused=Known(0), in_flight=Known(0), gateways=0, coming=Known(0)
    )


async def test_the_last_reports_tell_which_fleet_a_gateway_knows(world: World) -> None:
    await world.one.connected()
    world.one.send(GatewayReport(boot="one", fleet_issued_at=17.5, pools={POOL: PoolDemand(held=1)}).encode())
    await world.until(lambda demand: demand.held == Known(1))

    assert {pod: report.fleet_issued_at for pod, report in world.gateways.reports().items()} == {"gateway-1": 17.5}
    world.now += 6
    assert world.gateways.reports() == {}
