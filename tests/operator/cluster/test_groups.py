"""Replicas on several nodes on a real API server: without LeaderWorkerSets, and with them.

No controller of LeaderWorkerSets runs here: the test makes the pods that it would make, from the stored templates.
"""

import asyncio
from typing import Any

import pytest

from pools.leader_worker_sets import definition
from pools.live import CRD, Live, eventually
from tidepool_api.contract import ROLE_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, EVENT, LEADER_WORKER_SET, MODEL_POOL, POD, Object
from tidepool_operator.errors import NotFound

# Soak: it has an API server of its own, for a kind that comes and goes stirs the garbage collector of all.
pytestmark = [pytest.mark.apiserver, pytest.mark.soak]

TWO: dict[str, Any] = {"parallelism": {"tensor": 2, "hosts": 2}, "accelerator": {"count": 1}}


async def _with_groups(live: Live) -> None:
    await live.api.create(CRD, "", definition())

    async def published() -> bool:
        kind = LEADER_WORKER_SET
        try:
            return await live.api.schema(kind.group, kind.version, kind.kind) is not None
        except NotFound:
            return False

    await eventually(published, "LeaderWorkerSets are served")


async def _workload(live: Live, replicas: int) -> Object:
    async def look() -> Object | None:
        found = await live.list(LEADER_WORKER_SET)
        return found[0] if len(found) == 1 and found[0]["spec"]["replicas"] == replicas else None

    return await eventually(look, f"a LeaderWorkerSet of {replicas}")


async def _group(live: Live, item: Object, number: int) -> None:
    """The pods of a group, as the controller makes them; the worker runs, the leader serves."""
    name, made = f"{item['metadata']['name']}-{number}", item["spec"]["leaderWorkerTemplate"]
    for member, template in ((name, made["leaderTemplate"]), (f"{name}-1", made["workerTemplate"])):
        labels = template["metadata"]["labels"] | {
            "leaderworkerset.sigs.k8s.io/name": item["metadata"]["name"],
            "leaderworkerset.sigs.k8s.io/group-index": str(number),
        }
        metadata = {"name": member, "namespace": live.namespace, "labels": labels}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        await live.api.create(POD, live.namespace, body)
        await live.bring_up(member)


def _ours(versions: dict[str, str]) -> dict[str, str]:
    """Without what the cluster's own controllers write when they come to it: EndpointSlices, and how many pods a
    budget counts."""
    theirs = ("EndpointSlice/", "PodDisruptionBudget/")
    return {name: version for name, version in versions.items() if not name.startswith(theirs)}


async def test_a_pool_on_two_nodes_waits_for_what_the_cluster_lacks_and_is_served_when_it_has_it(
    live_alone: Live,
) -> None:
    live = live_alone
    async with live.operator():
        await live.create(**TWO)
        told = await live.reason("LeaderWorkerSetMissing")
        assert "https://lws.sigs.k8s.io" in told["message"]
        assert await live.list(POD) == await live.list(DEPLOYMENT) == []

    await _with_groups(live)
    async with live.operator():
        item = await _workload(live, 1)
        await _group(live, item, 0)
        await live.reason("Complete", "Progressing")
        pool = await live.get(MODEL_POOL, "llama")
        before = _ours(await live.versions())
        await asyncio.sleep(1.0)  # nothing happens, which has no event
        after = _ours(await live.versions())
        quiet = await live.get(LEADER_WORKER_SET, item["metadata"]["name"])

        await live.edit(MODEL_POOL, "llama", {"spec": {"replicas": 2}})
        grown = await _workload(live, 2)
        await live.edit(MODEL_POOL, "llama", {"spec": {"parallelism": None}})

        async def moved() -> bool:
            for pod in await live.list(POD):
                await live.bring_up(pod["metadata"]["name"])
            return [one["spec"]["replicas"] for one in await live.list(LEADER_WORKER_SET)] == [0]

        await eventually(moved, "single pods in place of the groups, which serve until then")
        (deployment,) = await live.list(DEPLOYMENT)

        # The kind goes, and with it what serves: that is told, although it was there when it was last looked at.
        await live.create("wide", **TWO)
        await live.reason("Starting", name="wide")
        await live.api.delete(CRD, "", definition()["metadata"]["name"])

        async def gone() -> bool:
            try:
                await live.list(LEADER_WORKER_SET)
            except NotFound:
                return True
            return False

        await eventually(gone, "LeaderWorkerSets are not served any more")
        await live.edit(MODEL_POOL, "wide", {"spec": {"replicas": 2}})
        await live.reason("LeaderWorkerSetMissing", name="wide")

    assert pool is not None
    assert quiet is not None
    assert (pool["status"]["replicas"], pool["status"]["readyReplicas"]) == (1, 1)
    assert (before, item["metadata"]["resourceVersion"]) == (after, quiet["metadata"]["resourceVersion"])
    assert item["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert item["metadata"]["ownerReferences"][0]["kind"] == "ModelPool"
    templates = grown["spec"]["leaderWorkerTemplate"]
    roles = [templates[name]["metadata"]["labels"][ROLE_LABEL] for name in ("leaderTemplate", "workerTemplate")]
    assert roles == ["mixed", "worker"]
    assert deployment["spec"]["replicas"] == 2


async def _collector_knows_it(live: Live) -> None:
    """The garbage collector learns of a kind by its own pace, and of its objects in their order: of this one after
    those that are there. A deletion before it knows them orphans nothing."""
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "nobody",
        "uid": "00000000-0000-0000-0000-000000000001",
    }
    body = {
        "apiVersion": LEADER_WORKER_SET.api_version,
        "kind": LEADER_WORKER_SET.kind,
        "metadata": {"name": "of-nobody", "namespace": live.namespace, "ownerReferences": [owner]},
        "spec": {"leaderWorkerTemplate": {"workerTemplate": {}}},
    }
    await live.api.create(LEADER_WORKER_SET, live.namespace, body)

    async def collected() -> bool:
        return await live.get(LEADER_WORKER_SET, "of-nobody") is None

    await eventually(collected, "what nobody owns is collected", 180)


async def test_groups_that_a_deletion_left_are_told_of_although_nobody_watches_them(live_alone: Live) -> None:
    live = live_alone
    await _with_groups(live)
    async with live.operator() as operator:
        await live.create(**TWO)
        item = await _workload(live, 1)
        await _collector_knows_it(live)
        path = MODEL_POOL.path(live.namespace, "llama")
        await live.client.request("DELETE", path, body={"propagationPolicy": "Orphan"})

        async def told() -> list[str]:
            await operator.parts.orphans.look()
            about = [one["regarding"] for one in await live.list(EVENT) if one["reason"] == "Orphaned"]
            return [one["name"] for one in about if one["kind"] == LEADER_WORKER_SET.kind]

        names = await eventually(told, "it is told of")
        await live.create(**TWO)

        async def owned() -> bool:
            found = await live.list(LEADER_WORKER_SET)
            return [len(one["metadata"].get("ownerReferences") or []) for one in found] == [1]

        await eventually(owned, "a pool of its name takes it over")
        await operator.parts.orphans.look()

        assert operator.parts.orphans.count == 0

    assert names == [item["metadata"]["name"]]
