"""Proof that the watches live: what they told is held against a list of the API server's own.

A watch that has gone quiet looks like a cluster in which nothing happens; only another source can tell the two
apart. So every kind is listed now and then, names and versions alone, which is cheap. What a
list had must be in the store by the time of the next one, half a minute later; if it is not, that kind's watch is
quiet, and /healthz says so. No heartbeat of our own is needed, no kind goes unwatched, and the same comparison
mends what kopf's relisting cannot tell: objects that vanished while a watch was down. They are looked for as soon
as it relists.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import WATCHED, Kind
from tidepool_operator.cluster.store import Key, Store, version_of
from tidepool_operator.errors import ApiError, NotFound

log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 30.0
_SYNC_SECONDS: Final = 0.2
# A start reads its lists, and leads, within a few seconds; whoever led meanwhile was told of by the watches.
_SYNC_HOLDS_SECONDS: Final = 10.0
# A list of what is waited for may hold what is gone since. It is read again when the watches have said nothing for
# so long, or where they never rest.
_RELIST_SECONDS: Final = 5.0
_LONGEST_WAIT_SECONDS: Final = 30.0
_REFUSED_SECONDS: Final = 2.0
# With more pools than that, taking in all that there is takes many seconds. It is over when the watches rest.
_FEW: Final = 100
_CALM_SECONDS: Final = 0.5
_LONGEST_CALM_SECONDS: Final = 60.0
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
        self._anew = {kind: asyncio.Event() for kind in self._kinds}
        self._synced_at = float("-inf")

    def quiet(self) -> dict[str, str]:
        """What the watch of a kind has not told, by kind."""
        return {kind.kind: what for kind, what in self._quiet.items()}

    async def synced(self) -> None:
        """Wait until the store holds all that there is: before that a plan would be made from half a picture."""
        clock = asyncio.get_running_loop().time
        if clock() - self._synced_at < _SYNC_HOLDS_SECONDS:
            return  # it is a list of everything
        begun, (first, *others) = clock(), self._kinds
        await self._whole(first)
        if len(self._store.keys(first)) > _FEW:
            # Lists that are read while most is still to be told would only hold that up.
            await self._calm()
            begun, others = clock(), [first, *others]
        for kind in others:
            await self._whole(kind)
        self._synced_at = begun

    def hurry(self, kind: Kind) -> None:
        """Its watch lists anew: what vanished while it was down it does not tell."""
        if kind in self._anew:
            self._anew[kind].set()

    async def run(self) -> None:
        """Sweep until cancelled; the first time when the watches have had their time."""
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
        if kind in self._expected:
            await self._forget_gone(kind, listed, self._expected[kind])
        self._expected[kind] = listed
        if late:
            self._quiet[kind] = f"{len(late)} changes not told, one of them of {late[0]}"
            log.error("the watch of kind %s is quiet: %s", kind, self._quiet[kind])
        else:
            self._quiet.pop(kind, None)

    async def _sweep_kind(self, kind: Kind) -> None:
        while True:
            share = len(self._expected.get(kind, ())) / _OBJECTS_A_SWEEP
            hurried = await self._rest(kind, min(_LONGEST_SWEEP_SECONDS, self._sweep_seconds * max(1.0, share)))
            try:
                # A watch that lists anew still has much to tell: it is not judged meanwhile.
                await (self._mend(kind) if hurried else self.sweep(kind))
            except ApiError as error:
                # Whether the API server is there is not a question of watches; a restart would not help.
                log.warning("kind %s could not be listed: %s", kind, error)

    async def _rest(self, kind: Kind, seconds: float) -> bool:
        """Wait so long, or until the kind is listed anew: True then."""
        anew = self._anew[kind]
        try:
            async with asyncio.timeout(seconds):
                await anew.wait()
        except TimeoutError:
            return False
        anew.clear()
        return True

    async def _mend(self, kind: Kind) -> None:
        await self._forget_gone(kind, await self._list(kind), {})

    async def _forget_gone(self, kind: Kind, *lists: Mapping[Key, int]) -> None:
        """Forget what is in none of these lists, and is not there when asked for either."""
        for key in set(self._store.keys(kind)).difference(*lists):
            known = self._store.get(kind, key)
            if known is not None and await self._vanished(kind, key):
                log.warning("%s %s is gone, which its watch did not tell", kind, key)
                # Another one of its name may have come while the answer was on its way.
                self._store.forget(kind, key, uid=known["metadata"].get("uid", ""))

    async def _list(self, kind: Kind) -> dict[Key, int]:
        listed: dict[Key, int] = {}
        for namespace in self._namespaces:
            # Page by page: thousands of objects in one answer are a peak of memory that stays.
            async for page in self._api.versions(kind, namespace, labels=self._selectors.get(kind, "")):
                listed |= {Key(item.namespace, item.name): item.version for item in page}
        return listed

    async def _whole(self, kind: Kind) -> None:
        """Wait until the store holds all of a kind."""
        while not await self._complete(kind):
            pass

    async def _complete(self, kind: Kind) -> bool:
        try:
            listed = await self._list(kind)
        except ApiError as error:
            log.warning("kind %s could not be listed: %s", kind, error)
            await asyncio.sleep(_REFUSED_SECONDS)
            return False
        heard, silent = self._store.heard, 0.0
        for _ in range(round(_LONGEST_WAIT_SECONDS / _SYNC_SECONDS)):
            listed = {
                key: version for key, version in listed.items() if version_of(self._store.get(kind, key)) < version
            }
            if not listed:
                return True
            if silent > _RELIST_SECONDS:
                return False
            # The watches' thread has no event for "all of it".
            await asyncio.sleep(_SYNC_SECONDS)
            silent = silent + _SYNC_SECONDS if self._store.heard == heard else 0.0
            heard = self._store.heard
        return False

    async def _calm(self) -> None:
        """Wait until the watches say nothing for a moment; not for ever, since a cluster may never rest."""
        for _ in range(round(_LONGEST_CALM_SECONDS / _CALM_SECONDS)):
            heard = self._store.heard
            await asyncio.sleep(_CALM_SECONDS)
            if self._store.heard == heard:
                return

    async def _vanished(self, kind: Kind, key: Key) -> bool:
        try:
            await self._api.get(kind, key.namespace, key.name)
        except NotFound:
            return True
        return False
