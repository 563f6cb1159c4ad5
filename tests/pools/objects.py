"""Pools, pods and Deployments as the API server would give them, for tests of the operator's pure rooms."""

from copy import deepcopy
from typing import Any

from tidepool_api import contract
from tidepool_operator.pool.model import Object, Observed, RenderSettings, format_time
from tidepool_operator.pool.read import read

SETTINGS = RenderSettings(router_image="tidepool-router:test", operator_namespace="tidepool")
NOW = 1_700_000_000.0


def raw_pool(name: str = "llama", *, status: Object | None = None, generation: int = 1, **spec: Any) -> Object:
    """A stored ModelPool; `spec` entries over a one-model default."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": "ModelPool",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "generation": generation,
            "resourceVersion": "1",
        },
        "spec": {"model": {"uri": "hf://acme/llama"}, **spec},
        "status": status or {},
    }


def observe(raw: Object, **rest: Any) -> Observed:
    """A look at a pool with nothing around it but what `rest` says."""
    pool, problems = read(raw)
    return Observed(pool=pool, raw_status=raw["status"], settings=SETTINGS, problems=problems, **rest)


def pod(
    name: str,
    revision: str,
    *,
    ready: bool = False,
    age_seconds: float = 60.0,
    ready_for_seconds: float = 30.0,
    deleting: bool = False,
    cost: int | None = None,
    scheduled: bool = True,
    engine: Object | None = None,
    router: Object | None = None,
    unplaced: str = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
) -> Object:
    """A pod of the pool `llama`; `engine` and `router` are merged into their container statuses."""
    conditions: list[Object] = [
        {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": format_time(NOW - (ready_for_seconds if ready else age_seconds)),
        }
    ]
    if not scheduled:
        conditions.append(
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unplaced}
        )
    running: Object = {"state": {"running": {}}, "restartCount": 0}
    status: Object = {"phase": "Running" if scheduled else "Pending", "conditions": conditions}
    if scheduled:
        status["podIP"] = "10.0.0.9"
        status["initContainerStatuses"] = [
            {"name": "router", "started": True, "ready": True, **deepcopy(running), **(router or {})}
        ]
        status["containerStatuses"] = [
            {"name": "engine", "started": ready, "ready": ready, **deepcopy(running), **(engine or {})}
        ]
    metadata: Object = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": format_time(NOW - age_seconds),
        "labels": {contract.POOL_LABEL: "llama", contract.REVISION_LABEL: revision},
    }
    if cost is not None:
        metadata["annotations"] = {contract.POD_DELETION_COST: str(cost)}
    if deleting:
        metadata["deletionTimestamp"] = format_time(NOW - 1)
    containers = [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]
    spec = {"nodeName": "n1" if scheduled else None, "containers": containers}
    return {"metadata": metadata, "spec": spec, "status": status}


def stored(item: Object, age_seconds: float = 600.0) -> Object:
    """A rendered object as the API server would store it."""
    made = deepcopy(item)
    made["metadata"] |= {
        "uid": f"uid-{item['kind']}-{item['metadata']['name']}",
        "creationTimestamp": format_time(NOW - age_seconds),
        "resourceVersion": "1",
    }
    return made


def condition(status: Object, kind: str) -> Object:
    """One condition of a status."""
    return next(entry for entry in status["conditions"] if entry["type"] == kind)
