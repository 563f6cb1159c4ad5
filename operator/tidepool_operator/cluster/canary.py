"""Proof that the watches live: what they told is held against a list of the API server's own.

A watch that has gone quiet looks like a cluster in which nothing happens; only another source can tell the two
apart. So every kind is listed now and then, as metadata, which is cheap. What a
list had must be in the store by the time of the next one, half a minute later; if it is not, that kind's watch is
quiet, and /healthz says so. No heartbeat of our own is needed, no kind goes unwatched, and the same comparison
mends what kopf's relisting cannot tell: objects that vanished while a watch was down.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import WATCHED, Kind
from tidepool_operator.cluster.store import Key, Store, key_of, version_of
from tidepool_operator.errors import ApiError, NotFound

log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 30.0
_SYNC_SECONDS: Final = 0.2
_SYNC_HOLDS_SECONDS: Final = 5.0
_RELIST_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 2.0
# A large kind is listed less often: half a minute for every thousand objects, up to five minutes.
_OBJECTS_A_SWEEP: Final = 1000
_LONGEST_SWEEP_SECONDS: Final = 300.0


class Canary:
    """Sweeps every kind; `quiet` names the kinds whose watch has stopped telling."""

    def __init__(
        self,
        api: Api,
        store: Store,
        selectors: Mapping[Kind, str],
        namespaces: Sequence[str] = (),
        *,
        kinds: Sequence[Kind] = WATCHED,
        sweep_seconds: float = _SWEEP_SECONDS,
    ) -> None:
        self._api = api
        self._store = store
        self._selectors = selectors
        self._namespaces = tuple(namespaces) or (None,)
        self._kinds = tuple(kinds)
        self._sweep_seconds = sweep_seconds
        self._expected: dict[Kind, dict[Key, int]] = {}
        self._quiet: dict[Kind, str] = {}
        self._synced_at = float("-inf")

    def quiet(self) -> dict[str, str]:
        """What the watch of a kind has not told, by kind."""
        return {kind.kind: what for kind, what in self._quiet.items()}

    async def synced(self) -> None:
        """Wait until the store holds all that there is: before that a plan would be made from half a picture."""
        clock = asyncio.get_running_loop().time
        if clock() - self._synced_at < _SYNC_HOLDS_SECONDS:
            return  # it is a list of everything
        begun = clock()
        for kind in self._kinds:
            while not await self._complete(kind):
                pass
        self._synced_at = begun

    async def run(self) -> None:
        """Sweep until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._sweep_kind(kind))

    async def sweep(self, kind: Kind) -> None:
        """Compare what the last sweep saw with the store, and see again. Raises ApiError."""
        listed = await self._list(kind)
        late = [
            key
            for key, version in self._expected.get(kind, {}).items()
            if key in listed and version_of(self._store.get(kind, key)) < version
        ]
        # Two lists without it: the watch had its time to say that it is gone.
        for key in set(self._store.keys(kind)) - set(listed):
            if kind in self._expected and key not in self._expected[kind] and await self._vanished(kind, key):
                log.warning("%s %s is gone, which its watch did not tell", kind, key)
                self._store.forget(kind, key)
        self._expected[kind] = listed
        if late:
            self._quiet[kind] = f"{len(late)} changes not told, one of them of {late[0]}"
            log.error("the watch of kind %s is quiet: %s", kind, self._quiet[kind])
        else:
            self._quiet.pop(kind, None)

    async def _sweep_kind(self, kind: Kind) -> None:
        while True:
            try:
                await self.sweep(kind)
            except ApiError as error:
                # Whether the API server is there is not a question of watches; a restart would not help.
                log.warning("kind %s could not be listed: %s", kind, error)
            share = len(self._expected.get(kind, ())) / _OBJECTS_A_SWEEP
            await asyncio.sleep(min(_LONGEST_SWEEP_SECONDS, self._sweep_seconds * max(1.0, share)))

    async def _list(self, kind: Kind) -> dict[Key, int]:
        listed: dict[Key, int] = {}
        for namespace in self._namespaces:
            # Page by page: thousands of objects in one answer are a peak of memory that stays.
            labels = self._selectors.get(kind, "")
            async for page in self._api.pages(kind, namespace, labels=labels, metadata_only=True):
                listed |= {key_of(item): version_of(item) for item in page}
        return listed

    async def _complete(self, kind: Kind) -> bool:
        try:
            listed = await self._list(kind)
        except ApiError as error:
            log.warning("kind %s could not be listed: %s", kind, error)
            await asyncio.sleep(_REFUSED_SECONDS)
            return False
        # A list of thousands costs much: there is another only where something may have gone meanwhile.
        for _ in range(round(_RELIST_SECONDS / _SYNC_SECONDS)):
            listed = {
                key: version for key, version in listed.items() if version_of(self._store.get(kind, key)) < version
            }
            if not listed:
                return True
            # The watches' thread has no event for "all of it".
            await asyncio.sleep(_SYNC_SECONDS)
        return False

    async def _vanished(self, kind: Kind, key: Key) -> bool:
        try:
            await self._api.get(kind, key.namespace, key.name)
        except NotFound:
            return True
        return False
