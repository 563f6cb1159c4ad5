"""Whether the cluster's CRD is that of this release: by the published schema, which everybody may read."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidepool_api.contract import GROUP, VERSION
from tidepool_operator.cluster.api import Api
from tidepool_operator.errors import ApiError
from tidepool_operator.pool.crd_skew import dropped

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 300.0
# The API server publishes a changed CRD a moment after it has taken it.
_STALE_PAUSE_SECONDS: Final = 30.0


class Schema:
    """Looks now and then; `stale` names the fields that the API server drops."""

    def __init__(self, api: Api, changed: Callable[[], None], pause_seconds: float = _STALE_PAUSE_SECONDS) -> None:
        self._api = api
        self._changed = changed
        self._pause_seconds = pause_seconds
        self.stale: tuple[str, ...] = ()

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
        if served is None:
            return
        found = dropped(served)
        if found == self.stale:
            return
        self.stale = found
        if found:
            log.error("the cluster's CRD is older than this operator: it drops %s", ", ".join(found))
        self._changed()
