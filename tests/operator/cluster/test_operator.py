"""The whole operator against a real API server."""

import asyncio
import urllib.request
from typing import Any

import pytest

from pools.live import CRD, Live, eventually
from tidepool_api.contract import FLEET_CONFIGMAP, FLEET_KEY, POD_DELETION_COST
from tidepool_api.routing import Fleet
from tidepool_api.workflow_run import RunTotals
from tidepool_operator.cluster.gateway_runs import GatewayRuns
from tidepool_operator.cluster.kinds import (
    AGENT_WORKFLOW,
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    EVENT,
    MODEL_POOL,
    OWNED,
    POD,
    SERVICE,
    Kind,
    Object,
)
from tidepool_operator.errors import WatchesEnded

pytestmark = pytest.mark.apiserver

SERVICE_LABEL = "kubernetes.io/service-name"


async def pods(live: Live, count: int) -> list[Object]:
    async def look() -> list[Object] | None:
        found = [pod for pod in await live.list(POD) if not pod["metadata"].get("deletionTimestamp")]
        return found if len(found) == count else None

    return await eventually(look, f"{count} pods") if count else await live.list(POD)


async def serve(live: Live, count: int = 1, **spec: Any) -> list[Object]:
    """A pool with `count` pods that serve."""
    await live.create(replicas=count, **spec)
    found = await pods(live, count)
    for pod in found:
        await live.bring_up(pod["metadata"]["name"])
    await live.reason("Complete", "Progressing")
    return found


async def test_a_pool_becomes_objects_and_a_status(live: Live) -> None:
    async with live.operator():
        await live.create(replicas=2)
        await live.reason("Starting")
        found = await pods(live, 2)
        await live.bring_up(found[0]["metadata"]["name"])
        ready = await live.reason("Serving")
        stored = await live.get(MODEL_POOL, "llama")
        await eventually(lambda: published(live), "the fleet has the pool")

    names = {str(kind): [item["metadata"]["name"] for item in await live.list(kind)] for kind in OWNED[:6]}
    assert stored is not None
    revision = stored["status"]["updateRevision"]
    assert names == {
        "ServiceAccount": ["llama"],
        "ConfigMap": ["llama-settings", FLEET_CONFIGMAP],
        "NetworkPolicy": ["llama"],
        "Service": ["llama", "llama-peers"],
        "PodDisruptionBudget": ["llama"],
        "Deployment": [f"llama-{revision}"],
    }
    assert ready["status"] == "True"
    assert (stored["status"]["readyReplicas"], stored["status"]["replicas"]) == (1, 2)
    assert stored["status"]["engineArgs"][0] == "--model=acme/llama"


async def published(live: Live) -> set[str]:
    """Models of which gateways are told; that follows a change of the pools a moment later."""
    item = await live.get(CONFIG_MAP, FLEET_CONFIGMAP) or {}
    text = (item.get("data") or {}).get(FLEET_KEY)
    return {name for pool in Fleet.model_validate_json(text).pools for name in pool.models} if text else set()


async def test_gateways_are_told_of_the_pool(live: Live) -> None:
    async with live.operator():
        await live.create(model={"uri": "hf://acme/llama", "aliases": ["chat"]})
        await eventually(lambda: published(live), "the fleet has the pool")

        assert await published(live) == {"llama", "chat"}


async def test_foreign_edits_of_our_fields_are_put_back_and_foreign_fields_stay(live: Live) -> None:
    async with live.operator():
        await live.create()
        await live.reason("Starting")
        change = {"spec": {"publishNotReadyAddresses": False}, "metadata": {"labels": {"mine": "1"}}}
        await live.edit(SERVICE, "llama-peers", change)

        async def repaired() -> Object | None:
            found = await live.get(SERVICE, "llama-peers")
            return found if found and found["spec"].get("publishNotReadyAddresses") else None

        found = await eventually(repaired, "the Service is put back")

    assert found["metadata"]["labels"]["mine"] == "1"


async def test_a_deleted_child_comes_back(live: Live) -> None:
    async with live.operator():
        await live.create()
        await live.reason("Starting")
        await live.api.delete(SERVICE, live.namespace, "llama")

        await eventually(lambda: live.get(SERVICE, "llama"), "the Service is made again")


async def ours(live: Live) -> list[tuple[int, Any]]:
    """What the operator writes of Deployments; their status is the controllers', and comes when it comes."""
    found = [item["metadata"] for item in await live.list(DEPLOYMENT)]
    return [(metadata["generation"], metadata["labels"]) for metadata in found]


async def test_a_refused_pod_template_is_told_in_the_servers_words_and_touches_nothing(live: Live) -> None:
    async with live.operator():
        await serve(live)
        before = await ours(live)
        bad = {"spec": {"containers": [{"name": "engine", "imagePullPolicy": "Sometimes", "imagine": True}]}}
        await live.edit(MODEL_POOL, "llama", {"spec": {"podTemplate": bad}})
        refused = await live.reason("PodTemplateRejected")
        after = await ours(live)
        # Another pool is unharmed, and the correction is taken.
        await live.create("other")
        await live.reason("Starting", name="other")
        await live.edit(MODEL_POOL, "llama", {"spec": {"podTemplate": None}})
        await live.reason("Serving")

    assert "imagine" in refused["message"]
    assert "earlier revision serve" in refused["message"]
    assert before == after


async def test_a_value_that_only_validation_refuses_is_told_too(live: Live) -> None:
    async with live.operator():
        bad = {"spec": {"containers": [{"name": "engine", "imagePullPolicy": "Sometimes"}]}}
        await live.create(podTemplate=bad)
        refused = await live.reason("PodTemplateRejected")

    assert 'Unsupported value: "Sometimes"' in refused["message"]
    assert await live.list(DEPLOYMENT) == []


async def test_an_object_of_somebody_else_is_not_taken_over(live: Live) -> None:
    mine = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llama", "namespace": live.namespace},
        "spec": {"ports": [{"port": 5432}]},
    }
    await live.api.create(SERVICE, live.namespace, mine)
    async with live.operator():
        await live.create()
        taken = await live.reason("NameTaken")

    found = await live.get(SERVICE, "llama")
    assert found is not None
    assert found["spec"]["ports"][0]["port"] == 5432
    assert "Service llama" in taken["message"]
    assert await live.list(DEPLOYMENT) == []


async def test_a_deleted_pool_leaves_nothing_also_when_the_operator_is_away(live: Live) -> None:
    async with live.operator():
        await serve(live, 2)
    await live.api.delete(MODEL_POOL, live.namespace, "llama")

    async def nothing() -> bool:
        left = [item for kind in (*OWNED, POD) for item in await live.list(kind)]
        return [item["metadata"]["name"] for item in left] == [FLEET_CONFIGMAP]

    await eventually(nothing, "nothing is left", 120)


async def test_a_restart_touches_nothing(live: Live) -> None:
    async with live.operator("one"):
        await serve(live, 2)
    before = await live.versions()
    async with live.operator("two") as second:

        async def looked() -> bool:
            return second.figures.reconciles >= 1 and len(second.queue) == 0

        await eventually(looked, "the second operator has looked at everything")
        after = await live.versions()

    assert after == before


async def test_an_idle_pool_is_not_written(live: Live) -> None:
    async with live.operator() as operator:
        await serve(live)
        await eventually(lambda: published(live), "the fleet has the pool")
        before, reconciles = await live.versions(), operator.figures.reconciles
        for _ in range(3):
            operator.due.all()
            await eventually(lambda: _drained(operator, reconciles), "the queue is empty")

        assert await live.versions() == before


async def _drained(operator: Any, reconciles: int) -> bool:
    return operator.figures.reconciles > reconciles and len(operator.queue) == 0


async def test_a_spec_change_rolls_over_and_keeps_the_old_revision_for_a_change_back(live: Live) -> None:
    async with live.operator():
        first = {pod["metadata"]["name"] for pod in await serve(live, 2)}
        await live.edit(MODEL_POOL, "llama", {"spec": {"engine": {"maxModelLen": 128}}})
        both = await pods(live, 4)
        assert (await live.told())["status"] == "False"
        for pod in both:
            if pod["metadata"]["name"] not in first:
                await live.bring_up(pod["metadata"]["name"])
        await live.reason("Complete", "Progressing")
        left = await pods(live, 2)
        deployments = await live.list(DEPLOYMENT)

    assert first.isdisjoint({pod["metadata"]["name"] for pod in left})
    assert sorted(item["spec"]["replicas"] for item in deployments) == [0, 2]


async def test_the_marked_pod_goes_when_the_pool_shrinks(live: Live) -> None:
    marked: set[str] = set()

    def listen(kind: Kind, _before: Object | None, after: Object | None) -> None:
        if kind == POD and after and (after["metadata"].get("annotations") or {}).get(POD_DELETION_COST):
            marked.add(after["metadata"]["name"])

    async with live.operator() as operator:
        operator.store.listen(listen)
        before = {pod["metadata"]["name"] for pod in await serve(live, 3)}
        await live.edit(MODEL_POOL, "llama", {"spec": {"replicas": 2}}, "scale")
        left = {pod["metadata"]["name"] for pod in await pods(live, 2)}
        await eventually(lambda: _heard(marked), "the watch has told of the mark")

    assert before - left == marked


async def _heard(marked: set[str]) -> bool:
    return bool(marked)


async def test_a_pool_may_be_scaled_by_others_through_its_scale_subresource(live: Live) -> None:
    async with live.operator():
        await live.create(replicas=1)
        await pods(live, 1)

        async def selecting() -> dict[str, Any] | None:
            scale = await live.client.request("GET", MODEL_POOL.path(live.namespace, "llama", "scale"))
            return scale if scale["status"].get("selector") else None

        scale = await eventually(selecting, "the scale tells whom it selects")
        await live.edit(MODEL_POOL, "llama", {"spec": {"replicas": 3}}, "scale")
        await pods(live, 3)

    assert "tidepool.dev/pool=llama" in scale["status"]["selector"]


async def test_a_pod_is_known_to_gateways_before_it_is_ready(live: Live) -> None:
    """Else the last old pod of a rollout without surge is gone before anybody sends to the first new one."""
    async with live.operator():
        await live.create(replicas=1)
        [pod] = await eventually(lambda: live.list(POD), "a pod")
        await live.bring_up(pod["metadata"]["name"], ready=False)
        address = {"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}
        await live.edit(POD, pod["metadata"]["name"], {"status": address}, "status")

        async def listed() -> bool:
            slices = await live.list(ENDPOINT_SLICE)
            peers = [one for one in slices if one["metadata"]["labels"].get(SERVICE_LABEL) == "llama-peers"]
            found = [entry for one in peers for entry in one.get("endpoints") or []]
            return any(one["addresses"] == ["10.1.2.3"] and one["conditions"]["ready"] for one in found)

        await eventually(listed, "whoever resolves the pool's peers finds the pod")

        assert (await live.told())["status"] == "False"


async def test_events_tell_people_once(live: Live) -> None:
    async with live.operator() as operator:
        await live.create(podTemplate={"spec": {"containers": [{"name": "engine", "imagine": 1}]}})
        await live.reason("PodTemplateRejected")
        operator.due.all()

        async def told() -> list[str]:
            return [
                event["reason"]
                for event in await live.list(EVENT)
                if event["reportingController"].startswith("tide")
            ]

        await eventually(told, "an event is posted")
        assert await told() == ["PodTemplateRejected"]


async def test_health_and_metrics_are_served(live: Live) -> None:
    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.health.port}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    async with live.operator() as operator:
        await live.create()
        await live.reason("Starting")

        assert await asyncio.to_thread(get, "/healthz") == "ok\n"
        page = await asyncio.to_thread(get, "/metrics")
        assert "tidepool_operator_leader 1" in page
        assert "tidepool_operator_quiet_watches 0" in page


async def test_a_pool_that_has_no_figures_to_scale_by_is_a_gauge(live: Live) -> None:
    async with live.operator() as operator:
        await serve(live, scaling={"minReplicas": 1, "maxReplicas": 3})
        await live.reason("MetricsMissing", "ScalingActive")

        def missing() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{operator.health.port}/metrics", timeout=20) as answer:
                told = f'tidepool_operator_figures_missing{{pool="{live.namespace}/llama"}} 1\n'
                return told in answer.read().decode()

        await eventually(lambda: asyncio.to_thread(missing), "the gauge says so")


async def test_a_workflow_is_ready_as_soon_as_its_pool_is_there(live: Live) -> None:
    step = {"name": "ask", "llm": {"pools": [{"name": "llama"}], "messages": [{"role": "user", "content": "hi"}]}}
    body = {
        "apiVersion": AGENT_WORKFLOW.api_version,
        "kind": "AgentWorkflow",
        "metadata": {"name": "flow", "namespace": live.namespace},
        "spec": {"steps": [step]},
    }

    async def verdict() -> dict[str, str]:
        found = await live.get(AGENT_WORKFLOW, "flow") or {}
        conditions = (found.get("status") or {}).get("conditions") or []
        return {entry["type"]: entry["reason"] for entry in conditions}

    async def says(accepted: str, ready: str) -> None:
        async def look() -> bool:
            return await verdict() == {"Accepted": accepted, "Ready": ready}

        await eventually(look, f"the workflow is {accepted} and {ready}")

    async with live.operator():
        await live.client.request("POST", AGENT_WORKFLOW.path(live.namespace), body=body)
        await says("Accepted", "PoolNotFound")
        await live.create()
        await says("Accepted", "Ready")
        await live.api.delete(MODEL_POOL, live.namespace, "llama")
        await says("Accepted", "PoolNotFound")


async def test_kubectl_get_aw_shows_the_runs_that_a_gateway_counts(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"name": "ask", "llm": {"pools": [{"name": "llama"}], "messages": [{"role": "user", "content": "hi"}]}}
    body = {
        "apiVersion": AGENT_WORKFLOW.api_version,
        "kind": "AgentWorkflow",
        "metadata": {"name": "flow", "namespace": live.namespace},
        "spec": {"steps": [step]},
    }
    counted = RunTotals(
        workflow=f"{live.namespace}/flow", active=3, succeeded=1234, failed=1, p50_seconds=0.456, p95_seconds=14.2
    )

    async def totals(_: GatewayRuns) -> dict[str, RunTotals]:
        return {counted.workflow: counted}

    async def cells() -> dict[str, Any]:
        path = AGENT_WORKFLOW.path(live.namespace)
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        table = await live.client.request("GET", path, accept=accept)
        names = [column["name"] for column in table["columnDefinitions"]]
        return dict(zip(names, table["rows"][0]["cells"], strict=True))

    async def shown() -> dict[str, Any] | None:
        found = await cells()
        return found if found["ACTIVE"] is not None and found["ACCEPTED"] is not None else None

    monkeypatch.setattr(GatewayRuns, "totals", totals)
    monkeypatch.setattr("tidepool_operator.workflow_figures.LOOK_SECONDS", 0.2)
    await live.client.request("POST", AGENT_WORKFLOW.path(live.namespace), body=body)
    async with live.operator():
        row = await eventually(shown, "the columns have values")
        assert [row[name] for name in ("ACTIVE", "SUCCEEDED", "FAILED", "P95")] == [3, 1200, 1, "14s"]
        status = (await live.get(AGENT_WORKFLOW, "flow") or {})["status"]
        assert status["latency"] == {"p50": "460ms", "p95": "14s"}


async def test_the_second_replica_takes_over_within_seconds(live: Live) -> None:
    async with live.operator("one") as first:
        second = asyncio.create_task(_take_over(live))
        await live.create()
        await live.reason("Starting")
        assert first.lease.leads
        first.stop()
        await asyncio.wait_for(second, 120)


async def _take_over(live: Live) -> None:
    """An operator that waits for the Lease, and then does its work."""
    async with live.operator("two"):
        await live.create("late")
        await live.reason("Starting", name="late")


async def test_somebody_who_changes_it_back_all_the_time_is_met_calmly_and_told_of(live: Live) -> None:
    async with live.operator():
        await live.create()
        await live.reason("Starting")

        async def contested() -> bool:
            await live.edit(SERVICE, "llama-peers", {"spec": {"publishNotReadyAddresses": False}})
            return "Contested" in {event["reason"] for event in await live.list(EVENT)}

        await eventually(contested, "it is told")
        found = await live.get(SERVICE, "llama-peers")
        await asyncio.sleep(1)
        after = await live.get(SERVICE, "llama-peers")

    assert found is not None
    assert after is not None
    assert after["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]


async def test_when_its_kinds_vanish_the_process_ends_instead_of_living_on_blind(live_alone: Live) -> None:
    """A dead watch looks like a cluster in which nothing happens."""
    with pytest.raises(WatchesEnded):
        await _without_kinds(live_alone)


async def _without_kinds(live: Live) -> None:
    async with live.operator() as operator:
        for plural in ("modelpools", "agentworkflows", "agentworkflowruns"):
            await live.api.delete(CRD, "", f"{plural}.tidepool.dev")

        async def ended() -> bool:
            return operator._stop.is_set()

        await eventually(ended, "the operator ends")
