"""All pools of a gateway: what a fleet document makes of them, who listens to their pods, what is reported."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from tidepool_api.load import GatewayReport, PoolDemand
from tidepool_api.routing import Fleet, FleetPool, FleetWorkflow
from tidepool_router.fleet.drain import Drain
from tidepool_router.fleet.feed import Feed
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.members import Members
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.recording import DecisionLog
from tidepool_router.fleet.resolve import Lookup, look_up
from tidepool_router.fleet.shared_metrics import total
from tidepool_router.governance import compile_traffic
from tidepool_router.tls import Trust

_TICK_SECONDS: Final = 0.05
_SWEEP_TICKS: Final = 20
_RESOLVER_THREADS: Final = 8

log = logging.getLogger("tidepool.fleet")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One name that clients may use; `created` in Unix seconds, when this gateway first knew it.

    `parent` is the model of a LoRA adapter.
    """

    id: str
    pool: str
    created: int
    parent: str | None = None


class GatewayFleet:
    """Level-triggered: `apply` makes the pools those of the document and keeps the state of what stays."""

    def __init__(
        self,
        *,
        name: str,
        boot: str,
        now: Callable[[], float] = time.monotonic,
        lookup: Lookup = look_up,
        trust: Trust | None = None,
        decisions: DecisionLog | None = None,
        explains: bool = False,
    ) -> None:
        self.name = name
        self._decisions = decisions
        self._explains = explains
        self._trust = trust
        self.metrics = GatewayMetrics()
        self.pools: dict[str, PoolState] = {}
        self.issued_at: float | None = None
        self.has_fleet = False
        self.gateways = 1
        self.workflows: tuple[FleetWorkflow, ...] = ()
        self.feed: Feed[GatewayReport] = Feed(self.report, _differs)
        self._boot = boot
        self._seq = 0
        self._now = now
        self._lookup = lookup
        self._executor = ThreadPoolExecutor(_RESOLVER_THREADS, "resolve")
        self._members: dict[str, Members] = {}
        self._leaving: list[Members] = []  # of pools that are gone, until their last request has ended
        self._fleet = Fleet()
        self._models: dict[str, PoolState] = {}
        self._created: dict[str, int] = {}
        self._followers: list[Callable[[], None]] = []
        # Calls that runs of workflows will make soon, by pool; beside the report of each second, nobody hurries.
        self.coming: Callable[[], Mapping[str, int]] = dict
        self._housekeeping: asyncio.Task[None] | None = None
        self._drain: Drain | None = None
        self.metrics.registry.before_scrape(self._set_gauges)

    async def start(self) -> None:
        """Begin to keep house; pods are listened to from `apply` on."""
        self._housekeeping = asyncio.create_task(self._keep_house(), name="fleet-housekeeping")

    async def close(self) -> None:
        """Stop all tasks; held requests hear that the pool is gone."""
        self.apply(Fleet())
        self.feed.close()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
        for members in self._leaving:
            await members.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._decisions is not None:
            self._decisions.close()

    @property
    def live(self) -> int:
        """Requests in flight or held."""
        return sum(pool.live + pool.queue.held for pool in self.pools.values())

    def route(self, model: str) -> PoolState | None:
        """The pool that serves a name, an alias or an adapter."""
        return self._models.get(model)

    def models(self) -> Sequence[ModelCard]:
        """All names, in the order of the document."""
        return [
            ModelCard(
                model, pool.name, self._created[model], pool.engine_model if model in pool.adapters else None
            )
            for model, pool in self._models.items()
        ]

    def apply(self, fleet: Fleet) -> bool:
        """Make this the fleet; False when it is older than the one in force, which then stays.

        A document without `issued_at` is a person's and always applies.
        """
        if fleet.issued_at is not None and self.issued_at is not None and fleet.issued_at < self.issued_at:
            return False
        self.issued_at, self.has_fleet = fleet.issued_at, True
        wanted = {config.name: config for config in fleet.pools}
        for name in [name for name in self.pools if name not in wanted]:
            self._remove(name)
        for config in wanted.values():
            self._update(config)
        self._fleet = fleet
        self._name_models()
        self._compile_traffic(fleet)
        self.gateways = fleet.gateways
        self.workflows = fleet.workflows
        for follower in self._followers:
            follower()
        self.feed.touch()
        return True

    def follow(self, follower: Callable[[], None]) -> None:
        """Call this now and after each fleet that is applied."""
        self._followers.append(follower)
        follower()

    def report(self) -> GatewayReport:
        """Demand of each pool; each call counts as one report."""
        self._seq += 1
        now, coming = self._now(), self.coming()
        return GatewayReport(
            gateway=self.name,
            boot=self._boot,
            seq=self._seq,
            fleet_issued_at=self.issued_at,
            pools={name: pool.demand(now, coming.get(name, 0)) for name, pool in self.pools.items()},
        )

    @property
    def draining(self) -> bool:
        """From the first drain on, for good."""
        return self._drain is not None

    def begin_drain(self, timeout_seconds: float) -> Drain:
        """From now on not ready; the first call's timeout holds."""
        if self._drain is None:
            self._drain = Drain(self._now(), timeout_seconds)
            log.info("draining", extra={"timeout_seconds": timeout_seconds, "live": self.live})
        return self._drain

    async def drain(self, timeout_seconds: float) -> None:
        """Begin to drain, and return when what runs and is held is over, or at the timeout."""
        await self.begin_drain(timeout_seconds).finished(lambda: self.live, self._now)

    def _update(self, config: FleetPool) -> None:
        pool = self.pools.get(config.name)
        if pool is None:
            pool = PoolState(config, self.metrics, self._now, self.feed.touch)
            pool.explains = self._explains
            pool.names_changed = self._name_models
            if self._decisions is not None:
                pool.record = self._decisions.record
            self.pools[config.name] = pool
            self._members[config.name] = Members(pool, self._executor, self._lookup, self._trust)
        else:
            if pool.config.traffic != config.traffic:
                self.metrics.forget_traffic(config.name)  # rules come and go, their series must not pile up
            pool.apply(config)
        self._members[config.name].update(config.endpoints)
        self._update_prefill(pool, config)

    def _update_prefill(self, pool: PoolState, config: FleetPool) -> None:
        """The pods that compute its prompts are a pool within it: picked, ejected and counted as all others."""
        side, prefill = pool.prefill, config.prefill
        if prefill is None:
            self._end_prefill(pool)
            return
        if side is None:
            side = pool.prefill = PoolState(config, self.metrics, self._now)
            side.decode, side.estimator = pool, pool.estimator
            self._members[_prefill_key(pool)] = Members(side, self._executor, self._lookup, self._trust)
        else:
            side.apply(config)
        self._members[_prefill_key(pool)].update(prefill.endpoints)

    def _end_prefill(self, pool: PoolState) -> None:
        if pool.prefill is None:
            return
        pool.prefill = None
        members = self._members.pop(_prefill_key(pool))
        members.update(())
        self._leaving.append(members)

    def _remove(self, name: str) -> None:
        pool = self.pools.pop(name)
        pool.close()
        self._end_prefill(pool)
        members = self._members.pop(name)
        members.update(())
        self._leaving.append(members)
        self.metrics.forget(name)

    def _name_models(self) -> None:
        """Names that the document gives go before adapters that only sidecars tell of."""
        models: dict[str, PoolState] = {}
        # A pool with `traffic` goes first: its canary serves the same model, and must not take its name.
        configs = sorted(self._fleet.pools, key=lambda config: config.traffic is None)
        configs = [config for config in configs if config.name in self.pools]
        for config in configs:
            for model in config.models:
                models.setdefault(model, self.pools[config.name])
        for config in configs:
            for adapter in config.adapters:
                models.setdefault(adapter, self.pools[config.name])
        for config in configs:
            for adapter in sorted(self.pools[config.name].adapters):
                models.setdefault(adapter, self.pools[config.name])
        created = int(time.time())
        self._created = {model: self._created.get(model, created) for model in models}
        self._models = models

    def _compile_traffic(self, fleet: Fleet) -> None:
        for config in fleet.pools:
            pool = self.pools[config.name]
            if config.traffic is None:
                pool.traffic = None
            else:
                pool.traffic = compile_traffic(config.traffic, pool, self.pools)

    async def _keep_house(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            ticks += 1
            now = self._now()
            try:
                for pool in list(self.pools.values()):
                    if pool.queue.held:
                        pool.tick(now)
                if ticks % _SWEEP_TICKS == 0:
                    await self._sweep()
            except Exception:  # whoever is held depends on this loop: a defect of one pool must not end it
                log.exception("housekeeping failed; going on")

    async def _sweep(self) -> None:
        """Forget pods that have left and are empty, and the members of pools that are gone."""
        if self._decisions is not None:
            self._decisions.flush()
        for members in [*self._members.values(), *self._leaving]:
            members.sweep()
        for members in [members for members in self._leaving if members.empty]:
            self._leaving.remove(members)
            await members.close()

    def _set_gauges(self) -> None:
        now = self._now()
        self.metrics.endpoints.clear()
        for name, pool in self.pools.items():
            self.metrics.held.labels(name).set(pool.queue.held)
            pods = [*pool.pods.values(), *(() if pool.prefill is None else pool.prefill.pods.values())]
            self.metrics.ledger.set(total(pod.ledger.sums() for pod in pods), name)
            for state, count in Counter(pod.state(now).value for pod in pods).items():
                self.metrics.endpoints.labels(name, state).set(count)


def _prefill_key(pool: PoolState) -> str:
    return f"{pool.name} prefill"  # no pool's name has a space


def _differs(old: GatewayReport, new: GatewayReport) -> bool:
    """What the operator acts on: held, refused, arrived at a pool that was idle, the fleet in force."""
    return replace(old, seq=0, pools=_essence(old)) != replace(new, seq=0, pools=_essence(new))


def _essence(report: GatewayReport) -> dict[str, PoolDemand]:
    return {
        name: replace(demand, oldest_held_seconds=0.0, in_flight=0, arrived_total=0, coming=0)
        for name, demand in report.pools.items()
    }
