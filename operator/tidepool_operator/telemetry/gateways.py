"""Demand from the gateways: a held-open load stream from every gateway pod."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx

from tidepool_api.contract import CONTROL_PORT, PATH_LOAD_STREAM
from tidepool_api.load import GatewayReport, PoolDemand
from tidepool_operator.cluster.http import plain_client
from tidepool_operator.scaling.model import Demand, Known, Sample, Stale

log = logging.getLogger(__name__)

# A gateway speaks at least once a second; this is five heartbeats missed.
SILENT_SECONDS: Final = 5.0
REFUSED_SECONDS: Final = 30.0
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
# A report of 10,000 pools, the most that a fleet may have, has a third of this.
LINE_BYTES: Final = 8 * 1024 * 1024
GATEWAYS: Final = 256
# Of calls that are announced, by one gateway for one pool.
MOST_COMING: Final = 10_000
_NOTHING: Final = PoolDemand()


@dataclass(slots=True)
class _Gateway:
    """One gateway pod; `heard_at` is when its last report came, None before the first."""

    address: str
    followed_since: float
    report: GatewayReport = field(default_factory=GatewayReport)
    heard_at: float | None = None
    refusals: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)

    def silent_seconds(self, now: float) -> float:
        return now - (self.followed_since if self.heard_at is None else self.heard_at)

    def fresh(self, now: float) -> bool:
        return self.heard_at is not None and now - self.heard_at <= SILENT_SECONDS

    def take(self, report: GatewayReport, now: float) -> list[str]:
        """Keep a report; names of the pools that somebody asks for in vain."""
        known = self.heard_at is not None
        before = self.report.pools if report.boot == self.report.boot else {}
        asked = []
        for pool, demand in report.pools.items():
            total = before.get(pool, _NOTHING).refused_total
            # The counter of a process that is new to us says nothing of when; that of one that restarted under our
            # eyes, or that went back, began at zero.
            refused = demand.refused_total - (total if demand.refused_total >= total else 0) if known else 0
            if refused > 0:
                self.refusals.setdefault(pool, deque(maxlen=1024)).append((now, refused))
            if demand.held > 0 or refused > 0:
                asked.append(pool)
        for pool in self.refusals.keys() - report.pools.keys():
            del self.refusals[pool]
        self.report, self.heard_at = report, now
        return asked

    def refused(self, pool: str, now: float) -> int:
        """Requests refused within the last REFUSED_SECONDS."""
        found = self.refusals.get(pool)
        if found is None:
            return 0
        while found and now - found[0][0] > REFUSED_SECONDS:
            found.popleft()
        if not found:
            del self.refusals[pool]
        return sum(count for _, count in found)


class Gateways:
    """Follows every gateway pod, adds up what they say, and calls `on_demand` with the key of a pool at once.

    `proof` gives the headers by which a gateway knows us.
    """

    def __init__(
        self,
        addresses: Callable[[], Mapping[str, str]],
        on_demand: Callable[[str], None],
        clock: Callable[[], float],
        *,
        port: int = CONTROL_PORT,
        look_seconds: float = 1.0,
        proof: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
    ) -> None:
        self._addresses = addresses
        self._on_demand = on_demand
        self._clock = clock
        self._port = port
        self._look_seconds = look_seconds
        self._proof = proof
        self._gateways: dict[str, _Gateway] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._looker: asyncio.Task[None] | None = None
        limits = httpx.Limits(max_connections=GATEWAYS)
        timeout = httpx.Timeout(SILENT_SECONDS, connect=2.0)
        self._client = plain_client(timeout, limits)

    async def start(self) -> None:
        """Begin to follow."""
        self._looker = asyncio.create_task(self._look(), name="gateways")

    async def close(self) -> None:
        """End all streams."""
        tasks = [*self._followers.values(), *([self._looker] if self._looker else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    def demand(self, key: str) -> Demand:
        """What all gateways together have of a pool; without any gateway nothing is held, and that is known."""
        now = self._clock()
        fresh = [gateway for gateway in self._gateways.values() if gateway.fresh(now)]
        pools = [gateway.report.pools.get(key, _NOTHING) for gateway in fresh]
        held, in_flight = sum(pool.held for pool in pools), sum(pool.in_flight for pool in pools)
        refused = sum(gateway.refused(key, now) for gateway in fresh)
        # It comes from another process, and would grow a pool: no more of it is believed than can be.
        coming = sum(min(max(0, pool.coming), MOST_COMING) for pool in pools)
        silent = self._silence(now)
        return Demand(
            held=_at_least(held, silent),
            refused=_at_least(refused, silent),
            in_flight=Known(in_flight) if silent is None else Stale(in_flight, *silent),
            gateways=len(self._gateways),
            coming=_at_least(coming, silent),
        )

    def reports(self) -> dict[str, GatewayReport]:
        """The last report of every gateway that is heard, by pod."""
        now = self._clock()
        return {pod: gateway.report for pod, gateway in self._gateways.items() if gateway.fresh(now)}

    def _silence(self, now: float) -> tuple[float, str] | None:
        silent = [(gw.silent_seconds(now), pod) for pod, gw in self._gateways.items() if not gw.fresh(now)]
        if not silent:
            return None
        seconds, pod = max(silent)
        return seconds, f"gateway {pod} is silent"

    async def _look(self) -> None:
        while True:
            try:
                self._sync(dict(sorted(self._addresses().items())[:GATEWAYS]))
            except Exception:
                log.exception("the gateways could not be listed; trying again")
            await asyncio.sleep(self._look_seconds)

    def _sync(self, addresses: Mapping[str, str]) -> None:
        for pod, gateway in list(self._gateways.items()):
            if addresses.get(pod) != gateway.address:
                del self._gateways[pod]
                self._followers.pop(pod).cancel()
        for pod, address in addresses.items():
            if pod not in self._gateways:
                gateway = self._gateways[pod] = _Gateway(address, self._clock())
                self._followers[pod] = asyncio.create_task(self._follow(pod, gateway), name=f"gateway {pod}")

    async def _follow(self, pod: str, gateway: _Gateway) -> None:
        """Read the stream for ever; open a broken one again, after growing pauses until something is heard."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                async for line in self._lines(gateway.address):
                    self._take(gateway, GatewayReport.decode(line))
                    pause_seconds = FIRST_PAUSE_SECONDS
            except (httpx.HTTPError, ValueError) as error:
                log.info("load stream of gateway %s ended: %s", pod, error or type(error).__name__)
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    def _take(self, gateway: _Gateway, report: GatewayReport) -> None:
        for pool in gateway.take(report, self._clock()):
            self._on_demand(pool)

    async def _lines(self, address: str) -> AsyncIterator[bytes]:
        """Lines of a stream. Raises httpx.HTTPError, and ValueError for a line beyond all measure."""
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}{PATH_LOAD_STREAM}"
        headers = None if self._proof is None else await self._proof()
        async with self._client.stream("GET", url, headers=headers) as response:
            response.raise_for_status()
            rest = b""
            async for chunk in response.aiter_raw():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LINE_BYTES:
                    raise ValueError(f"a line of more than {LINE_BYTES} bytes")
                for line in filter(None, lines):
                    yield line


def _at_least(count: int, silent: tuple[float, str] | None) -> Sample:
    """A count that may be too low: it can say that somebody asks, but not that nobody does."""
    return Known(count) if silent is None or count > 0 else Stale(count, *silent)
