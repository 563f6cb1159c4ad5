"""The pods of one pool: from its endpoint sources to one listener a pod."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tidepool_router.fleet.endpoint import Endpoint, Source, parse_source
from tidepool_router.fleet.listen import Listener
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.resolve import Lookup, Resolver
from tidepool_router.tls import Trust


class Members:
    """Owner of the tasks that resolve and listen for one pool."""

    def __init__(
        self, pool: PoolState, executor: ThreadPoolExecutor, lookup: Lookup, trust: Trust | None = None
    ) -> None:
        self._pool = pool
        self._trust = trust
        self._executor = executor
        self._lookup = lookup
        self._fixed: tuple[Endpoint, ...] = ()
        self._resolved: dict[Source, tuple[Endpoint, ...]] = {}
        self._resolvers: dict[Source, asyncio.Task[None]] = {}
        self._listeners: dict[str, asyncio.Task[None]] = {}
        self._ended: set[asyncio.Task[None]] = set()

    @property
    def empty(self) -> bool:
        """Nothing is listened to and nothing resolved."""
        return not self._listeners and not self._resolvers

    def update(self, urls: Sequence[str]) -> None:
        """Make these the sources; raises SettingsError for a URL that cannot be read, before anything changes."""
        sources = [parse_source(url, self._trust) for url in urls]
        self._fixed = tuple(source.endpoint for source in sources if not source.by_dns)
        names = {source for source in sources if source.by_dns}
        for source in [source for source in self._resolvers if source not in names]:
            self._end(self._resolvers.pop(source))
            self._resolved.pop(source, None)
        for source in names - self._resolvers.keys():
            self._resolvers[source] = asyncio.create_task(self._resolver(source).run(), name=f"resolve-{source}")
        self.sweep()

    def sweep(self) -> None:
        """Bring pods and listeners in line with the endpoints known now."""
        resolved = [endpoint for group in self._resolved.values() for endpoint in group]
        # A pod that is named for TLS is not asked without, whatever other name leads to it.
        secured = {endpoint.host for endpoint in resolved if endpoint.trust is not None}
        found = [*self._fixed, *(each for each in resolved if each.trust is not None or each.host not in secured)]
        added, gone = self._pool.set_pods(found)
        for pod in gone:
            self._end(self._listeners.pop(pod.key))
        for pod in added:
            task = asyncio.create_task(Listener(self._pool, pod).run(), name=f"listen-{pod.key}")
            self._listeners[pod.key] = task

    async def close(self) -> None:
        """End every task."""
        for task in [*self._listeners.values(), *self._resolvers.values()]:
            self._end(task)
        self._listeners.clear()
        self._resolvers.clear()
        await asyncio.gather(*self._ended, return_exceptions=True)

    def _resolver(self, source: Source) -> Resolver:
        def changed(endpoints: tuple[Endpoint, ...]) -> None:
            self._resolved[source] = endpoints
            self.sweep()

        return Resolver(source.endpoint, changed, self._executor, self._lookup)

    def _end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._ended.add(task)
        task.add_done_callback(self._ended.discard)
