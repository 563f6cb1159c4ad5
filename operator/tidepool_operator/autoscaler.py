"""Owner of the scaling loop: reads all pools, decides each, acts through the scale subresource."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from zlib import crc32

from tidepool_api.load import GatewayReport
from tidepool_api.scaling import Mode
from tidepool_operator.errors import OperatorError
from tidepool_operator.foresight import Foresight
from tidepool_operator.pool.status import FIGURES_SECONDS, live_figures
from tidepool_operator.scaling.ahead import recalled, started, startup_p90
from tidepool_operator.scaling.decide import decide, refused
from tidepool_operator.scaling.model import Decision, Demand, Memory, PoolReading, ScaledPool
from tidepool_operator.scaling.record import Record
from tidepool_operator.telemetry.history import Past, Work

log = logging.getLogger(__name__)

HISTORY: Final = 10  # decisions kept for status.scaling.history, whose bound it is
# Gateways report every 50 ms while requests come: pools at zero are looked at no more often than this.
WAKE_PAUSE_SECONDS: Final = 0.1
WRITES_AT_ONCE: Final = 16


class Cluster(Protocol):
    """What the loop needs of the operator's cache and API client."""

    def scaled_pools(self) -> Sequence[ScaledPool]:
        """All pools with `scaling` that are not being deleted, with their live pods."""
        ...

    def gateways(self) -> Mapping[str, str]:
        """Address (IP) of every gateway pod that is ready or being deleted, by the pod's name."""
        ...

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Write the pool's scale subresource. Raises OperatorError."""
        ...

    def mark_due(self, key: str) -> None:
        """Put the pool ("namespace/name") into the reconcile queue."""
        ...

    def leads(self) -> bool:
        """Whether this process holds the lease."""
        ...


class Board:
    """The decisions of each pool that the reconcile writes into the status; bounded by pools and by ten each."""

    def __init__(self) -> None:
        self._last: dict[str, Decision] = {}
        self._told: dict[str, tuple[float, Mapping[str, str]]] = {}
        self._history: dict[str, deque[Decision]] = {}

    def get(self, key: str) -> Decision | None:
        """The last decision for the pool, None before the first."""
        return self._last.get(key)

    def history(self, key: str) -> tuple[Decision, ...]:
        """The last ten decisions that changed the count, the newest first."""
        return tuple(self._history.get(key, ()))

    def put(self, key: str, decision: Decision) -> bool:
        """Keep a decision; True when the pool's status should hear of it: it says something other than the one
        before, or the live figures have moved and were not told for a minute."""
        before = self._last.get(key)
        self._last[key] = decision
        if before is None or (before.replicas, before.mix) != (decision.replicas, decision.mix):
            self._history.setdefault(key, deque(maxlen=HISTORY)).appendleft(decision)
        figures = live_figures(decision)
        since, told = self._told.get(key, (0.0, {}))
        news = before is None or _gist(before) != _gist(decision)
        if news or (figures != told and decision.time - since >= FIGURES_SECONDS):
            # The first time up to a minute more, so that hundreds of pools are not written all at once.
            spread = crc32(key.encode()) % FIGURES_SECONDS if news else 0.0
            self._told[key] = (decision.time + spread, figures)
            return True
        return False

    def keep(self, keys: Collection[str]) -> None:
        """Forget every pool that is not among `keys`."""
        for key in self._last.keys() - set(keys):
            del self._last[key], self._history[key], self._told[key]


def _gist(decision: Decision) -> tuple[int, str, Mapping[str, int], int]:
    return decision.replicas, decision.reason, decision.mix, decision.refused.replicas if decision.refused else 0


class History(Protocol):
    """Prometheus, or what stands for it."""

    async def read(self, now: float, pools: Sequence[ScaledPool]) -> Mapping[str, PoolReading]:
        """A reading for every pool by its key, without demand. Raises nothing for the source's sake."""
        ...

    async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:
        """Demand of past days of a few pools. Raises OperatorError."""
        ...

    async def work(self, now: float, pools: Sequence[ScaledPool]) -> Work:
        """How the engines of a few pools worked of late. Raises OperatorError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Gateways(Protocol):
    """What the gateways say."""

    async def start(self) -> None:
        """Begin to listen."""
        ...

    async def close(self) -> None:
        """Stop listening."""
        ...

    def demand(self, key: str) -> Demand:
        """What all gateways together have of a pool."""
        ...

    def reports(self) -> Mapping[str, GatewayReport]:
        """The last report of every gateway that is heard, by pod."""
        ...


class Arbitrates(Protocol):
    """Who judges all decisions of a look together."""

    async def settled(
        self, now: float, decided: Sequence[tuple[ScaledPool, Decision, Mapping[str, int]]]
    ) -> Sequence[Decision]:
        """The decisions with the replicas that each pool may have now, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """How often pools are looked at."""

    interval_seconds: float = 5.0


class Autoscaler:
    """Two tasks: one looks at all pools every interval, one wakes pools at zero as soon as a gateway asks.

    Only the leader decides and acts. Another process forgets what it knew, so that a new leader begins like an
    operator that was started anew: without a scale-down before a whole stabilisation window has been seen.
    """

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        gateways: Callable[[Callable[[str], None]], Gateways],
        settings: AutoscalerSettings = AutoscalerSettings(),
        clock: Callable[[], float] = time.time,
        arbiter: Arbitrates | None = None,
    ) -> None:
        self.board = Board()
        self.gateways = gateways(self.on_demand)
        self._cluster = cluster
        self._history = history
        self._settings = settings
        self._clock = clock
        self._arbiter = arbiter
        self._memory: dict[str, Memory] = {}
        self._foresight = Foresight(history, settings.interval_seconds)
        self._asked: set[str] = set()
        self._asking = asyncio.Event()
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def start(self) -> None:
        """Begin to look."""
        await self.gateways.start()
        self._tasks = (
            asyncio.create_task(self._look(), name="autoscaler"),
            asyncio.create_task(self._wake(), name="autoscaler wake"),
        )

    async def close(self) -> None:
        """Stop both tasks; a write that is under way is abandoned, the next leader repeats it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.gateways.close()
        await self._history.close()

    def coverage(self) -> Mapping[str, float]:
        """Share of recent demand that lay within its 90 % band, by pool."""
        return self._foresight.coverage()

    def recorded(self, key: str) -> Record | None:
        """A pool's demand of the past, where it is kept: of pools that predict, by who leads."""
        return self._foresight.record(key)

    def startup_seconds(self, key: str) -> float:
        """How long a pod of the pool takes until it serves, 90th percentile."""
        return startup_p90(self._memory.get(key, Memory()))

    def on_demand(self, key: str) -> None:
        """Somebody asks for the pool: look at it at once if it is at zero."""
        self._asked.add(key)
        self._asking.set()

    async def tick(self) -> None:
        """Read all pools once, decide each and act."""
        if not self._cluster.leads():
            self._forget(())
            return
        now = self._clock()
        readings = await self._history.read(now, self._cluster.scaled_pools())
        # Replicas are those of now: the answers may have taken seconds.
        pools = self._cluster.scaled_pools()
        self._forget({pool.key for pool in pools})
        for pool in pools:
            self._memory[pool.key] = started(self._memory.get(pool.key, Memory()), pool.pods)
        read = [(pool, readings[pool.key]) for pool in pools if pool.key in readings]
        await self._foresight.look(now, read, self._memory)
        await self._act(now, read, self._arbiter)

    async def wake(self) -> None:
        """Decide the pools at zero that gateways ask for, without waiting for a tick or for Prometheus."""
        asked, self._asked = self._asked, set()
        if self._cluster.leads():
            pools = [pool for pool in self._cluster.scaled_pools() if pool.replicas == 0 and pool.key in asked]
            await self._act(self._clock(), [(pool, PoolReading(pool.key)) for pool in pools])

    async def _act(
        self, now: float, read: Iterable[tuple[ScaledPool, PoolReading]], arbiter: Arbitrates | None = None
    ) -> None:
        # Before anything is told: the mix is as last told.
        decided = [(pool, self._decide(now, pool, reading), self._mix(pool)) for pool, reading in read]
        final: Sequence[Decision] = [decision for _, decision, _ in decided]
        if arbiter is not None:
            final = await arbiter.settled(now, decided)
        pools = [pool for pool, _, _ in decided]
        for pool, decision in zip(pools, final, strict=True):
            self._tell(now, pool, decision)
        await asyncio.gather(*(self._carry_out(*each) for each in zip(pools, final, strict=True)))

    def _decide(self, now: float, pool: ScaledPool, reading: PoolReading) -> Decision:
        reading = replace(reading, demand=self.gateways.demand(pool.key), identity=pool.identity)
        memory = self._memory.get(pool.key, Memory())
        if (taught := self._foresight.recalled(pool.key)) is not None:
            memory = recalled(memory, taught)
        forecast = self._foresight.get(pool.key)
        decision, memory = decide(now, reading, pool.spec, pool.replicas, memory, forecast, self._mix(pool))
        self._memory[pool.key] = memory
        return decision

    def _tell(self, now: float, pool: ScaledPool, decision: Decision) -> None:
        memory = self._memory.get(pool.key)
        if memory is not None and decision.refused is not None:
            self._memory[pool.key] = refused(now, memory, decision)
        before = self.board.get(pool.key)
        if self.board.put(pool.key, decision):
            if before is None or _gist(before) != _gist(decision):
                log.info("pool %s: %s: %s", pool.key, decision.reason, decision.message)
            self._cluster.mark_due(pool.key)

    def _mix(self, pool: ScaledPool) -> Mapping[str, int]:
        """Replicas by variant: as last decided, where that was carried out and the status may not say so yet."""
        last = self.board.get(pool.key)
        carried_out = last is not None and last.replicas == pool.replicas and pool.spec.mode is Mode.AUTO
        return last.mix if last is not None and carried_out else pool.mix

    async def _carry_out(self, pool: ScaledPool, decision: Decision) -> None:
        if pool.spec.mode is Mode.RECOMMEND or decision.replicas == pool.replicas:
            return
        async with self._writes:
            try:
                await self._cluster.scale(pool.namespace, pool.name, decision.replicas)
            except OperatorError as error:
                log.warning("pool %s: not scaled to %d, trying again: %s", pool.key, decision.replicas, error)

    def _forget(self, keys: Collection[str]) -> None:
        """Keep only what is known of the pools in `keys`."""
        self.board.keep(keys)
        for key in self._memory.keys() - set(keys):
            del self._memory[key]
        if not keys:
            self._foresight.keep(())

    async def _look(self) -> None:
        while True:
            begun = time.monotonic()
            await self._guarded(self.tick)
            spent = time.monotonic() - begun
            await asyncio.sleep(max(0.0, self._settings.interval_seconds - spent))

    async def _wake(self) -> None:
        while True:
            await self._asking.wait()
            self._asking.clear()
            await self._guarded(self.wake)
            await asyncio.sleep(WAKE_PAUSE_SECONDS)

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> None:
        # A defect in one step must not end scaling for good.
        try:
            await step()
        except Exception:
            log.exception("scaling: a step failed; going on")
