"""Replicas that span several nodes: a LeaderWorkerSet a revision, and a group of pods a replica.

The leader is what a pod of other pools is: engine, router, Service, drain. Workers have an engine alone, which
takes its orders from the leader's; they are told from other pods by their role, and what is wrong with one is
wrong with its replica. A group goes and comes as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from tidepool_api import contract
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool.diagnosis import foremost
from tidepool_operator.pool.fleet import PodFacts
from tidepool_operator.pool.model import Object

API_VERSION: Final = "leaderworkerset.x-k8s.io/v1"
KIND: Final = "LeaderWorkerSet"
# What makes a revision's pods.
WORKLOADS: Final = ("Deployment", KIND)
# On every pod of a group (sigs.k8s.io/lws api/leaderworkerset/v1/leaderworkerset_types.go).
_SET_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
_GROUP_LABEL: Final = "leaderworkerset.sigs.k8s.io/group-index"
# Written before a container's own variables, so that its arguments may name them.
_RANK, _LEADER = "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)"


def template_of(workload: Mapping[str, Any]) -> Object:
    """The template of the pods that serve, of a Deployment or a LeaderWorkerSet."""
    spec = workload["spec"]
    found: Object = (
        spec["leaderWorkerTemplate"]["leaderTemplate"] if workload["kind"] == KIND else spec["template"]
    )
    return found


def arguments(pool: ModelPool) -> tuple[str, ...]:
    """Of the engines of a group; nothing where a replica is one pod."""
    hosts = pool.spec.parallelism.hosts
    if hosts == 1:
        return ()
    ranks = (f"--nnodes={hosts}", f"--node-rank={_RANK}", f"--master-addr={_LEADER}")
    return (*ranks, "--distributed-executor-backend=mp")


def addresses(pool: ModelPool) -> tuple[str, ...]:
    """Variables that tell an engine of a group its pod's address."""
    return ("VLLM_HOST_IP",) if pool.spec.parallelism.hosts > 1 else ()


def spec_of(template: Object, hosts: int, replicas: int) -> Object:
    """Spec of the LeaderWorkerSet of a revision with this pod template."""
    return {
        "replicas": replicas,
        # All at once: the leader's engine waits for those of its workers.
        "startupPolicy": "LeaderCreated",
        "leaderWorkerTemplate": {
            "size": hosts,
            # An engine that has lost a part of itself does not take it back.
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": template,
            "workerTemplate": worker_of(template),
        },
    }


def worker_of(template: Object) -> Object:
    """The leader's pod without what is for clients: no router, no probes through it, no drain."""
    made = deepcopy(template)
    made["metadata"]["labels"][contract.ROLE_LABEL] = contract.ROLE_WORKER
    made["metadata"]["labels"].pop(contract.TLS_LABEL, None)
    for name in contract.SCRAPE_ANNOTATIONS:
        made["metadata"].get("annotations", {}).pop(name, None)
    spec = made["spec"]
    spec["initContainers"] = [one for one in spec["initContainers"] if one["name"] != contract.ROUTER_CONTAINER]
    engine = next(one for one in spec["containers"] if one["name"] == contract.ENGINE_CONTAINER)
    for gone in ("startupProbe", "readinessProbe", "lifecycle", "ports"):
        engine.pop(gone, None)
    engine["args"] = [*engine.get("args", ()), "--headless"]
    containers = (*spec["initContainers"], *spec["containers"])
    mounted = {mount["name"] for one in containers for mount in one.get("volumeMounts") or ()}
    spec["volumes"] = [volume for volume in spec.get("volumes") or () if volume["name"] in mounted]
    return made


def is_worker(pod: Object) -> bool:
    """Whether a pod is the worker of another one."""
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(contract.ROLE_LABEL) == contract.ROLE_WORKER)


def is_grouped(pod: Object) -> bool:
    """Whether a LeaderWorkerSet has made a pod."""
    return _SET_LABEL in (pod["metadata"].get("labels") or {})


def led(facts: Iterable[tuple[Object, PodFacts]]) -> Sequence[PodFacts]:
    """Pods and what is known of them, as replicas: each leader with what is wrong in its group."""
    pairs = list(facts)
    workers: dict[tuple[str, str], list[PodFacts]] = {}
    for pod, fact in pairs:
        if is_worker(pod) and not fact.deleting:
            workers.setdefault(_group(pod), []).append(fact)
    return [
        _with(replace(fact, rank=_rank(pod)) if is_grouped(pod) else fact, workers.get(_group(pod), ()))
        for pod, fact in pairs
        if not is_worker(pod)
    ]


def _rank(pod: Object) -> int | None:
    index = _group(pod)[1]
    return int(index) if index.isdecimal() else None


def _with(leader: PodFacts, workers: Sequence[PodFacts]) -> PodFacts:
    if not workers:
        return leader
    findings = [one.finding for one in (leader, *workers) if one.finding is not None]
    unplaced = [one.unplaced_since for one in (leader, *workers) if one.unplaced_since is not None]
    return replace(leader, finding=foremost(findings), unplaced_since=max(unplaced, default=None))


def _group(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(_SET_LABEL, ""), labels.get(_GROUP_LABEL, "")


def ingress(pool: ModelPool, peers: Object) -> tuple[Object, ...]:
    """The engines of a group meet on ports that their libraries choose; their API stays on localhost."""
    return ({"from": [peers]},) if pool.spec.parallelism.hosts > 1 else ()
