"""Which kinds the cluster has, and whether its CRD is that of this release: by the published schemas, which
everybody may read."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidepool_api.contract import GROUP, VERSION
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import LEADER_WORKER_SET, Kind
from tidepool_operator.errors import ApiError, NotFound
from tidepool_operator.pool.crd_skew import dropped

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 300.0
# The API server publishes a changed CRD a moment after it has taken it.
_STALE_PAUSE_SECONDS: Final = 30.0


class Schema:
    """Looks now and then. `stale` names the fields that the API server drops; `groups`: whether it has
    LeaderWorkerSets, None until it was looked at."""

    def __init__(self, api: Api, changed: Callable[[], None], pause_seconds: float = _STALE_PAUSE_SECONDS) -> None:
        self._api = api
        self._changed = changed
        self._pause_seconds = pause_seconds
        self.stale: tuple[str, ...] = ()
        self.groups: bool | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except ApiError as error:
                log.warning("the published schema could not be read: %s", error)
            await asyncio.sleep(self._pause_seconds if self.stale else _PAUSE_SECONDS)

    async def look(self) -> None:
        """Compare once; tell when the answer is another one. Raises ApiError."""
        served = await self._api.schema(GROUP, VERSION, "ModelPool")
        groups = await self._serves(LEADER_WORKER_SET)
        found = self.stale if served is None else dropped(served)
        if (found, groups) == (self.stale, self.groups):
            return
        if found and found != self.stale:
            log.error("the cluster's CRD is older than this operator: it drops %s", ", ".join(found))
        self.stale, self.groups = found, groups
        self._changed()

    async def _serves(self, kind: Kind) -> bool:
        try:
            return await self._api.schema(kind.group, kind.version, kind.kind) is not None
        except NotFound:
            return False
