"""One pool, once: observe, plan, apply, status. The only path by which anything about a pool is written."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tidepool_api.contract import LOADS_FOR_LABEL, POD_DELETION_COST, POOL_LABEL
from tidepool_api.load import LoadReport
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.clues import ClueReader
from tidepool_operator.cluster.kinds import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    MODEL_POOL,
    OWNED,
    POD,
    WATCHED,
    Object,
    kind_of,
)
from tidepool_operator.cluster.names import Names
from tidepool_operator.cluster.nodes import Nodes
from tidepool_operator.cluster.sidecars import Sidecars
from tidepool_operator.cluster.store import Key, Store, key_of
from tidepool_operator.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from tidepool_operator.events import Recorder
from tidepool_operator.pool.groups import is_grouped
from tidepool_operator.pool.model import Note, Observed, Plan, RenderSettings, Severity
from tidepool_operator.pool.ownership import may_take
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.preload import unready
from tidepool_operator.pool.read import doubts, read, strangers
from tidepool_operator.pool.served import settings_by_pods
from tidepool_operator.repairs import AGAIN_SECONDS, Repairs
from tidepool_operator.scaling.model import Decision

log = logging.getLogger(__name__)

_PUSH_AGAIN_SECONDS: Final = 5.0


class Decisions(Protocol):
    """The board of the autoscaler."""

    def get(self, key: str) -> Decision | None:
        """The last decision for a pool."""
        ...

    def history(self, key: str) -> tuple[Decision, ...]:
        """Decisions that changed something, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """What a look at a pool is made from beside the store; `gateways` gives the addresses of those that serve."""

    board: Decisions
    sidecars: Sidecars
    nodes: Nodes
    gateways: Callable[[], tuple[str, ...]]
    names: Names


class Reconciler:
    """Brings the cluster to what a pool asks for. Safe to run again at any time, and after any interruption."""

    def __init__(
        self,
        api: Api,
        store: Store,
        render: Callable[[], RenderSettings],
        sources: Sources,
        recorder: Recorder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._clock = clock
        self._store = store
        self._render = render
        self._board = sources.board
        self._sidecars = sources.sidecars
        self._nodes = sources.nodes
        self._gateways = sources.gateways
        self._names = sources.names
        self._recorder = recorder
        self._clues = ClueReader(api, sources.sidecars, sources.nodes)
        self._repairs = Repairs()

    async def __call__(self, key: Key) -> float | None:
        """Reconcile one pool; seconds until it wants to be looked at again. Raises ApiError and NotLeader."""
        raw = self._store.get(MODEL_POOL, key)
        if raw is None:
            self._repairs.forget(key)
            return None
        try:
            return await self._reconcile(key, raw)
        except NotFound:
            # The pool went while it was worked on: the garbage collector has the rest.
            if await self._gone(key):
                return None
            raise
        except ApiError as error:
            message = f"The API server did not do what was asked: {error}. It is asked again."
            await self._recorder.post(raw, Note(Severity.WARNING, "ReconcileFailed", message))
            raise

    async def _reconcile(self, key: Key, raw: Object) -> float | None:
        observed = await self._with_groups(key, self._observe(key, raw))
        observed = replace(observed, loaders=await self._loaders(key, observed))
        clues, look_again = await self._clues.read(key.namespace, (*observed.pods, *observed.loaders))
        observed = replace(observed, clues=clues)
        made = await self._unfought(key, raw, await self._plan(observed))
        await self._carry_out(key, made)
        await self._tell(key, raw, made)
        if observed.problems or observed.pool.metadata.deletion_timestamp:
            return made.requeue_after_seconds
        for doubt in doubts(observed.pool):
            message = f"{doubt} (by the flags of vLLM 0.32; spec.engine.image may have others.)"
            await self._recorder.post(raw, Note(Severity.WARNING, "EngineFlagUnknown", message))
        missed = [
            pod
            for settings, pods in settings_by_pods(observed)
            for pod in await self._sidecars.push(settings, pods)
        ]
        again = (made.requeue_after_seconds, look_again, _PUSH_AGAIN_SECONDS if missed else None)
        return min((seconds for seconds in again if seconds is not None), default=None)

    def _observe(self, key: Key, raw: Object) -> Observed:
        pool, problems = read(raw)
        return Observed(
            pool=pool,
            raw_status=raw.get("status") or {},
            settings=self._render(),
            problems=problems,
            objects=tuple(
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for kind in OWNED
                for item in self._store.of_pool(kind, key)
            ),
            pods=tuple(self._store.of_pool(POD, key)),
            gateways=self._gateways(),
            namesakes=self._names.namesakes(raw),
            decision=self._board.get(str(key)),
            history=self._board.history(str(key)),
        )

    async def _with_groups(self, key: Key, observed: Observed) -> Observed:
        """With the pool's LeaderWorkerSets. Nobody watches them: few pools have some, few clusters know them."""
        wanted = observed.pool.spec.parallelism.hosts > 1 or any(map(is_grouped, observed.pods))
        if not wanted or not observed.settings.groups:
            return observed
        kind = LEADER_WORKER_SET
        try:
            found = await self._api.list(kind, key.namespace, labels=f"{POOL_LABEL}={key.name}")
        except NotFound:
            # The cluster had the kind when it was last looked at. All of it went with the kind.
            return replace(observed, settings=replace(observed.settings, groups=False))
        named = ({"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in found)
        return replace(observed, objects=(*observed.objects, *named))

    async def _loaders(self, key: Key, observed: Observed) -> tuple[Object, ...]:
        """Pods of Jobs that do not get on. They are asked for, not watched: a cluster seldom has any."""
        names = unready(observed)
        if not names:
            return ()
        labels = f"{LOADS_FOR_LABEL}={key.name}"
        return tuple(await self._api.list(POD, key.namespace, labels=labels))

    async def _plan(self, observed: Observed) -> Plan:
        """The plan, made again with what had to be asked for: room, loads, the dry run's verdict, taken names."""
        made = plan(observed, self._clock())
        if made.wants_room and (room := await self._nodes.room()) is not None:
            observed = replace(observed, room=room)
            made = plan(observed, self._clock())
        if made.wants_loads:
            loads: dict[str, LoadReport] = await self._sidecars.loads(observed.pods)
            observed = replace(observed, loads=loads)
            made = plan(observed, self._clock())
        taken = await self._taken(observed, made)
        if taken:
            return plan(replace(observed, taken=taken), self._clock())
        refused = await self._refused(made)
        return plan(replace(observed, refused=refused), self._clock()) if refused else made

    async def _taken(self, observed: Observed, made: Plan) -> tuple[str, ...]:
        """Objects of others under the names that are to be created: force would take them over in silence."""
        known = {(item["kind"], item["metadata"]["name"]) for item in observed.objects}
        taken = []
        for item in made.applies:
            metadata = item["metadata"]
            if (item["kind"], metadata["name"]) in known:
                continue
            try:
                live = await self._api.get(kind_of(item), metadata["namespace"], metadata["name"])
            except NotFound:
                continue
            if not may_take(observed.pool, live):
                taken.append(f"{item['kind']} {metadata['name']}")
        return tuple(taken)

    async def _refused(self, made: Plan) -> dict[str, str]:
        refused = {}
        for item in made.checks:
            try:
                await self._api.apply(item, dry_run=True)
            except (Invalid, Forbidden) as error:
                _, _, revision = item["metadata"]["name"].rpartition("-")
                refused[revision] = error.message
        return refused

    async def _unfought(self, key: Key, raw: Object, made: Plan) -> Plan:
        """The plan without objects that were applied time and again for one and the same spec."""
        names = [_name(item) for item in made.applies]
        fought = self._repairs.count(key, raw["metadata"].get("generation", 0), names, self._clock())
        if not fought:
            return made
        message = (
            f"Somebody changes {', '.join(fought)} again and again against this pool's spec. "
            "Find out who (kubectl get -o yaml --show-managed-fields) and stop it; is there a second operator?"
        )
        await self._recorder.post(raw, Note(Severity.WARNING, "Contested", message))
        kept = tuple(item for item in made.applies if _name(item) not in fought)
        return replace(made, applies=kept, requeue_after_seconds=AGAIN_SECONDS)

    async def _carry_out(self, key: Key, made: Plan) -> None:
        for item in made.applies:
            applied = await self._api.apply(item)
            if kind_of(item) in WATCHED:
                self._store.put(kind_of(item), applied)
            log.info("applied %s %s", item["kind"], key_of(item))
        for mark in made.marks:
            cost = None if mark.cost is None else str(mark.cost)
            change: Object = {"metadata": {"annotations": {POD_DELETION_COST: cost}}}
            # Not into the store: when the watch brings it, the ReplicaSet's controller has likely seen it too.
            with contextlib.suppress(NotFound):
                await self._api.patch(POD, key.namespace, mark.pod, change)
        for scale in made.scales:
            kind = DEPLOYMENT if scale.kind == DEPLOYMENT.kind else LEADER_WORKER_SET
            version = await self._api.scale(kind, key.namespace, scale.deployment, scale.replicas)
            if kind in WATCHED:
                # An apply writes the count that is known: it must not be one of before.
                where = Key(key.namespace, scale.deployment)
                self._store.amend(kind, where, version, {"replicas": scale.replicas})
            log.info("scaled %s %s/%s to %d", kind, key.namespace, scale.deployment, scale.replicas)
        for doomed in made.deletes:
            item = {"apiVersion": doomed.api_version, "kind": doomed.kind}
            seen = {"uid": doomed.uid, "version": doomed.version}
            try:
                await self._api.delete(kind_of(item), key.namespace, doomed.name, **seen)
            except Conflict:
                # It is not what was seen any more; its watch tells, and then it is looked at again.
                log.info("%s %s/%s has changed and is not deleted", doomed.kind, key.namespace, doomed.name)
                continue
            log.info("deleted %s %s/%s", doomed.kind, key.namespace, doomed.name)

    async def _tell(self, key: Key, raw: Object, made: Plan) -> None:
        if made.status is not None:
            written = await self._api.status(MODEL_POOL, key.namespace, key.name, made.status)
            self._store.put(MODEL_POOL, written)
        for note in made.notes:
            await self._recorder.post(raw, note)
        unknown = strangers(raw)
        if unknown:
            message = (
                f"This release does not know {', '.join(unknown)}, and leaves it aside. "
                "Correct the name, or upgrade the operator."
            )
            await self._recorder.post(raw, Note(Severity.WARNING, "UnknownField", message))

    async def _gone(self, key: Key) -> bool:
        try:
            await self._api.get(MODEL_POOL, key.namespace, key.name)
        except NotFound:
            return True
        return False


def _name(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"
