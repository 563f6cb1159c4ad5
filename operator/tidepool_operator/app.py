"""The operator, put together: watches into the store, the store into a queue, the queue into reconciles."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidepool_api.trust import TrustedCallers
from tidepool_operator.arbiter import Arbiter
from tidepool_operator.autoscaler import Autoscaler, AutoscalerSettings
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.canary import Canary
from tidepool_operator.cluster.client import Client
from tidepool_operator.cluster.gateway_runs import GatewayRuns
from tidepool_operator.cluster.gateways import Control, Gateways, Publisher
from tidepool_operator.cluster.health import Figures, HealthServer
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, AGENT_WORKFLOW_RUN, MODEL_POOL, Kind, Object
from tidepool_operator.cluster.lease import Lease
from tidepool_operator.cluster.names import Names
from tidepool_operator.cluster.namespaces import AllowedHosts
from tidepool_operator.cluster.nodes import Nodes
from tidepool_operator.cluster.proof import OwnProof
from tidepool_operator.cluster.quotas import Quotas
from tidepool_operator.cluster.schema import Schema
from tidepool_operator.cluster.sidecars import Sidecars
from tidepool_operator.cluster.store import Key, Store, key_of, pool_of
from tidepool_operator.cluster.trust import ClusterTrust
from tidepool_operator.cluster.workqueue import WorkQueue
from tidepool_operator.console.hub import Hub
from tidepool_operator.console.looks import EVERY_SECONDS, Looks
from tidepool_operator.console.looks import Sources as Sights
from tidepool_operator.console.server import ConsoleServer
from tidepool_operator.errors import ApiError, NotFound, NotLeader, TooManyRequests
from tidepool_operator.events import Recorder
from tidepool_operator.handlers import SELECTORS, Watches
from tidepool_operator.orphans import Orphans
from tidepool_operator.pool.model import RenderSettings, SidecarTLS
from tidepool_operator.reconcile import Reconciler, Sources
from tidepool_operator.runs import RunObjects
from tidepool_operator.settings import LEASE_NAME, Settings
from tidepool_operator.telemetry.gateways import Gateways as GatewayStreams
from tidepool_operator.telemetry.prometheus import NoPrometheus, Prometheus, PrometheusSettings
from tidepool_operator.view import View
from tidepool_operator.workflows import Workflows

log = logging.getLogger(__name__)

# A reconcile is a few dozen requests; one that is late by this much hangs.
_STUCK_SECONDS: Final = 300.0
_CRD_PAUSE_SECONDS: Final = 2.0


class Work(StrEnum):
    """What a key in the queue is of."""

    POOL = "pool"
    WORKFLOW = "workflow"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Item:
    """One key in the queue."""

    work: Work
    key: Key


class Operator:
    """One operator process. `run` lasts until `stop` is called or something that must live has ended.

    `taken_in` is called once the store has all that there was, and before this process leads.
    """

    def __init__(self, settings: Settings, client: Client, taken_in: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._taken_in = taken_in
        self.store = Store()
        self.queue: WorkQueue[Item] = WorkQueue()
        self.figures = Figures()
        self._stop = asyncio.Event()
        self._open = Api(client)
        self.lease = Lease(self._open, settings.namespace, LEASE_NAME, settings.identity)
        self._api = Api(client, self.lease.fence)
        self._canary = Canary(
            self._open,
            self.store,
            SELECTORS,
            settings.watch_namespaces,
            sweep_seconds=settings.sweep_seconds,
        )
        self._gateways = Gateways(self._open, settings.namespace, self._all_due)
        self._sidecars = Sidecars(proof_file=settings.proof_file)
        proof = OwnProof(settings.proof_file)
        self._names = Names()
        secret, name = settings.sidecar_tls_secret, settings.sidecar_tls_server_name
        self._tls = SidecarTLS(secret, name) if secret else None
        self._hosts = AllowedHosts(self._open, self._workflow_namespaces, self._hosts_changed)
        self._view = View(
            self._api,
            self.store,
            self._gateways.addresses,
            self._pool_due,
            self._leading,
            tls=self._tls is not None,
            hosts=self._hosts.of,
        )
        history = (
            Prometheus(PrometheusSettings(settings.prometheus_url)) if settings.prometheus_url else NoPrometheus()
        )
        self._nodes = Nodes(self._open, wanted=settings.reads_nodes)
        self._prometheus = history
        self._autoscaler = Autoscaler(
            self._view,
            history,
            lambda on_demand: GatewayStreams(
                self._gateways.addresses, on_demand, time.monotonic, proof=proof.headers
            ),
            AutoscalerSettings(settings.scale_interval_seconds),
            client.clock.now,
            arbiter=Arbiter(self._nodes, Quotas(self._open, wanted=settings.reads_nodes), self._view),
        )
        self._publisher = Publisher(
            self._api,
            settings.namespace,
            self._view.fleet,
            self._gateways.reachable,
            self._autoscaler.gateways.reports,
            Control(proof=proof, trust=self._callers),
            self._view.workflows,
        )
        recorder = Recorder(self._api, settings.identity)
        self._trust = ClusterTrust(self._open, settings, self._trust_changed) if settings.trust else None
        self._schema = Schema(self._open, self._all_due)
        self._reconciler = Reconciler(
            self._api,
            self.store,
            self._render,
            Sources(
                self._autoscaler.board,
                self._sidecars,
                self._nodes,
                self._gateways.serving,
                self._names,
            ),
            recorder,
            client.clock.now,
        )
        self._orphans = Orphans(self.store, recorder)
        self._workflows = Workflows(self._api, self.store, recorder)
        self._gateway_runs = GatewayRuns(self._gateways.serving, proof=proof.headers)
        self._runs = RunObjects(self._api, self.store, self._gateway_runs, settings.watch_namespaces)
        self._acts: Mapping[Work, Callable[[Key], Awaitable[float | None]]] = {
            Work.POOL: self._reconciler,
            Work.WORKFLOW: self._workflows,
            Work.RUN: self._runs,
        }
        self.health = HealthServer(self.complaints, self._gauges, self.figures)
        self._looks = self._make_looks(client.clock.now)
        hub = Hub(self._looks, EVERY_SECONDS, client.clock.now)
        self.console = ConsoleServer(hub, settings.console_hosts)
        self.store.listen(self._changed)

    def stop(self) -> None:
        """End `run` in good order: workers first, the Lease last."""
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped. Raises what ended a part that must live."""
        async with AsyncExitStack() as stack:
            await self.health.start(self._settings.health_host, self._settings.health_port)
            stack.push_async_callback(self.health.close)
            stack.push_async_callback(self._sidecars.close)
            stack.push_async_callback(self._gateway_runs.close)
            if self._settings.console:
                await self.console.start(self._settings.console_host, self._settings.console_port)
                stack.push_async_callback(self._looks.close)
                stack.push_async_callback(self.console.close)
            await self._wait_for_kinds()
            watches = Watches(
                self.store,
                self._settings.watch_namespaces,
                self._settings.kubeconfig,
                served=self._served,
                relists=self._canary.hurry,
                silence_seconds=self._settings.watch_silence_seconds,
            )
            stack.push_async_callback(watches.close)
            tasks: list[asyncio.Future[Any]] = [
                asyncio.create_task(self._campaign()),
                asyncio.create_task(self._canary.run()),
                asyncio.create_task(self._gateways.run()),
                asyncio.create_task(self._schema.run()),
                asyncio.create_task(self._stop.wait()),
            ]
            if self._trust is not None:
                tasks.append(asyncio.create_task(self._trust.run()))
            # In every replica: it listens and remembers nothing until this process leads.
            await self._autoscaler.start()
            stack.push_async_callback(self._autoscaler.close)
            stack.push_async_callback(_end, tasks)
            done, _ = await asyncio.wait([watches.start(), *tasks], return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            for task in done:
                task.result()

    def complaints(self) -> Mapping[str, str]:
        """What makes this process unfit: a quiet watch, or work that hangs."""
        found = {f"watch of {kind}": what for kind, what in self._canary.quiet().items()}
        oldest = self.queue.oldest_seconds()
        if oldest > _STUCK_SECONDS:
            found["reconcile"] = f"the oldest item has waited or worked for {oldest:.0f} s"
        return found

    def _gauges(self) -> Mapping[str, float]:
        return {
            "queue_length": len(self.queue),
            "queue_oldest_seconds": self.queue.oldest_seconds(),
            "leader": float(self._leading()),
            "pools": len(self.store.keys(MODEL_POOL)),
            **{
                f'forecast_coverage_ratio{{pool="{key}"}}': share
                for key, share in self._autoscaler.coverage().items()
            },
            "orphans": self._orphans.count,
        }

    def _make_looks(self, clock: Callable[[], float]) -> Looks:
        """What the console shows, from what this process knows; nothing runs until somebody looks."""
        return Looks(
            Sights(
                store=self.store,
                figures=self._prometheus,
                scaler=self._autoscaler,
                decision=self._autoscaler.board.get,
                demand=self._autoscaler.gateways.demand,
                loads=self._sidecars.loads,
                runs=self._gateway_runs,
                leads=self._leading,
                clock=clock,
                interval_seconds=self._settings.scale_interval_seconds,
            )
        )

    def _render(self) -> RenderSettings:
        trust = self._callers()
        image, namespace = self._settings.router_image, self._settings.namespace
        return RenderSettings(image, namespace, trust, self._schema.stale, self._tls, self._schema.groups)

    def _callers(self) -> TrustedCallers | None:
        return None if self._trust is None else self._trust.callers

    def _trust_changed(self) -> None:
        self._all_due()
        self._publisher.mark_due()

    def _hosts_changed(self) -> None:
        self._publisher.mark_due()

    def _leading(self) -> bool:
        return self.lease.leads

    async def _wait_for_kinds(self) -> None:
        """kopf looks once for its kinds, so the CRDs must be there before it starts."""
        while not self._stop.is_set():
            try:
                if await self._served():
                    return
                log.warning(
                    "the CRDs of tidepool.dev are not installed; apply charts/tidepool's CRDs. Waiting for them."
                )
            except ApiError as error:
                log.warning("the API server cannot be used yet: %s", error)
            await asyncio.sleep(_CRD_PAUSE_SECONDS)

    async def _served(self) -> bool:
        """Whether the API server has our kinds. Raises ApiError."""
        namespace = next(iter(self._settings.watch_namespaces), None)
        try:
            for kind in (MODEL_POOL, AGENT_WORKFLOW, AGENT_WORKFLOW_RUN):
                await self._open.list(kind, namespace, metadata_only=True, cached=True)
        except NotFound:
            return False
        return True

    async def _campaign(self) -> None:
        """Stand for the Lease once the store is whole: taking in thousands of objects is seconds of work, in which
        a Lease could not be renewed in time, and a leader that knows nothing does nothing."""
        await self._canary.synced()
        self._taken_in()
        await self.lease.run(self._lead)

    async def _lead(self) -> None:
        """What only the leader does; cancelled when the Lease is lost."""
        await self._canary.synced()
        if self._trust is not None:
            await self._trust.looked()  # a gateway believes nobody until it knows the keys
        await self._hosts.look()  # or workflows would lose their hosts until the first look
        self.queue.clear()
        self._all_due()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.workers):
                group.create_task(self._work())
            group.create_task(self._publisher.run())
            group.create_task(self._hosts.run())
            group.create_task(self._runs.run())
            group.create_task(self._resync())

    async def _work(self) -> None:
        while True:
            item = await self.queue.take()
            began = time.perf_counter()
            try:
                again = await self._acts[item.work](item.key)
            except NotLeader:
                self.queue.done(item)  # the new leader looks at everything
            except Exception as error:
                self._failed(item, error)
            except asyncio.CancelledError:
                self.queue.done(item)
                raise
            else:
                self.queue.done(item, again_after_seconds=again)
            self.figures.reconciles += 1
            self.figures.seconds += time.perf_counter() - began

    def _failed(self, item: Item, error: Exception) -> None:
        name = type(error).__name__
        self.figures.errors += 1
        self.figures.by_error[name] = self.figures.by_error.get(name, 0) + 1
        asked = error.retry_after_seconds if isinstance(error, TooManyRequests) else None
        pause = self.queue.failed(item, at_least_seconds=asked or 0.0)
        # What is not the API server's is a defect: its place matters.
        trace = None if isinstance(error, ApiError) else error
        log.error("%s %s failed, again in %.1f s: %s", item.work, item.key, pause, error, exc_info=trace)

    async def _resync(self) -> None:
        """Every item is looked at now and then, spread over the whole period."""
        period = self._settings.resync_seconds
        while True:
            await self._orphans.look()
            for item in self._items():
                self.queue.add(item, random.uniform(0.0, period))  # noqa: S311 - spreads load
            await asyncio.sleep(period)

    def _workflow_namespaces(self) -> set[str]:
        return {key.namespace for key in self.store.keys(AGENT_WORKFLOW)}

    def _items(self) -> list[Item]:
        pools = [Item(Work.POOL, key) for key in self.store.keys(MODEL_POOL)]
        workflows = [Item(Work.WORKFLOW, key) for key in self.store.keys(AGENT_WORKFLOW)]
        return pools + workflows + [Item(Work.RUN, key) for key in self.store.keys(AGENT_WORKFLOW_RUN)]

    def _all_due(self) -> None:
        for item in self._items():
            self.queue.add(item)

    def _pool_due(self, key: Key) -> None:
        self.queue.add(Item(Work.POOL, key))

    def _changed(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        item = after or before
        if item is None:
            return
        if kind == AGENT_WORKFLOW:
            if before is None:
                self._hosts.mark_due()
            self._workflow_changed(key_of(item), gone=after is None)
            self._publisher.mark_due()
        elif kind == AGENT_WORKFLOW_RUN:
            self._run_changed(item, gone=after is None)
        elif (pool := pool_of(kind, item)) is not None:
            self._pool_due(pool)
        if kind == MODEL_POOL:
            self._publisher.mark_due()
            for other in self._names.changed(before, after):
                self._pool_due(other)
            if before is None or after is None:
                self._workflows_due(key_of(item).namespace)

    def _workflow_changed(self, key: Key, *, gone: bool) -> None:
        if gone:
            self.queue.forget(Item(Work.WORKFLOW, key))
        # Workflows may run one another.
        self._workflows_due(key.namespace)

    def _run_changed(self, raw: Object, *, gone: bool) -> None:
        item = Item(Work.RUN, key_of(raw))
        if gone:
            self.queue.forget(item)
            self._runs.deleted(raw)
        else:
            self.queue.add(item)

    def _workflows_due(self, namespace: str) -> None:
        for key in self.store.keys(AGENT_WORKFLOW):
            if key.namespace == namespace:
                self.queue.add(Item(Work.WORKFLOW, key))


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        if not task.done():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
