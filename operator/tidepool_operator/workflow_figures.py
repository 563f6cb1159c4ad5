"""Live figures of AgentWorkflows: runs in progress and ended, and how long they take, as a gateway counts them.

All are asked for at once, and one is written only where what it shows has moved, at most once a minute.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from tidepool_api.workflow_run import RunTotals
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.gateway_runs import GatewayRuns, RunRefused
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, Object
from tidepool_operator.cluster.store import Key, Store, key_of
from tidepool_operator.errors import ApiError, NotFound
from tidepool_operator.pool.status import FIGURES_SECONDS

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
_EXACT_BELOW: Final = 100


class WorkflowFigures:
    """Writes `status.runs` and `status.latency`, and nothing else. `clock` counts seconds from anywhere."""

    def __init__(
        self, api: Api, store: Store, gateways: GatewayRuns, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._store = store
        self._gateways = gateways
        self._clock = clock
        self._written: dict[Key, float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except RunRefused as error:
                # No gateway, one without a store or of an earlier release: what was written last stands.
                log.debug("the runs of workflows are not counted: %s", error.message)
            except ApiError as error:
                log.warning("the figures of workflows could not be written, trying again: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Once. Raises RunRefused and ApiError."""
        keys = set(self._store.keys(AGENT_WORKFLOW))
        self._written = {key: at for key, at in self._written.items() if key in keys}
        if not keys:
            return
        known = await self._gateways.totals()
        now = self._clock()
        for key in sorted(keys):
            raw = self._store.get(AGENT_WORKFLOW, key)
            if raw is not None and (change := figures_due(raw, known, self._written.get(key), now)):
                await self._write(key, change, now)

    async def _write(self, key: Key, change: Object, now: float) -> None:
        try:
            written = await self._api.status(AGENT_WORKFLOW, key.namespace, key.name, change)
        except NotFound:
            return
        self._written[key] = now
        self._store.put(AGENT_WORKFLOW, written)


def figures_due(raw: Object, known: Mapping[str, RunTotals], written: float | None, now: float) -> Object:
    """What of a workflow's status is to be written; empty: nothing. `written`: when it was last."""
    if raw["metadata"].get("deletionTimestamp") or (written is not None and now - written < FIGURES_SECONDS):
        return {}
    name = str(key_of(raw))
    wanted = figures_of(known.get(name, RunTotals(workflow=name)))
    before = raw.get("status") or {}
    return {field: value for field, value in wanted.items() if before.get(field) != value}


def figures_of(totals: RunTotals) -> Object:
    """In buckets, so that a little movement is none; a merge patch takes away what is None."""
    runs = {
        "active": _bucketed(totals.active),
        "succeeded": _bucketed(totals.succeeded),
        "failed": _bucketed(totals.failed),
    }
    if totals.p50_seconds is None or totals.p95_seconds is None:
        return {"runs": runs, "latency": None}
    return {"runs": runs, "latency": {"p50": _time(totals.p50_seconds), "p95": _time(totals.p95_seconds)}}


def only_figures_changed(before: Object | None, after: Object | None) -> bool:
    """Whether nothing follows from a change of a workflow, for it is in its live figures alone."""
    if before is None or after is None:
        return False
    (old, steady), (new, still) = _parted(before), _parted(after)
    return old != new and steady == still


def _parted(raw: Object) -> tuple[Object, Object]:
    """Its live figures, and the rest of it."""
    metadata = {name: value for name, value in raw["metadata"].items() if name != "resourceVersion"}
    status = dict(raw.get("status") or {})
    figures = {name: status.pop(name, None) for name in ("runs", "latency")}
    return figures, {**raw, "metadata": metadata, "status": status}


def _bucketed(count: int) -> int:
    return count if count < _EXACT_BELOW else int(float(f"{count:.2g}"))


def _time(seconds: float) -> str:
    """Two digits; of long times, whole seconds."""
    rounded = float(f"{max(0.0, seconds):.2g}")
    return f"{1000 * rounded:.0f}ms" if rounded < 1.0 else f"{rounded:g}s"
