"""Objects of pools that are gone: told of, never deleted, and taken over by a pool of that name."""

import logging

from tidepool_api.contract import POOL_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, MODEL_POOL, OWNED, Kind, Object
from tidepool_operator.cluster.store import Key, Store, key_of, pool_of
from tidepool_operator.events import Recorder
from tidepool_operator.pool.model import Note, Severity
from tidepool_operator.pool.ownership import unowned

log = logging.getLogger(__name__)


class Orphans:
    """What a deletion with --cascade=orphan left. `count` is that of the last look."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self._told: set[tuple[Kind, Key]] = set()

    @property
    def count(self) -> int:
        """Objects without a pool and without an owner."""
        return len(self._told)

    async def look(self) -> None:
        """Find them all; each new one is logged, a Deployment, which holds accelerators, gets an event as well."""
        found = {
            (kind, key_of(item)): item
            for kind in OWNED
            for item in self._store.all(kind)
            if unowned(item) and (pool := pool_of(kind, item)) and self._store.get(MODEL_POOL, pool) is None
        }
        for (kind, key), item in found.items():
            if (kind, key) not in self._told:
                log.warning("%s %s belongs to no ModelPool any more: %s", kind, key, _remedy(item))
            if kind == DEPLOYMENT:
                about = {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                await self._recorder.post(about, Note(Severity.WARNING, "Orphaned", _remedy(item)))
        self._told = set(found)


def _remedy(item: Object) -> str:
    pool = item["metadata"]["labels"][POOL_LABEL]
    return f"Its ModelPool {pool} is gone. Delete it, or make a ModelPool {pool} again, which takes it over."
