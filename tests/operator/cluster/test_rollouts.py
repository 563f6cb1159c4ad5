"""Rollouts on a real API server, with nodes that exist on paper: a test places pods as a scheduler would."""

from collections.abc import AsyncIterator

import pytest

from pools.live import Live, eventually, written
from pools.nodes import PaperNodes, paper_nodes
from pools.releases import a_volume_less, made_by
from tidepool_operator.cluster.kinds import DEPLOYMENT, MODEL_POOL, POD

pytestmark = pytest.mark.apiserver


def device(live: Live) -> str:
    """A kind of its own: pods of other tests that wait for one must not take the places."""
    return f"test.tidepool.dev/{live.namespace}"


@pytest.fixture
async def nodes(live: Live) -> AsyncIterator[PaperNodes]:
    async with paper_nodes(live, device(live)) as made:
        yield made


async def place(live: Live, pod: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": f"{live.namespace}-0"},
    }
    await live.client.request("POST", POD.path(live.namespace, pod, "binding"), body=body)
    await live.bring_up(pod)


async def end(live: Live, pod: str) -> None:
    """What a kubelet does when a pod has drained."""
    await live.client.request("DELETE", POD.path(live.namespace, pod), body={"gracePeriodSeconds": 0})


async def staying(live: Live) -> list[str]:
    found = await live.list(POD)
    return sorted(pod["metadata"]["name"] for pod in found if not pod["metadata"].get("deletionTimestamp"))


async def leaving(live: Live) -> list[str]:
    return [pod["metadata"]["name"] for pod in await live.list(POD) if pod["metadata"].get("deletionTimestamp")]


async def progressing(live: Live) -> bool:
    return bool((await live.condition("Progressing")).get("status") == "True")


async def waiting(live: Live) -> list[str]:
    return [pod["metadata"]["name"] for pod in await live.list(POD) if not pod["spec"].get("nodeName")]


async def unplaced(live: Live, count: int) -> list[str]:
    async def look() -> list[str] | None:
        found = await waiting(live)
        return found if len(found) == count else None

    return await eventually(look, f"{count} pods want a place")


async def serve(live: Live, nodes: PaperNodes, gpus: int) -> list[str]:
    await nodes.add(gpus)
    await live.create(replicas=2, accelerator={"resource": device(live), "nodeSelector": {"test": live.namespace}})
    for pod in await unplaced(live, 2):
        await place(live, pod)
    await live.reason("Complete", "Progressing")
    return await staying(live)


async def change(live: Live, length: int) -> None:
    await live.edit(MODEL_POOL, "llama", {"spec": {"engine": {"maxModelLen": length}}})


async def test_on_a_full_node_one_pod_goes_first_and_the_new_one_takes_its_place(
    live: Live, nodes: PaperNodes
) -> None:
    async with live.operator(reads_nodes=True):
        first = await serve(live, nodes, gpus=2)
        await change(live, 128)
        for _ in first:
            going = await eventually(lambda: leaving(live), "one pod goes")
            # Nothing waits for a place, and no second pod goes, while it drains.
            await eventually(lambda: progressing(live), "the rollout is told of")
            assert len(going) == 1
            assert await waiting(live) == []
            assert (await live.condition("CapacityAvailable"))["status"] == "True"
            await end(live, going[0])
            (new,) = await unplaced(live, 1)
            await place(live, new)
        await live.reason("Complete", "Progressing")
        pods = await staying(live)

    assert len(pods) == 2
    assert set(pods).isdisjoint(first)


async def test_on_a_node_with_room_the_new_pods_come_first(live: Live, nodes: PaperNodes) -> None:
    async with live.operator(reads_nodes=True):
        first = await serve(live, nodes, gpus=3)
        await change(live, 128)
        # Room for one: one comes, and nobody goes before it serves.
        (new,) = await unplaced(live, 1)
        assert set(first) < set(await staying(live))
        await place(live, new)
        (gone,) = await eventually(lambda: leaving(live), "an old pod goes")
        await end(live, gone)
        (last,) = await unplaced(live, 1)
        await place(live, last)
        (gone,) = await eventually(lambda: leaving(live), "the other old pod goes")
        await end(live, gone)
        await live.reason("Complete", "Progressing")

        assert await staying(live) == sorted([new, last])


async def test_a_change_back_in_the_middle_uses_the_pods_that_are_left(live: Live, nodes: PaperNodes) -> None:
    async with live.operator(reads_nodes=True):
        first = await serve(live, nodes, gpus=4)
        await live.edit(MODEL_POOL, "llama", {"spec": {"engine": {"maxModelLen": 128}}})
        await unplaced(live, 2)
        await live.edit(MODEL_POOL, "llama", {"spec": {"engine": {"maxModelLen": None}}})
        await live.reason("Complete", "Progressing")

        assert await staying(live) == first


async def test_an_upgrade_restarts_nothing_and_a_restart_that_is_asked_for_brings_the_new_router(
    live: Live,
    nodes: PaperNodes,
) -> None:
    """The release before has neither the image nor a volume of the router of this one."""
    with made_by(a_volume_less):
        async with live.operator():
            first = await serve(live, nodes, gpus=4)
            (deployment,) = await live.list(DEPLOYMENT)
            ready = await live.condition("Ready")
    async with live.operator("two", reads_nodes=True, router_image="tidepool-router:next"):

        async def told() -> bool:
            return "tidepool-router:next" in (await live.condition("Progressing")).get("message", "")

        await eventually(told, "the pool says that a newer router is there")
        (kept,) = await live.list(DEPLOYMENT)
        assert written(kept) == written(deployment)
        assert await staying(live) == first
        assert await live.condition("Ready") == ready

        async def renewed() -> bool:
            (kept,) = await live.list(DEPLOYMENT)
            return bool(kept["spec"]["progressDeadlineSeconds"] == 300)

        # Also where the Deployment is written anew, for what needs no restart, its pods stay as they are.
        await live.edit(MODEL_POOL, "llama", {"spec": {"rollout": {"progressDeadline": "5m"}}})
        await eventually(renewed, "the new deadline is in the Deployment")
        (kept,) = await live.list(DEPLOYMENT)
        assert kept["spec"]["template"] == deployment["spec"]["template"]
        await live.edit(MODEL_POOL, "llama", {"spec": {"rollout": {"restart": "2026-01-31"}}})
        new = await unplaced(live, 2)
        assert set(first) < set(await staying(live)), "a restart is rolled out as carefully as a change"
        (pod, *_) = [item for item in await live.list(POD) if item["metadata"]["name"] in new]

    router, volumes = pod["spec"]["initContainers"][0], {volume["name"] for volume in pod["spec"]["volumes"]}
    assert router["image"] == "tidepool-router:next"
    assert "bodies" in {mount["name"] for mount in router["volumeMounts"]} & volumes


async def test_what_needs_no_restart_restarts_nothing(live: Live) -> None:
    async with live.operator():
        await live.create(replicas=1)
        before = await eventually(lambda: staying(live), "a pod")
        (deployment,) = await live.list(DEPLOYMENT)
        harmless = {
            "routing": {"policy": "RoundRobin", "queue": {"maxWaiting": 5}},
            "rollout": {"drainTimeout": "20s"},
            "scaling": {"maxReplicas": 3},
            "disruption": {"maxUnavailable": 2},
            "access": {"from": [{"podSelector": {}}]},
            "model": {"uri": "hf://acme/llama", "aliases": ["chat"]},
        }
        edited = await live.edit(MODEL_POOL, "llama", {"spec": harmless})

        async def seen() -> bool:
            pool = await live.get(MODEL_POOL, "llama") or {}
            status = pool.get("status") or {}  # the first pod may be there before it
            return bool(status.get("observedGeneration") == edited["metadata"]["generation"])

        await eventually(seen, "the change is observed")
        (after,) = await live.list(DEPLOYMENT)

        assert await staying(live) == before
        assert after["metadata"]["generation"] == deployment["metadata"]["generation"]
