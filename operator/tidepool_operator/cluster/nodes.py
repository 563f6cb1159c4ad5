"""The room of the whole cluster, looked up while a rollout wants to know it, and not otherwise.

Every node and every pod of the cluster counts here, also those of others. Watching them would hold all pods in
memory and take an event for each of their changes, for a question that is asked during rollouts only; so they are
listed instead, page by page, at most so often that it stays a small share of a core.
"""

import asyncio
import logging
import time
from typing import Final

from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import NODE, POD
from tidepool_operator.errors import ApiError, Forbidden
from tidepool_operator.pool.pod_status import condition
from tidepool_operator.pool.room import Room, Survey

log = logging.getLogger(__name__)

_FRESH_SECONDS: Final = 1.0
# A look that took a second of work is good for twenty: listing takes a twentieth of a core at most.
_SHARE: Final = 20.0
_LONGEST_SECONDS: Final = 30.0
_REFUSED_SECONDS: Final = 600.0
# Ended pods hold nothing.
_RUNNING: Final = "status.phase!=Succeeded,status.phase!=Failed"


class Nodes:
    """Looks at the nodes on demand; pools that ask at the same time share one look. `wanted` False: never looks,
    since this installation may not see the whole cluster."""

    def __init__(self, api: Api, *, wanted: bool = True) -> None:
        self._api = api
        self._wanted = wanted
        self._room: Room | None = None
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def room(self) -> Room | None:
        """The room as of a moment ago; None where it cannot be known. Raises nothing: rollouts go on without."""
        if not self._wanted:
            return None
        async with self._lock:
            if time.monotonic() >= self._until:
                self._room, fresh = await self._look()
                self._until = time.monotonic() + fresh
            return self._room

    async def trouble(self, name: str) -> str:
        """What is wrong with a node, in words; empty where nothing is, or where it is not ours to see."""
        if not self._wanted:
            return ""
        try:
            found = await self._api.list(NODE, fields=f"metadata.name={name}")
        except ApiError as error:
            log.info("node %s could not be looked at: %s", name, error)
            return ""
        if not found:
            return f"node {name} is gone"
        ready = condition(found[0], "Ready")
        if ready.get("status") == "True":
            return ""
        said = ready.get("message") or ready.get("reason") or "it has never been ready"
        return f"node {name} does not answer: {said}" if ready.get("status") != "False" else f"node {name}: {said}"

    async def _look(self) -> tuple[Room | None, float]:
        """A look, and for how long it may be used."""
        began = time.process_time()
        try:
            survey = Survey([node async for page in self._api.pages(NODE) for node in page])
            async for page in self._api.pages(POD, fields=_RUNNING):
                survey.add(page)
        except Forbidden as error:
            log.warning("rollouts go on without knowing the free accelerators: %s", error)
            return None, _REFUSED_SECONDS
        except ApiError as error:
            log.warning("the cluster's nodes could not be listed: %s", error)
            return None, _FRESH_SECONDS
        cost = time.process_time() - began
        return survey.room(), max(_FRESH_SECONDS, min(_LONGEST_SECONDS, cost * _SHARE))
