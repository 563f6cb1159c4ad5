"""The operator, put together: watches into the store, the store into a queue, the queue into reconciles."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from tidepool_operator.cluster.client import Client
from tidepool_operator.cluster.health import HealthServer
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, AGENT_WORKFLOW_RUN, MODEL_POOL
from tidepool_operator.errors import ApiError, NotFound
from tidepool_operator.handlers import Watches
from tidepool_operator.parts import Parts
from tidepool_operator.pool.unmet import unmet
from tidepool_operator.settings import Settings

log = logging.getLogger(__name__)

# A reconcile is a few dozen requests; one that is late by this much hangs.
_STUCK_SECONDS: Final = 300.0
_CRD_PAUSE_SECONDS: Final = 2.0


class Operator:
    """One operator process. `run` lasts until `stop` is called or something that must live has ended.

    `taken_in` is called once the store has all that there was, and before this process leads.
    """

    def __init__(self, settings: Settings, client: Client, taken_in: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._taken_in = taken_in
        self._stop = asyncio.Event()
        parts = self.parts = Parts(settings, client)
        self.store, self.queue, self.due = parts.store, parts.queue, parts.due
        self.figures, self.lease, self.console = parts.figures, parts.lease, parts.console
        self.health = HealthServer(self.complaints, self._gauges, self.figures)

    def stop(self) -> None:
        """End `run` in good order: workers first, the Lease last."""
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped. Raises what ended a part that must live."""
        parts = self.parts
        async with AsyncExitStack() as stack:
            await self.health.start(self._settings.health_host, self._settings.health_port)
            stack.push_async_callback(self.health.close)
            stack.push_async_callback(parts.sidecars.close)
            stack.push_async_callback(parts.gateway_runs.close)
            if self._settings.console:
                await self.console.start(self._settings.console_host, self._settings.console_port)
                stack.push_async_callback(parts.looks.close)
                stack.push_async_callback(self.console.close)
            await self._wait_for_kinds()
            watches = Watches(
                self.store,
                self._settings.watch_namespaces,
                self._settings.kubeconfig,
                served=self._served,
                relists=parts.canary.hurry,
                silence_seconds=self._settings.watch_silence_seconds,
            )
            stack.push_async_callback(watches.close)
            tasks: list[asyncio.Future[Any]] = [
                asyncio.create_task(self._campaign()),
                asyncio.create_task(parts.canary.run()),
                asyncio.create_task(parts.gateways.run()),
                asyncio.create_task(parts.schema.run()),
                asyncio.create_task(self._stop.wait()),
            ]
            if parts.trust is not None:
                tasks.append(asyncio.create_task(parts.trust.run()))
            # In every replica: it listens and remembers nothing until this process leads.
            await parts.autoscaler.start()
            stack.push_async_callback(parts.autoscaler.close)
            stack.push_async_callback(_end, tasks)
            done, _ = await asyncio.wait([watches.start(), *tasks], return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            for task in done:
                task.result()

    def complaints(self) -> Mapping[str, str]:
        """What makes this process unfit: a quiet watch, or work that hangs."""
        found = {f"watch of {kind}": what for kind, what in self.parts.canary.quiet().items()}
        oldest = self.queue.oldest_seconds()
        if oldest > _STUCK_SECONDS:
            found["reconcile"] = f"the oldest item has waited or worked for {oldest:.0f} s"
        return found

    def _gauges(self) -> Mapping[str, float]:
        return {
            "queue_length": len(self.queue),
            "queue_oldest_seconds": self.queue.oldest_seconds(),
            "leader": float(self.lease.leads),
            "pools": len(self.store.keys(MODEL_POOL)),
            **{
                f'forecast_coverage_ratio{{pool="{key}"}}': share
                for key, share in self.parts.autoscaler.coverage().items()
            },
            **unmet(self.store.all(MODEL_POOL)),
            "orphans": self.parts.orphans.count,
            "quiet_watches": len(self.parts.canary.quiet()),
        }

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
                await self.parts.open.list(kind, namespace, metadata_only=True, cached=True)
        except NotFound:
            return False
        return True

    async def _campaign(self) -> None:
        """Stand for the Lease once the store is whole: taking in thousands of objects is seconds of work, in which
        a Lease could not be renewed in time, and a leader that knows nothing does nothing."""
        await self.parts.canary.synced()
        self._taken_in()
        await self.lease.run(self._lead)

    async def _lead(self) -> None:
        """What only the leader does; cancelled when the Lease is lost."""
        parts = self.parts
        await parts.canary.synced()
        if parts.trust is not None:
            await parts.trust.looked()  # a gateway believes nobody until it knows the keys
        await parts.hosts.look()  # or workflows would lose their hosts until the first look
        self.queue.clear()
        self.due.all()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.workers):
                group.create_task(parts.workers.work())
            group.create_task(parts.publisher.run())
            group.create_task(parts.hosts.run())
            group.create_task(parts.runs.run())
            group.create_task(parts.workflow_figures.run())
            group.create_task(self._resync())

    async def _resync(self) -> None:
        """Every item is looked at now and then."""
        while True:
            await self.parts.orphans.look()
            self.due.spread(self._settings.resync_seconds)
            await asyncio.sleep(self._settings.resync_seconds)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        if not task.done():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
