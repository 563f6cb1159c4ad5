"""Pools go under every policy of deletion, and what they leave on purpose is found again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import pytest

from pools.live import CRD, NAMESPACE, Live, eventually
from tidepool_api.contract import FLEET_CONFIGMAP, ROLE_LABEL, ROLE_MIXED
from tidepool_operator.cluster.kinds import DEPLOYMENT, EVENT, MODEL_POOL, OWNED, POD, Kind, Object

pytestmark = pytest.mark.apiserver

HPA = Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")


async def delete(live: Live, policy: str) -> None:
    await live.client.request(
        "DELETE", MODEL_POOL.path(live.namespace, "llama"), body={"propagationPolicy": policy}
    )


async def left(live: Live) -> set[str]:
    items = [(kind, item) for kind in (*OWNED, POD, MODEL_POOL) for item in await live.list(kind)]
    return {f"{kind} {item['metadata']['name']}" for kind, item in items} - {f"ConfigMap {FLEET_CONFIGMAP}"}


async def emptied(live: Live) -> None:
    async def look() -> bool:
        return not await left(live)

    await eventually(look, "nothing is left", 120)


async def alone(live: Live) -> None:
    async def look() -> bool:
        if await live.get(MODEL_POOL, "llama") is not None:
            return False
        return not any(item["metadata"].get("ownerReferences") for item in await live.list(DEPLOYMENT))

    await eventually(look, "the pool is gone without its objects")


async def uids(live: Live, count: int = 2) -> dict[str, str]:
    async def look() -> dict[str, str] | None:
        found = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await live.list(POD)}
        return found if len(found) == count else None

    return await eventually(look, f"{count} pods")


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_a_deleted_pool_leaves_nothing_and_nothing_is_made_again(live: Live, policy: str) -> None:
    async with live.operator() as operator:
        await live.create(replicas=2)
        await uids(live)
        await delete(live, policy)
        await emptied(live)
        operator.due.all()

        assert await left(live) == set()


async def test_a_pool_whose_spec_cannot_be_served_any_more_goes_all_the_same(live: Live) -> None:
    async with live.operator():
        await live.create(replicas=2)
        await uids(live)
        bad = {"spec": {"containers": [{"name": "engine", "imagine": True}]}}
        await live.edit(MODEL_POOL, "llama", {"spec": {"podTemplate": bad}})
        await live.reason("PodTemplateRejected")
        await delete(live, "Foreground")
        await emptied(live)


@pytest.mark.parametrize("policy", ["Background", "Foreground", pytest.param("Orphan", marks=pytest.mark.soak)])
async def test_a_pool_whose_spec_cannot_even_be_read_goes_all_the_same(live_alone: Live, policy: str) -> None:
    """Written under another release's definition, whose rules let through what this one cannot read.

    On an API server of its own: one whose definitions have just changed loses events of watches for a while.
    """
    live = live_alone
    async with live.operator(), _any_spec(live):
        await live.create(replicas=2)
        await uids(live)

        async def unreadable() -> bool:
            spec = {"model": {"uri": 7}, "engine": ["what"], "rollout": {"drainTimeout": {}}}
            await live.edit(MODEL_POOL, "llama", {"spec": spec})
            return (await live.condition()).get("reason") == "SpecInvalid"

        await eventually(unreadable, "the spec is told to be invalid")
        before = await uids(live)
        await delete(live, policy)
        await (alone(live) if policy == "Orphan" else emptied(live))
        assert policy != "Orphan" or await uids(live) == before, "what serves goes on serving"


@asynccontextmanager
async def _any_spec(live: Live) -> AsyncIterator[None]:
    """Meanwhile the API server takes whatever it is given for a pool."""
    name, how = "modelpools.tidepool.dev", "application/json-patch+json"
    whole = (await live.api.get(CRD, None, name))["spec"]["versions"]
    loose = deepcopy(whole)
    loose[0]["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}

    async def put(versions: Any) -> None:
        change = [{"op": "replace", "path": "/spec/versions", "value": versions}]
        await live.client.request("PATCH", CRD.path(None, name), body=change, content_type=how)

    await put(loose)
    try:
        yield
    finally:
        await put(whole)


async def test_a_namespace_that_is_deleted_takes_its_pools_along(live: Live) -> None:
    name = f"{live.namespace}-doomed"
    await live.api.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    doomed = Live(live.client, live.api, live.kubeconfig, name)
    async with live.operator(also=(name,)) as operator:
        await doomed.create(replicas=2)
        await uids(doomed)
        await live.client.request("DELETE", NAMESPACE.path(None, name))

        async def gone() -> bool:
            return name not in {item["metadata"]["name"] for item in await live.api.list(NAMESPACE)}

        await eventually(gone, "the namespace is gone", 120)

        async def idle() -> bool:
            return len(operator.queue) == 0

        await eventually(idle, "nothing is tried for it any more")
        await live.create("other")
        await live.reason("Starting", name="other")


async def test_what_is_orphaned_serves_on_is_told_of_and_is_taken_over(live: Live) -> None:
    async with live.operator() as operator:
        await live.create(replicas=2)
        before = await uids(live)
        await delete(live, "Orphan")
        await alone(live)

        async def told() -> bool:
            await operator.parts.orphans.look()
            return "Orphaned" in {event["reason"] for event in await live.list(EVENT)}

        await eventually(told, "it is told of")
        assert await uids(live) == before
        await live.create(replicas=2)

        async def owned() -> bool:
            items = [item for kind in OWNED[:6] for item in await live.list(kind)]
            pools = [item for item in items if item["metadata"]["name"] != FLEET_CONFIGMAP]
            return all(item["metadata"].get("ownerReferences") for item in pools)

        await eventually(owned, "the new pool owns it all")
        await operator.parts.orphans.look()

        assert operator.parts.orphans.count == 0
        assert await uids(live) == before, "a pod was touched"


async def test_an_hpa_drives_a_pool_without_scaling(live: Live) -> None:
    """Its bounds alone: they need no metrics, and go through the same scale subresource."""

    def bounds(least: int, most: int) -> dict[str, Any]:
        target = {"apiVersion": MODEL_POOL.api_version, "kind": "ModelPool", "name": "llama"}
        metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
        spec = {
            "scaleTargetRef": target,
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": metric}],
        }
        metadata = {"name": "llama", "namespace": live.namespace}
        return {"apiVersion": HPA.api_version, "kind": HPA.kind, "metadata": metadata, "spec": spec}

    async def wanted(replicas: int) -> None:
        async def look() -> bool:
            pool = await live.get(MODEL_POOL, "llama") or {}
            return bool(pool["spec"]["replicas"] == replicas)

        await eventually(look, f"the HPA asks for {replicas}", 120)

    async with live.operator():
        await live.create(replicas=1)
        await uids(live, 1)
        await live.api.create(HPA, live.namespace, bounds(3, 5))
        await wanted(3)
        await uids(live, 3)
        # Something else of the Deployment is applied: its count is no part of that.
        [made] = await live.list(DEPLOYMENT)
        await live.edit(DEPLOYMENT, made["metadata"]["name"], {"metadata": {"labels": {ROLE_LABEL: "changed"}}})

        async def put_back() -> Object | None:
            [found] = await live.list(DEPLOYMENT)
            return found if found["metadata"]["labels"][ROLE_LABEL] == ROLE_MIXED else None

        again = await eventually(put_back, "the label is put back")
        assert again["metadata"]["generation"] == made["metadata"]["generation"], "not even for a moment"
        await live.edit(HPA, "llama", {"spec": {"minReplicas": 1, "maxReplicas": 2}})
        await wanted(2)
        await uids(live, 2)
