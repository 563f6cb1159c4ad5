"""The operator's reconcile on a cluster in miniature: a scripted API server, and a store fed by watches that lag.

The world of `pools.world` goes on as it does there; here its Deployments lie in the API server, and its pods are
told through that. One operator lives after another: a new one knows only what it lists.
"""

import asyncio
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from faults.script import Asked
from pools.objects import SETTINGS, raw_pool
from pools.world import World
from scripted.apiserver import ScriptedServer
from tidepool_api.contract import POD_DELETION_COST
from tidepool_api.load import LoadReport
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import DEPLOYMENT, MODEL_POOL, OWNED, POD, WATCHED, Kind, Object
from tidepool_operator.cluster.names import Names
from tidepool_operator.cluster.store import Key, Store, key_of
from tidepool_operator.errors import ApiError, NotLeader
from tidepool_operator.events import Recorder
from tidepool_operator.pool.model import Plan
from tidepool_operator.pool.room import Room
from tidepool_operator.reconcile import Reconciler, Sources

POOL: Final = Key("default", "llama")


class Killed(BaseException):
    """The operator's process ends here, whatever it was at."""


class _Board:
    """Nothing is decided: people scale."""

    def get(self, key: str) -> None:
        return None

    def history(self, key: str) -> tuple[()]:
        return ()


class _Sidecars:
    """Every sidecar takes its settings, none tells its load."""

    async def push(self, settings: object, pods: object) -> list[str]:
        return []

    async def loads(self, pods: object) -> Mapping[str, LoadReport]:
        return {}


class _Nodes:
    """The room as it is at this moment."""

    def __init__(self, look: Callable[[], Room | None]) -> None:
        self._look = look

    async def room(self) -> Room | None:
        return self._look()

    async def trouble(self, name: str) -> str:
        return ""


class Cluster(World):
    """A world whose API server an operator works on. One event loop serves all its reconciles."""

    def __init__(self, accelerators: int, spec: Object, *, sees: bool) -> None:
        super().__init__(accelerators, spec, sees=sees)
        self.loop = asyncio.new_event_loop()
        self.server = ScriptedServer(lambda: self.now, _refusal)
        self.lives = 0
        self.pool_serial = 0
        self.make_pool()
        self.begin_life()

    def close(self) -> None:
        """Let the loop go."""
        self.loop.close()

    # People.

    def make_pool(self) -> None:
        """A pool of the name, another one than was there before."""
        self.pool_serial += 1
        raw = raw_pool(**self.spec)
        raw["metadata"] |= {"uid": f"pool-{self.pool_serial}", "generation": 1}
        self.server.put(MODEL_POOL, raw)

    def pool(self) -> Object | None:
        """The pool as it is stored."""
        return self.server.get(MODEL_POOL, POOL)

    def change(self, **spec: object) -> None:
        """Somebody edits the spec."""
        self.spec = {**self.spec, **spec}
        raw = self.pool()
        if raw is not None:
            self.server.put(
                MODEL_POOL, {**deepcopy(raw), "spec": {"model": {"uri": "hf://acme/llama"}, **self.spec}}
            )

    # The operator.

    def begin_life(self) -> None:
        """A new process: it lists, and leads from now on."""
        self.lives += 1
        life = self.lives
        self.store = Store()
        names = Names()
        self.store.listen(lambda kind, old, new: names.changed(old, new) if kind == MODEL_POOL else None)
        self.server.events.clear()
        for kind in WATCHED:
            for item in self.server.items[kind].values():
                self.store.put(kind, deepcopy(item))

        def fence() -> None:
            if self.lives != life:
                raise NotLeader("another life leads")

        api = Api(self.server, fence)  # type: ignore[arg-type] - stands for a Client
        nodes: Any = _Nodes(lambda: self.room() if self.sees else None)
        sidecars: Any = _Sidecars()
        self.reconciler = Reconciler(
            api,
            self.store,
            lambda: SETTINGS,
            Sources(_Board(), sidecars, nodes, tuple, names),
            Recorder(api, f"life-{life}"),
            lambda: self.now,
        )

    def deliver(self, *kinds: Kind) -> None:
        """The watches of these kinds (all without) tell what they have not told yet."""
        left = []
        for kind, item, gone in self.server.events:
            if kinds and kind not in kinds:
                left.append((kind, item, gone))
            elif gone:
                self.store.forget(kind, key_of(item), uid=item["metadata"]["uid"])
            else:
                self.store.put(kind, item)
        self.server.events[:] = left

    def work(self) -> Exception | None:
        """One reconcile; what it met. Raises Killed."""
        self.publish()
        try:
            self.requeued = self.loop.run_until_complete(self.reconciler(POOL))
        except ApiError as error:
            return error
        finally:
            self.absorb()
        return None

    def reconcile(self) -> Plan:
        """As in a world, on all that has happened."""
        self.publish()
        self.deliver()
        before = self.server.changes
        met = self.work()
        assert met is None, met
        return Plan() if self.server.changes == before else Plan(wants_room=True)

    # The cluster.

    def absorb(self) -> None:
        """Deployments and marks as the API server has them by now."""
        self.objects = {("Deployment", key.name): item for key, item in self.server.items[DEPLOYMENT].items()}
        for name, found in self.pods.items():
            stored = self.server.get(POD, Key(POOL.namespace, name))
            marked = ((stored or {}).get("metadata", {}).get("annotations") or {}).get(POD_DELETION_COST)
            self.pods[name] = replace(found, cost=None if marked is None else int(marked))
        raw = self.pool()
        self.status = (raw or {}).get("status") or {}

    def publish(self) -> None:
        """Tell the API server of the pods as they are."""
        for key in set(self.server.items[POD]) - {Key(POOL.namespace, name) for name in self.pods}:
            self.server.remove(POD, key)
        for found in self.pods.values():
            made = self._pod(found)
            made["metadata"].setdefault("generation", 1)
            self.server.put(POD, made)

    def collect(self) -> None:
        """The garbage collector: what belonged to a pool that is gone goes, and its pods with it."""
        raw = self.pool()
        uid = raw["metadata"]["uid"] if raw is not None else ""
        for kind in OWNED:
            for key, item in list(self.server.items[kind].items()):
                owners = item["metadata"].get("ownerReferences") or []
                if owners and all(owner["uid"] != uid for owner in owners):
                    self.server.remove(kind, key)
        self.absorb()
        revisions = self.replicas()
        for name, found in list(self.pods.items()):
            if found.revision not in revisions:
                self.pods[name] = replace(found, deleting=True, told=self.now)


def is_event(one: Asked) -> bool:
    """Whether a request only tells people something."""
    return one.resource == "events"


def _refusal(item: Object) -> str:
    return "unknown field spec.imagine" if '"imagine"' in str(item).replace("'", '"') else ""
