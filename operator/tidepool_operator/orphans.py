"""Objects of pools that are gone: told of, never deleted, and taken over by a pool of that name."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from tidepool_api.contract import POOL_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, LEADER_WORKER_SET, MODEL_POOL, OWNED, Kind, Object
from tidepool_operator.cluster.store import Key, Store, key_of, pool_of
from tidepool_operator.errors import ApiError
from tidepool_operator.events import Recorder
from tidepool_operator.pool.model import Note, Severity
from tidepool_operator.pool.ownership import unowned

log = logging.getLogger(__name__)

# They hold accelerators.
_COSTLY: Final = (DEPLOYMENT, LEADER_WORKER_SET)
# LeaderWorkerSets of ours, which nobody watches. Raises ApiError.
ListGroups = Callable[[], Awaitable[Sequence[Object]]]


class Orphans:
    """What a deletion with --cascade=orphan left. `count` is that of the last look."""

    def __init__(self, store: Store, recorder: Recorder, list_groups: ListGroups) -> None:
        self._store = store
        self._recorder = recorder
        self._list_groups = list_groups
        self._groups: Sequence[Object] = ()
        self._told: set[tuple[Kind, Key]] = set()

    @property
    def count(self) -> int:
        """Objects without a pool and without an owner."""
        return len(self._told)

    async def look(self) -> None:
        """Find them all; each new one is logged, one that holds accelerators gets an event as well."""
        await self._look_for_groups()
        found = {(kind, key_of(item)): item for kind, item in self._left()}
        for (kind, key), item in found.items():
            if (kind, key) not in self._told:
                log.warning("%s %s belongs to no ModelPool any more: %s", kind, key, _remedy(item))
            if kind in _COSTLY:
                about = {**item, "apiVersion": kind.api_version, "kind": kind.kind}
                await self._recorder.post(about, Note(Severity.WARNING, "Orphaned", _remedy(item)))
        self._told = set(found)

    def _left(self) -> Iterator[tuple[Kind, Object]]:
        items = [(kind, item) for kind in OWNED for item in self._store.all(kind)]
        for kind, item in (*items, *((LEADER_WORKER_SET, group) for group in self._groups)):
            pool = pool_of(kind, item)
            if unowned(item) and pool and self._store.get(MODEL_POOL, pool) is None:
                yield kind, item

    async def _look_for_groups(self) -> None:
        try:
            self._groups = await self._list_groups()
        except ApiError as error:
            log.warning("kind %s could not be listed: %s", LEADER_WORKER_SET, error)


def _remedy(item: Object) -> str:
    pool = item["metadata"]["labels"][POOL_LABEL]
    return f"Its ModelPool {pool} is gone. Delete it, or make a ModelPool {pool} again, which takes it over."
