"""AgentWorkflowRuns: each begun at a gateway, followed until it is over, and deleted when its time has come.

Level by level and without finalizers: a gateway is asked for the run as often as it takes (the object's uid is its
name there), and runs whose objects are gone are found by asking which are open.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidepool_api.problems import run_problems
from tidepool_api.units import duration_seconds
from tidepool_api.workflow_run import ENDED, MOST_INPUT_BYTES, OpenRun, RunOrder, RunPhase, RunReport
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.gateway_runs import GatewayRuns, RunRefused
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW_RUN, Object
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.errors import NotFound
from tidepool_operator.pool.model import format_time, parse_time

log = logging.getLogger(__name__)

# Objects under way at a time. They are for people and CI; each costs etcd a few writes.
MOST_AT_ONCE: Final = 100
_WAITS_SECONDS: Final = 5.0
_PROGRESS_SECONDS: Final = 10.0
_SWEEP_SECONDS: Final = 60.0
_FINAL: Final = frozenset(("invalid_input", "input_too_long", "invalid_order", "invalid_uid", "run_forgotten"))
_DEFAULT_TTL: Final = "24h"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an object's status is to say, and when to look again (seconds; None: never)."""

    status: Object
    again_seconds: float | None


class RunObjects:
    """Looks at one object at a time, and now and then for runs without one. `clock` is the API server's time: a
    machine whose own clock is ahead would delete objects before their time."""

    def __init__(
        self,
        api: Api,
        store: Store,
        gateways: GatewayRuns,
        namespaces: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._clock = clock
        self._store = store
        self._gateways = gateways
        self._namespaces = frozenset(namespaces)
        self._written: dict[str, float] = {}
        self._gone: set[str] = set()
        self._missed: set[str] = set()
        self._due = asyncio.Event()

    async def __call__(self, key: Key) -> float | None:
        """One object. Raises ApiError."""
        raw = self._store.get(AGENT_WORKFLOW_RUN, key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return None
        now = self._clock()
        status = raw.get("status") or {}
        if status.get("phase") in ENDED:
            return await self._expire(key, raw, now)
        verdict = await self._look(raw, status, now)
        await self._write(key, raw, verdict.status, now)
        return verdict.again_seconds

    def deleted(self, raw: Object) -> None:
        """The watch has told that an object is gone."""
        uid = raw["metadata"].get("uid", "")
        self._written.pop(uid, None)
        if (raw.get("status") or {}).get("phase") not in ENDED:
            self._gone.add(uid)
            self._due.set()

    async def run(self) -> None:
        """End the runs of objects that are gone, until cancelled."""
        while True:
            self._due.clear()
            try:
                await self.sweep()
            except RunRefused as error:
                log.debug("the open runs are not known: %s", error.message)
            try:
                async with asyncio.timeout(_WAITS_SECONDS if self._gone else _SWEEP_SECONDS):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def sweep(self) -> None:
        """Look once. Raises RunRefused."""
        gone, there = set(self._gone), {one["metadata"].get("uid") for one in self._store.all(AGENT_WORKFLOW_RUN)}
        lost = [run.uid for run in await self._gateways.open() if run.uid not in there and self._is_ours(run)]
        # What no watch has told of may be an object that is not known here yet.
        for uid in lost:
            if uid in gone or uid in self._missed:
                await self._gateways.cancel(uid)
                log.info("cancelled the run of an object that is gone: %s", uid)
        self._missed = set(lost)
        self._gone -= gone

    def _is_ours(self, run: OpenRun) -> bool:
        return not self._namespaces or run.namespace in self._namespaces

    async def _look(self, raw: Object, status: Object, now: float) -> Verdict:
        begun = bool(status.get("run"))
        if (early := self._without_a_gateway(raw["spec"], now, begun=begun)) is not None:
            return early
        spec, uid, namespace = raw["spec"], raw["metadata"]["uid"], raw["metadata"]["namespace"]
        order = RunOrder(namespace=namespace, workflow=spec["workflow"], input=spec.get("input"), begun=begun)
        try:
            if begun and spec.get("cancel"):
                await self._gateways.cancel(uid)
            return told(await self._gateways.put(uid, order), now)
        except RunRefused as refused:
            if refused.code in _FINAL:
                return ended(RunPhase.FAILED, refused.message, now)
            return Verdict({}, _WAITS_SECONDS) if begun else waits(refused.message)

    def _without_a_gateway(self, spec: Mapping[str, Any], now: float, *, begun: bool) -> Verdict | None:
        """What no gateway need be asked for."""
        if problems := run_problems(spec):
            return ended(RunPhase.FAILED, "; ".join(map(str, problems[:5])), now)
        if begun:
            return None
        if spec.get("cancel"):
            return ended(RunPhase.CANCELLED, "spec.cancel was set before the run began", now)
        if len(json.dumps(spec.get("input"))) > MOST_INPUT_BYTES:
            why = f"spec.input is longer than {MOST_INPUT_BYTES} bytes; begin the run at the gateway instead"
            return ended(RunPhase.FAILED, why, now)
        if self._under_way() >= MOST_AT_ONCE:
            return waits(f"{MOST_AT_ONCE} runs with objects are under way; begin many at the gateway instead")
        return None

    def _under_way(self) -> int:
        running = ((raw.get("status") or {}).get("phase") for raw in self._store.all(AGENT_WORKFLOW_RUN))
        return sum(phase == RunPhase.RUNNING for phase in running)

    async def _write(self, key: Key, raw: Object, status: Object, now: float) -> None:
        before, uid = raw.get("status") or {}, raw["metadata"]["uid"]
        changed = {field: value for field, value in status.items() if before.get(field) != value}
        lately = now - self._written.get(uid, 0.0) < _PROGRESS_SECONDS
        if not changed or (lately and changed.keys() <= {"tokens", "steps"}):
            return
        try:
            written = await self._api.status(AGENT_WORKFLOW_RUN, key.namespace, key.name, changed)
        except NotFound:
            return
        self._written[uid] = now
        self._store.put(AGENT_WORKFLOW_RUN, written)

    async def _expire(self, key: Key, raw: Object, now: float) -> float | None:
        self._written.pop(raw["metadata"]["uid"], None)
        finished = parse_time((raw.get("status") or {}).get("finished"))
        ttl = duration_seconds((raw.get("spec") or {}).get("ttlAfterFinished") or _DEFAULT_TTL)
        left = ttl if finished is None else finished + ttl - now
        if left > 0:
            return left + 1.0
        await self._api.delete(AGENT_WORKFLOW_RUN, key.namespace, key.name, uid=raw["metadata"]["uid"])
        return None


def waits(why: str) -> Verdict:
    """A run that has not begun."""
    return Verdict({"phase": RunPhase.PENDING.value, "reason": why}, _WAITS_SECONDS)


def ended(phase: RunPhase, why: str, now: float) -> Verdict:
    """A run that is over without a gateway's word; looked at again for its time to live."""
    return Verdict({"phase": phase.value, "reason": why[:4096], "finished": format_time(now)}, 1.0)


def told(report: RunReport, now: float) -> Verdict:
    """How a run stands by a gateway's word. A young one is asked for often, an old one seldom."""
    status: Object = {
        "phase": report.phase.value,
        "reason": report.reason,
        "run": report.run,
        "started": format_time(report.created),
        "tokens": report.tokens,
        "steps": report.steps,
    }
    if report.ended is None:
        age = now - report.created
        return Verdict(status, 1.0 if age < 10.0 else 2.0 if age < 60.0 else _WAITS_SECONDS)
    status["finished"] = format_time(report.ended)
    if report.output is not None:
        status |= {"output": report.output, "outputCut": report.output_cut}
    return Verdict(status, 1.0)
