"""What the autoscaler and the gateways see of the cluster, from the store."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidepool_api.contract import ENGINE_CONTAINER, ROLE_PREFILL, ROLE_WORKER, TLS_LABEL, VARIANT_LABEL
from tidepool_api.routing import FleetPool, FleetWorkflow
from tidepool_api.scaling import Scaling
from tidepool_operator.arbiter import Asks
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, MODEL_POOL, POD, Object
from tidepool_operator.cluster.store import Key, Store, key_of
from tidepool_operator.pool.model import Observed, RenderSettings, parse_time
from tidepool_operator.pool.pod_status import condition
from tidepool_operator.pool.read import read
from tidepool_operator.pool.render import fleet_pool
from tidepool_operator.pool.roles import role
from tidepool_operator.pool.room import shape_of
from tidepool_operator.pool.sidecar_tls import endpoints, prefill_endpoints
from tidepool_operator.pool.variants import device_of, rendered
from tidepool_operator.pool.variants import told as variants_told
from tidepool_operator.scaling.model import LivePod, PodState, ScaledPool, ScalingSpec
from tidepool_operator.scaling.spec import from_api

log = logging.getLogger(__name__)

# A ConfigMap holds a megabyte; the pools need their part of it.
_MOST_WORKFLOW_BYTES: Final = 400_000


class View:
    """The store in the autoscaler's words. Specs are parsed once a generation: with hundreds of pools, parsing
    them at every tick would be most of the operator's work."""

    def __init__(
        self,
        api: Api,
        store: Store,
        gateways: Callable[[], Mapping[str, str]],
        mark_due: Callable[[Key], None],
        leads: Callable[[], bool],
        *,
        tls: bool = False,
        hosts: Callable[[str], tuple[str, ...]] = lambda _: (),
    ) -> None:
        self._api = api
        self._store = store
        self._gateways = gateways
        self._mark_due = mark_due
        self._leads = leads
        self._tls = tls  # gateways speak TLS with the sidecars that can
        self._hosts = hosts  # what the workflows of a namespace may call, and where its pools' classifiers may be
        self._scaling: dict[str, tuple[int, ScalingSpec | None]] = {}
        self._fleet: dict[str, tuple[int, FleetPool]] = {}
        self._asks: dict[str, tuple[int, Asks | None]] = {}
        self._pods: dict[str, tuple[Object, LivePod]] = {}  # of the last look, by uid

    def scaled_pools(self) -> Sequence[ScaledPool]:
        """All pools with a sound `scaling` that are not being deleted."""
        pools = [raw for raw in self._store.all(MODEL_POOL) if not raw["metadata"].get("deletionTimestamp")]
        self._forget({raw["metadata"]["uid"] for raw in pools})
        seen: dict[str, tuple[Object, LivePod]] = {}
        found = [
            ScaledPool(
                key.namespace,
                key.name,
                raw["spec"].get("replicas", 1),
                spec,
                pods,
                _identity(raw),
                _mix(raw, spec, pods),
            )
            for raw in pools
            if (key := key_of(raw)) and (spec := self._scaling_of(raw)) is not None
            for pods in [self._live(key, seen)]
        ]
        self._pods = seen
        return found

    def gateways(self) -> Mapping[str, str]:
        """Addresses of the gateways' pods."""
        return self._gateways()

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Write a pool's scale subresource. Raises ApiError, and NotLeader in a process that does not lead."""
        await self._api.scale(MODEL_POOL, namespace, name, replicas)

    def mark_due(self, key: str) -> None:
        """Have a pool reconciled."""
        namespace, _, name = key.partition("/")
        self._mark_due(Key(namespace, name))

    def leads(self) -> bool:
        """Whether this process leads."""
        return self._leads()

    def fleet(self) -> tuple[FleetPool, ...]:
        """All pools as gateways see them; one whose spec is unsound stays as it was last sound."""
        found = []
        for raw in self._store.all(MODEL_POOL):
            if raw["metadata"].get("deletionTimestamp"):
                continue
            uid, generation = raw["metadata"]["uid"], raw["metadata"].get("generation", 0)
            known = self._fleet.get(uid)
            if known is None or known[0] != generation:
                pool, problems = read(raw)
                if not problems:
                    known = self._fleet[uid] = (generation, fleet_pool(pool))
            if known is not None:
                key, told = key_of(raw), known[1]
                if told.traffic is not None and told.traffic.asks:
                    told = told.model_copy(update={"hosts": self._hosts(key.namespace)})
                found.append(self._secured(told, key) if self._tls else told)
        return tuple(sorted(found, key=lambda pool: pool.name))

    def _secured(self, pool: FleetPool, key: Key) -> FleetPool:
        """Pods from before TLS was wanted are asked for as long as there are any."""
        pods = self._store.of_pool(POD, key)
        all_have_it = all(
            (pod["metadata"].get("labels") or {}).get(TLS_LABEL) for pod in pods if role(pod) != ROLE_WORKER
        )
        found = endpoints(key.name, key.namespace, all_have_it=all_have_it)
        apart = pool.prefill
        if apart is not None:
            apart = apart.model_copy(
                update={"endpoints": prefill_endpoints(key.name, key.namespace, all_have_it=all_have_it)}
            )
        return pool.model_copy(update={"endpoints": found, "prefill": apart})

    def workflows(self) -> tuple[FleetWorkflow, ...]:
        """Workflows that are accepted as they stand, as gateways see them, as many as a ConfigMap holds."""
        found, room = [], _MOST_WORKFLOW_BYTES
        for raw in sorted(self._store.all(AGENT_WORKFLOW), key=lambda raw: str(key_of(raw))):
            if raw["metadata"].get("deletionTimestamp") or not _is_accepted(raw):
                continue
            room -= len(json.dumps(raw["spec"]))
            if room < 0:
                log.warning(
                    "the workflows together are too large: %s and those after it cannot be called", key_of(raw)
                )
                break
            key = key_of(raw)
            found.append(FleetWorkflow(name=str(key), spec=raw["spec"], hosts=self._hosts(key.namespace)))
        return tuple(found)

    def asks(self, key: str) -> Asks | None:
        """What a pool's pods ask for, found once a generation; None: unsound, or a replica is several pods."""
        namespace, _, name = key.partition("/")
        raw = self._store.get(MODEL_POOL, Key(namespace, name))
        if raw is None:
            return None
        uid, generation = raw["metadata"]["uid"], raw["metadata"].get("generation", 0)
        known = self._asks.get(uid)
        if known is None or known[0] != generation:
            known = self._asks[uid] = (generation, _asks_of(raw))
        return known[1]

    def _scaling_of(self, raw: Object) -> ScalingSpec | None:
        uid, generation = raw["metadata"]["uid"], raw["metadata"].get("generation", 0)
        known = self._scaling.get(uid)
        if known is None or known[0] != generation:
            known = self._scaling[uid] = (generation, _parsed(raw.get("spec") or {}))
        return known[1]

    def _forget(self, uids: set[str]) -> None:
        for gone in self._scaling.keys() - uids:
            del self._scaling[gone]
        for gone in self._fleet.keys() - uids:
            del self._fleet[gone]
        for gone in self._asks.keys() - uids:
            del self._asks[gone]

    def _live(self, key: Key, seen: dict[str, tuple[Object, LivePod]]) -> tuple[LivePod, ...]:
        found = []
        for pod in self._store.of_pool(POD, key):
            if pod["metadata"].get("deletionTimestamp") or role(pod) in (ROLE_PREFILL, ROLE_WORKER):
                continue
            uid = pod["metadata"].get("uid", "")
            known = self._pods.get(uid)
            # The store has another object for each state of a pod.
            if known is None or known[0] is not pod:
                known = (pod, _live_pod(pod, uid))
            seen[uid] = known
            found.append(known[1])
        return tuple(found)


def _live_pod(pod: Object, uid: str) -> LivePod:
    return LivePod(
        pod["metadata"]["name"],
        pod_state(pod),
        startup_seconds(pod),
        parse_time(pod["metadata"].get("creationTimestamp")),
        (pod["metadata"].get("labels") or {}).get(VARIANT_LABEL, ""),
        uid,
    )


def _is_accepted(raw: Object) -> bool:
    accepted = condition(raw, "Accepted")
    current = accepted.get("observedGeneration") == raw["metadata"].get("generation", 0)
    return current and accepted.get("status") == "True"


def pod_state(pod: Object) -> PodState:
    """Where a pod stands on its way to serving."""
    if condition(pod, "Ready").get("status") == "True":
        return PodState.READY
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    if any(entry["name"] == ENGINE_CONTAINER and entry.get("started") for entry in statuses):
        return PodState.UNREADY
    return PodState.STARTING if pod["spec"].get("nodeName") else PodState.PENDING


def startup_seconds(pod: Object) -> float | None:
    """Seconds from a ready pod's creation to its being ready; None where it was not the first time, or is not."""
    ready = condition(pod, "Ready")
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    if ready.get("status") != "True" or any(entry.get("restartCount") for entry in statuses):
        return None
    since = parse_time(ready.get("lastTransitionTime"))
    created = parse_time(pod["metadata"].get("creationTimestamp"))
    return None if since is None or created is None else since - created


def _identity(raw: Object) -> str:
    """The revision that serves most likely: a new one is another model, or other flags."""
    status = raw.get("status") or {}
    if status.get("variants"):
        # They come and go with the mix; what the spec asks for does not.
        return str(status.get("updateRevision") or "")
    return str(status.get("currentRevision") or status.get("updateRevision") or "")


def _mix(raw: Object, spec: ScalingSpec, pods: Sequence[LivePod]) -> Mapping[str, int]:
    """Replicas by variant as the status has them, else as the pods are."""
    if not spec.variants:
        return {}
    return variants_told(raw.get("status") or {}) or Counter(pod.variant for pod in pods if pod.variant)


def _asks_of(raw: Object) -> Asks | None:
    pool, problems = read(raw)
    if problems or pool.spec.parallelism.hosts > 1:
        return None  # shares are counted in pods, and such a replica is a group of them
    # Which router it will be makes no difference to what the pod asks for.
    observed = Observed(pool=pool, raw_status={}, settings=RenderSettings("router", ""))
    made = rendered(observed)
    return Asks(
        pool.spec.scheduling.priority_class_name,
        {one.variant: (shape_of(one.template), *device_of(pool, one.variant)) for one in made},
    )


def _parsed(spec: Mapping[str, Any]) -> ScalingSpec | None:
    if spec.get("scaling") is None:
        return None
    try:
        return from_api(Scaling.model_validate(spec["scaling"]))
    except ValueError:  # pydantic's is one
        return None  # the reconcile says what is wrong with it
